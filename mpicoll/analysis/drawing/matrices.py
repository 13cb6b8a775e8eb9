"""Draws a picture with many cells, in which arrows would be too long to follow. Each round is a matrix, with a row for
each rank and a column for each block. Beside a row are the ranks that it received messages from in that round."""

from __future__ import annotations

from pathlib import Path

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.analysis.drawing import canvas
from mpicoll.analysis.drawing.canvas import Canvas, box
from mpicoll.analysis.drawing.picture import Panel, Picture, Shown
from mpicoll.analysis.palette import EMPTY, FAINT, FAULT, GRID, INK, LINE, of_cell

# Lengths in inches.
TALL = 0.18
LEAST_WIDE, LETTER = 0.26, 0.077
RANKS, PEERS, BETWEEN, HEAD = 0.26, 0.5, 0.14, 0.38
EDGE, TOP, FOOT = 0.2, 0.46, 0.4
WIDEST = 10.5
_FEW, _ALL = (0xF1, 0xF5, 0xF9), (0x3B, 0x9B, 0xB8)
"""The colours of a cell with no contribution, and with all."""
_KEY = "a row: a rank; a column: a block; {}; an outline: written in this round; ←0: by a message from rank 0"
_HOLDS = "a label: what it holds", "a number: how many ranks' values are combined, Σ: all"


def save(picture: Picture, name: str, of: str, file: Path) -> None:
    """Write the picture as SVG or PNG, by the ending of the file. The same picture gives the same bytes."""
    strips = len(picture.strips)
    labels = [len(shown.label) for panel in picture.panels for shown in panel.cells.values()]
    wide = LEAST_WIDE if _counts(picture) else max(LEAST_WIDE, LETTER * max(labels))
    panel = RANKS + strips * picture.blocks * wide + (strips - 1) * BETWEEN + PEERS
    across = min(max(1, int((WIDEST - 2 * EDGE) / panel)), len(picture.panels))
    lines = -(-len(picture.panels) // across)
    pitch = HEAD + picture.ranks * TALL
    width = max(2 * EDGE + across * panel, 9.0)
    above = TOP + canvas.caption_height(picture.fault, width - 2 * EDGE)

    def draw(on: Canvas) -> None:
        canvas.draw_caption(on, name, of, picture.fault, EDGE, width - 2 * EDGE)
        for number, each in enumerate(picture.panels):
            line, column = divmod(number, across)
            _matrix(on, picture, each, number, wide, EDGE + column * panel, above + line * pitch + HEAD)
        on.text(EDGE, above + lines * pitch + FOOT / 2, _KEY.format(_HOLDS[_counts(picture)]), 7.5, FAINT, ha="left")

    canvas.save(width, above + lines * pitch + FOOT, draw, file)


def _counts(picture: Picture) -> bool:
    return COLLECTIVES[picture.collective].reduces


def _matrix(on: Canvas, picture: Picture, panel: Panel, number: int, wide: float, x: float, y: float) -> None:
    """Draw one round, with its first cell at this point."""
    title = panel.title if number == 0 else f"round {number}" + f", {panel.title}" * bool(panel.title)
    on.text(x + RANKS, y - 0.19, title, 8.5, weight="bold", ha="left")
    came: dict[int, set[int]] = {}
    for arrow in panel.arrows:
        if not arrow.local and not arrow.wrong:
            came.setdefault(arrow.target[0][0], set()).add(arrow.source[0][0])
    for strip, named in enumerate(picture.strips):
        left = x + RANKS + strip * (picture.blocks * wide + BETWEEN)
        on.text(left, y - 0.07, named, 7, FAINT, ha="left")
        for rank in range(picture.ranks):
            for block in range(picture.blocks):
                shown = panel.cells.get((rank, strip, block))
                _cell(on, picture, shown, wide, left + block * wide, y + rank * TALL)
                if (rank, strip, block) in panel.at_fault:
                    on.strokes[FAULT, 2.0, "solid"].append(box(left + block * wide, y + rank * TALL, wide, TALL))
    for rank in range(picture.ranks):
        middle = y + (rank + 0.5) * TALL
        wrong = picture.fault is not None and picture.fault.rank == rank
        on.text(x + RANKS - 0.06, middle, str(rank), 7, FAULT if wrong else FAINT, ha="right")
        peers = sorted(came.get(rank, ()))
        shortened = [*map(str, peers[:2]), *["…"] * (len(peers) > 2)]
        right = x + RANKS + len(picture.strips) * (picture.blocks * wide + BETWEEN) - BETWEEN
        on.text(right + 0.04, middle, "←" + ",".join(shortened) if peers else "", 6.5, LINE, ha="left")


def _cell(on: Canvas, picture: Picture, shown: Shown | None, wide: float, x: float, y: float) -> None:
    outline = box(x, y, wide, TALL)
    if shown is None:
        on.fills[EMPTY].append(outline)
        on.strokes[GRID, 0.4, "solid"].append(outline)
        return
    colour, label = of_cell(shown.colours[0], picture.colours), shown.label
    if _counts(picture):
        many = len(shown.colours)
        part = many / picture.ranks
        shade = (round(few + (most - few) * part) for few, most in zip(_FEW, _ALL, strict=True))
        colour, label = "#" + "".join(f"{each:02x}" for each in shade), "Σ" if many == picture.ranks else str(many)
    on.fills[colour].append(outline)
    on.strokes[(INK, 1.0, "solid") if shown.fresh else ("#94a3b8", 0.4, "solid")].append(outline)
    on.text(x + wide / 2, y + TALL / 2, label, 7)
