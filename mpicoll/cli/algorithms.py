"""list the algorithms of a collective

Lists the algorithms of one collective, or of all. Each entry has the name that algorithm= takes, the cost in time, what
the algorithm serves, and its source. In a cost, p is the number of ranks, n the bytes of the vector, and s the number
of segments. a is the time of a message, b the time of each byte that is sent, and g that of each byte combined."""

from __future__ import annotations

import argparse
import json
from typing import Any

from mpicoll.cli.arguments import of_collective, option

_ROUTES = {
    "native": "The MPI library's own collective.",
    "wide": "16-bit floats travel as float32, by MPI's own collective, or two_level on several nodes: one rounding.",
    "exchange": "The ranks exchange the values, and mpicoll combines them in rank order. It serves every dtype and op.",
    "node": "mpicoll's kernel, through memory that the ranks of one node share. It reduces in rank order.",
}


def add(p: argparse.ArgumentParser) -> None:
    of_collective(p, "?", "all")
    option(p, "--json", "print the list as JSON")


def handle(args: argparse.Namespace) -> int:
    from mpicoll.algorithms.collectives import COLLECTIVES

    chosen = [args.collective] if args.collective else COLLECTIVES
    found = [each for name in chosen for each in _described(name)]
    print(json.dumps(found, indent=1) if args.json else "\n".join(map(_shown, found)))
    return 0


def _described(collective: str) -> list[dict[str, Any]]:
    """What there is to say of each of the collective's algorithms."""
    from mpicoll.algorithms import find
    from mpicoll.algorithms.collectives import COLLECTIVES
    from mpicoll.calls import choose

    uneven = choose.names(collective + "v") if COLLECTIVES[collective].by_rank else ()
    described: list[dict[str, Any]] = []
    for name in choose.names(collective):
        a = find(collective, name)
        serves = [a.serves if a else "every number of ranks", *([f"{collective}v"] if name in uneven else [])]
        what = {"collective": collective, "name": name, "summary": a.summary if a else _ROUTES[name]}
        facts = {"cost": a and a.cost, "constraints": serves, "segment": a and a.segment, "source": a and a.paper}
        described.append(what | facts)
    return described


def _shown(each: dict[str, Any]) -> str:
    serves = list(each["constraints"])
    if each["segment"]:
        serves.append(f"pipelined in segments of {each['segment'] >> 10} KiB")
    lines = [("", each["summary"]), ("cost", each["cost"]), ("serves", ", ".join(serves)), ("source", each["source"])]
    shown = [f"    {k:6}  {v}" if k else f"    {v}" for k, v in lines if v]
    return "\n".join([f"{each['collective']} {each['name']}", *shown])
