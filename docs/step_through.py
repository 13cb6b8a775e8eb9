"""What the page that steps through schedules shows: every algorithm among 2 to 8 ranks, round by round, as JSON.

The steps are those of the drawings: of the schedules that run, each proved before it is followed. A picture is

- ``blocks`` a rank, in each of its ``strips`` (spaces that lie side by side; mostly one, without a name);
- ``kinds``: what a cell may show, a label and the numbers of its colours;
- ``start``: cell, kind, cell, kind, ...;
- ``rounds``, each with its ``arrows`` (the cells read, the cells written, whether it reduces, whether it is a copy
  within a rank), the cells that it ``writes`` (cell, kind, ...), and those that are ``gone`` after it.

A cell is a number: (rank * strips + strip) * blocks + block.
"""

from __future__ import annotations

import json
from typing import Any

from mpicoll.algorithms import Algorithm, algorithms
from mpicoll.analysis.drawing.canvas import COLOURS
from mpicoll.analysis.drawing.draw import pictured
from mpicoll.analysis.drawing.picture import Picture, Shown, Spot

RANKS = range(2, 9)


def script() -> str:
    """The data as a script: a page that is opened from a disk may load one, but no JSON."""
    data = {"colours": COLOURS, "pictures": everything()}
    return f"const SCHEDULES = {json.dumps(data, separators=(',', ':'), ensure_ascii=False)};\n"


def everything() -> dict[str, dict[str, dict[int, dict[str, Any]]]]:
    """Each collective's algorithms, and each one's pictures by the number of ranks."""
    found: dict[str, dict[str, dict[int, dict[str, Any]]]] = {}
    for algorithm in algorithms():
        found.setdefault(algorithm.collective, {})[algorithm.name] = of_algorithm(algorithm)
    return found


def of_algorithm(algorithm: Algorithm) -> dict[int, dict[str, Any]]:
    """The algorithm's pictures by the number of ranks, from root 0, without what it declines."""
    return {size: _steps(pictured(algorithm, size)) for size in RANKS if not algorithm.declines(size, 0)}


def _steps(picture: Picture) -> dict[str, Any]:
    if picture.fault is not None:
        raise picture.fault
    kinds: dict[tuple[str, tuple[int, ...]], int] = {}

    def cell(spot: Spot) -> int:
        rank, strip, block = spot
        return (rank * len(picture.strips) + strip) * picture.blocks + block

    def kind(shown: Shown) -> int:
        return kinds.setdefault((shown.label, shown.colours), len(kinds))

    held: dict[int, int] = {}
    panels = []
    for panel in picture.panels:
        now = {cell(spot): kind(shown) for spot, shown in panel.cells.items()}
        fresh = {cell(spot) for spot, shown in panel.cells.items() if shown.fresh}
        writes = [(at, now[at]) for at in sorted(now) if at in fresh or held.get(at) != now[at]]
        panels.append(
            {
                "arrows": [
                    [
                        [cell(spot) for spot in arrow.source],
                        [cell(spot) for spot in arrow.target],
                        int(arrow.reduces),
                        int(arrow.local),
                    ]
                    for arrow in panel.arrows
                ],
                "writes": [number for both in writes for number in both],
                "gone": sorted(held.keys() - now.keys()),
            }
        )
        held = now
    return {
        "blocks": picture.blocks,
        "strips": list(picture.strips),
        "kinds": [[label, list(colours)] for label, colours in kinds],
        "start": panels[0]["writes"],
        "rounds": panels[1:],
    }
