"""list the algorithms of a collective

Lists the algorithms of one collective, or of all. Each entry has the name that algorithm= takes, the cost in time, what
the algorithm serves, and its source. In a cost, p is the number of ranks, n the bytes of the vector, and s the number
of segments. a is the time of a message, b the time of each byte that is sent, and g that of each byte combined."""

from __future__ import annotations

import argparse

from mpicoll.cli.arguments import of_collective

_ROUTES = {
    "native": "The MPI library's own collective.",
    "wide": "16-bit floats travel as float32, by MPI's own collective, or two_level on several nodes: one rounding.",
    "exchange": "The ranks exchange the values, and mpicoll combines them in rank order. It serves every dtype and op.",
    "node": "mpicoll's kernel, through memory that the ranks of one node share. It reduces in rank order.",
}


def add(p: argparse.ArgumentParser) -> None:
    of_collective(p, "?", "all")


def handle(args: argparse.Namespace) -> int:
    from mpicoll.algorithms.collectives import COLLECTIVES
    from mpicoll.calls import choose

    for collective in [args.collective] if args.collective else COLLECTIVES:
        uneven = choose.names(collective + "v") if COLLECTIVES[collective].by_rank else ()
        for name in choose.names(collective):
            print(_entry(collective, name, name in uneven))
    return 0


def _entry(collective: str, name: str, uneven: bool) -> str:
    """What there is to say of an algorithm. ``uneven`` says that it serves blocks of different sizes, too."""
    from mpicoll.algorithms import find

    a = find(collective, name)
    serves = [a.serves if a else "every number of ranks"] + [f"{collective}v"] * uneven
    if a and a.segment:
        serves.append(f"pipelined in segments of {a.segment >> 10} KiB")
    facts = {"cost": a and a.cost, "serves": ", ".join(serves), "source": a and a.paper}
    lines = [f"{collective} {name}", f"    {a.summary if a else _ROUTES[name]}"]
    return "\n".join(lines + [f"    {key:6}  {fact}" for key, fact in facts.items() if fact])
