"""A picture as the text of one HTML file, which needs nothing else: a browser plays it, round by round (the folder
``player``).

The manual has the same player. Its site takes the files that are named here.

A picture is

- ``blocks`` a rank, in each of its ``strips`` (spaces that lie side by side; mostly one, without a name);
- ``colours``, and the ``kinds`` of what a cell may show: a label, and the numbers of its colours;
- ``start``: cell, kind, cell, kind, ...;
- ``rounds``, each with its ``arrows``, the cells that it ``writes`` (cell, kind, ...), and those that are ``gone``
  after it. An arrow is the cells read, the cells written, and what it does: "sends", "combines" or "copies". An arrow
  that is wrong also says how: "wrong", "no sender" or "no receiver";
- ``times`` of its algorithm for each size: the seconds, and the same as text;
- its ``fault``, if it has one: the text of the error, the rank, and the cells.

A cell is a number: (rank * strips + strip) * blocks + block."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from mpicoll.algorithms import Algorithm
from mpicoll.analysis.cost.presets import MACHINES
from mpicoll.analysis.cost.simulation import costs_of
from mpicoll.analysis.drawing.picture import MOST_RANKS, Arrow, Picture, Shown, Spot
from mpicoll.analysis.palette import of_cell
from mpicoll.units import duration, size_text

MACHINE = MACHINES["laptop"]  # the machine of the predicted times
SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 26)  # bytes of the vectors of the predicted times
_WRONG = {"": "wrong", "source": "no sender", "target": "no receiver"}

Pictures = dict[str, dict[str, dict[int, dict[str, Any]]]]
"""Data of pictures by collective, algorithm and the number of ranks."""


def script(pictures: Pictures) -> str:
    """The data as a script, because a page that is opened from a disk may load no JSON. It may lie in an HTML file."""
    sizes = [size_text(n) for n in SIZES]
    data = {"machine": MACHINE.name, "sizes": sizes, "mostRanks": MOST_RANKS, "pictures": pictures}
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return f"const SCHEDULES = {text.replace('<', chr(92) + 'u003c')};\n"


def steps(picture: Picture, algorithm: Algorithm, root: int) -> dict[str, Any]:
    kinds: dict[tuple[str, tuple[int, ...]], int] = {}

    def cell(spot: Spot) -> int:
        rank, strip, block = spot
        return (rank * len(picture.strips) + strip) * picture.blocks + block

    def kind(shown: Shown) -> int:
        return kinds.setdefault((shown.label, shown.colours), len(kinds))

    def arrow(of: Arrow) -> list[Any]:
        does = "copies" if of.local else "combines" if of.reduces else "sends"
        wrong = [_WRONG[of.missing]] if of.wrong else []
        return [[cell(spot) for spot in of.source], [cell(spot) for spot in of.target], does, *wrong]

    held: dict[int, int] = {}
    panels = []
    for panel in picture.panels:
        now = {cell(spot): kind(shown) for spot, shown in panel.cells.items()}
        fresh = {cell(spot) for spot, shown in panel.cells.items() if shown.fresh}
        writes = [n for at in sorted(now) if at in fresh or held.get(at) != now[at] for n in (at, now[at])]
        arrows = [arrow(each) for each in panel.arrows]
        panels.append({"arrows": arrows, "writes": writes, "gone": sorted(held.keys() - now.keys())})
        held = now
    found: dict[str, Any] = {
        "blocks": picture.blocks,
        "strips": list(picture.strips),
        "colours": [of_cell(number, picture.colours) for number in range(picture.colours)],
        "kinds": [[label, list(colours)] for label, colours in kinds],
        "start": panels[0]["writes"],
        "rounds": panels[1:],
    }
    if picture.fault is None:
        seconds = map(float, costs_of(algorithm, picture.ranks, MACHINE, SIZES, root).seconds)
        found["times"] = [[float(f"{t:.3g}"), duration(t)] for t in seconds]
    else:
        cells = sorted(cell(spot) for spot in picture.panels[-1].at_fault)
        found["fault"] = {"text": str(picture.fault), "rank": picture.fault.rank, "cells": cells}
    return found


PLAYER = Path(__file__).with_name("player")
SCRIPTS = ("picture.js", "address.js", "drawing.js", "stage.js", "player.js")
"""In the order in which a page loads them, after the script with the data."""
STYLE = "player.css"


def text(picture: Picture, algorithm: Algorithm, root: int, of: str) -> str:
    """The page of the picture. ``of`` says what it shows of the algorithm."""
    name = f"{algorithm.collective} {algorithm.name}"
    pictures = {algorithm.collective: {algorithm.name: {picture.ranks: steps(picture, algorithm, root)}}}
    scripts = [script(pictures), *((PLAYER / each).read_text(encoding="utf-8") for each in SCRIPTS)]
    page = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    return page.substitute(
        title=escape(f"{name}, {of}"),
        name=escape(name),
        of=escape(of),
        style=(PLAYER / STYLE).read_text(encoding="utf-8"),
        script="".join(scripts),
    )
