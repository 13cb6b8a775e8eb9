"""list the algorithms of a collective

Lists the algorithms of one collective, or of all. Each entry has the name that algorithm= takes, the cost in time, what
the algorithm serves, and its source. In a cost, p is the number of ranks, n the bytes of the vector, and s the number
of segments. a is the time of a message, b the time of each byte that is sent, and g that of each byte combined.
"""

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

    table = COLLECTIVES[collective]
    uneven = choose.names(collective + "v") if table.by_rank else ()
    described = []
    for name in choose.names(collective):
        a = find(collective, name)
        described.append(
            {
                "collective": collective,
                "name": name,
                "summary": _ROUTES[name] if a is None else a.summary,
                "cost": None if a is None else a.cost,
                "constraints": [
                    "every number of ranks" if a is None else a.serves,
                    *([f"{collective}v"] if name in uneven else []),
                ],
                "segment": None if a is None else a.segment,
                "source": None if a is None else a.paper,
            }
        )
    return described


def _shown(each: dict[str, Any]) -> str:
    serves = list(each["constraints"])
    if each["segment"]:
        serves.append(f"pipelined in segments of {each['segment'] >> 10} KiB")
    lines = [("", each["summary"]), ("cost", each["cost"]), ("serves", ", ".join(serves)), ("source", each["source"])]
    return "\n".join(
        [f"{each['collective']} {each['name']}", *(f"    {k:6}  {v}" if k else f"    {v}" for k, v in lines if v)]
    )
