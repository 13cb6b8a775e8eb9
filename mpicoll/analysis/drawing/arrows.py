"""Draws a picture as textbooks draw collectives. Time goes from left to right, and every rank has a row of cells. An
arrow leads from the cells that a message reads to the cells that it writes. A cell has the colours of the ranks whose
contributions it holds. Where all contributions come from the root, it has the colour of its block."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sin
from pathlib import Path

from mpicoll.analysis.drawing import canvas
from mpicoll.analysis.drawing.canvas import Canvas, Point, box
from mpicoll.analysis.drawing.picture import Arrow, Panel, Picture, Spot
from mpicoll.analysis.palette import EMPTY, FAINT, FAULT, GRID, INK, LINE, PLUS, of_cell

# Lengths in inches.
CELL, TALL = 0.56, 0.27
BETWEEN_RANKS, BETWEEN_STRIPS, BETWEEN_LINES = 0.15, 0.07, 0.34
FLAT, STEEP = 0.95, 1.9  # the room for arrows in a low picture, and the most room for them
LEFT, EDGE, TOP, HEAD, STRIP_NAME, FOOT = 0.74, 0.16, 0.42, 0.24, 0.13, 0.36
WIDEST = 10.0
TALLEST = 12.0  # the height of the cells of all ranks. In a taller picture nobody can follow the arrows.
BRACKET = 0.055
RADIUS = 0.068  # the radius of the sign that says that a message is combined with what is there

_MEANINGS = {
    (False, False): "received",
    (True, False): "received and combined with what is there",
    (False, True): "copied within the rank",
}
"""What an arrow means, by whether it reduces and whether it is local."""


def save(picture: Picture, name: str, of: str, file: Path) -> None:
    """Write the picture as SVG or PNG, by the ending of the file. The same picture gives the same bytes."""
    drawing = _Drawing(picture, EDGE + 0.14 + 0.089 * len(name) + 0.07 * len(of))
    canvas.save(drawing.width, drawing.height, lambda on: drawing.draw(on, name, of), file)


def height_of_ranks(picture: Picture) -> float:
    """The height of the cells of all ranks, one rank below the other."""
    return picture.ranks * (picture.blocks * TALL + BETWEEN_RANKS) - BETWEEN_RANKS


class _Drawing:
    """The panels follow each other on lines, as words do. A line begins with the last panel of the line before it."""

    def __init__(self, picture: Picture, title: float) -> None:
        """``title`` is the width of the line above the panels."""
        self.picture = picture
        strips = len(picture.strips)
        self.panel = strips * CELL + (strips - 1) * BETWEEN_STRIPS
        self.rank = picture.blocks * TALL + BETWEEN_RANKS
        self.head = HEAD + (len(picture.strips) > 1) * STRIP_NAME
        self.line = self.head + height_of_ranks(picture)
        self.arrows = min(STEEP, FLAT + self.line / 30)
        self.pitch = self.panel + self.arrows
        rounds = len(picture.panels) - 1
        fit = max(1, int((max(WIDEST, 1.8 * self.line) - LEFT - EDGE - self.panel) / self.pitch))
        self.lines = max(1, -(-rounds // fit))
        self.rounds = -(-rounds // self.lines)
        self.width = max(LEFT + self.panel + self.rounds * self.pitch, title) + EDGE
        if picture.fault is not None:
            self.width = max(self.width, canvas.LEAST_WIDE)
        self.above = TOP + canvas.caption_height(picture.fault, self.width - 2 * EDGE)
        self.height = self.above + self.lines * (self.line + BETWEEN_LINES) - BETWEEN_LINES
        self.height += FOOT if any(panel.arrows for panel in picture.panels) else EDGE

    def corner(self, line: int, panel: int, spot: Spot) -> Point:
        """The upper left corner of a cell."""
        rank, strip, block = spot
        x = LEFT + (panel - line * self.rounds) * self.pitch + strip * (CELL + BETWEEN_STRIPS)
        return x, self.top(line) + rank * self.rank + block * TALL

    def top(self, line: int) -> float:
        return self.above + line * (self.line + BETWEEN_LINES) + self.head

    def draw(self, on: Canvas, name: str, of: str) -> None:
        self.fills, self.strokes, self.text, self.label = on.fills, on.strokes, on.text, on.label
        canvas.draw_caption(on, name, of, self.picture.fault, EDGE, self.width - 2 * EDGE)
        for line in range(self.lines):
            self.draw_ranks(line)
            first = line * self.rounds
            for number, panel in enumerate(self.picture.panels[first : first + self.rounds + 1], first):
                self.draw_panel(line, number, panel)
        self.legend()

    def draw_ranks(self, line: int) -> None:
        """The ranks' names, and the numbers of their blocks."""
        first = line * self.rounds
        for rank in range(self.picture.ranks):
            x, y = self.corner(line, first, (rank, self.strips(self.picture.panels[first])[0], 0))
            middle = y + self.picture.blocks * TALL / 2
            wrong = self.picture.fault is not None and self.picture.fault.rank == rank
            self.text(EDGE, middle, f"rank {rank}", 8.5, FAULT if wrong else INK, ha="left")
            if self.picture.blocks > 1:
                for block in range(self.picture.blocks):
                    self.text(x - 0.06, y + (block + 0.5) * TALL, str(block), 7, FAINT, ha="right")

    def draw_panel(self, line: int, number: int, panel: Panel) -> None:
        _, y = self.corner(line, number, (0, 0, 0))
        above = y - self.head + 0.11
        strips = self.strips(panel)
        lefts = [self.corner(line, number, (0, strip, 0))[0] for strip in strips]
        self.text((lefts[0] + lefts[-1] + CELL) / 2, above, panel.title, 8.5, weight="bold")
        for strip, left in zip(strips, lefts, strict=True):
            self.text(left + CELL / 2, y - 0.1, self.picture.strips[strip], 7.5, FAINT)
            for rank in range(self.picture.ranks):
                for block in range(self.picture.blocks):
                    self.cell(line, number, panel, (rank, strip, block))
        if number > line * self.rounds:
            self.draw_round(line, number, panel.arrows)

    def draw_round(self, line: int, number: int, arrows: Sequence[Arrow]) -> None:
        """Draw what leads to a panel. In a picture of a meaning this is a plain arrow."""
        x, y = self.corner(line, number, (0, 0, 0))
        x -= self.arrows / 2
        if arrows:
            self.text(x, y - self.head + 0.11, f"round {number}", 8, FAINT)
        else:
            y += self.line / 2 - self.head / 2
            self.shaft((x - 0.22, y), (x + 0.22, y), "solid", head=True)
        labels: dict[tuple[Spot, ...], tuple[str, Point, list[float]]] = {}
        for arrow in arrows:
            start, end = self.arrow(line, number, arrow)
            labels.setdefault(arrow.source, (arrow.label, start, []))[2].append(end[1] - start[1])
        for label, (x, y), falls in labels.values():  # beside the arrows, not on them
            beside = -0.07 if min(falls) > -0.01 else 0.07 if max(falls) < 0.01 else 0
            self.label(x + (0.05 if beside else 0.11), y + beside, label, 7)

    def strips(self, panel: Panel) -> Sequence[int]:
        """The strips that the panel shows. The first and the last panel leave out empty strips, unless there is a
        fault, which may be just that a strip is empty."""
        few = panel.title and self.picture.fault is None
        return sorted({strip for _, strip, _ in panel.cells}) if few else range(len(self.picture.strips))

    def cell(self, line: int, number: int, panel: Panel, spot: Spot) -> None:
        x, y = self.corner(line, number, spot)
        shown = panel.cells.get(spot)
        outline = box(x, y, CELL, TALL)
        if spot in panel.at_fault:
            self.strokes[FAULT, 2.6, "solid"].append(outline)
        if shown is None:
            self.fills[EMPTY].append(outline)
            self.strokes[GRID, 0.6, "solid"].append(outline)
            return
        share = CELL / len(shown.colours)
        for i, number in enumerate(shown.colours):
            colour = of_cell(number, self.picture.colours)
            self.fills[colour].append(box(x + i * share, y, share, TALL))
        self.strokes[(INK, 1.3, "solid") if shown.fresh else ("#94a3b8", 0.6, "solid")].append(outline)
        whole = shown.label in ("Σ", "all")
        size = min(9.5 if whole else 8.5, 48 / len(shown.label))
        self.text(x + CELL / 2, y + TALL / 2, shown.label, size, weight="bold" if whole else "normal")

    def arrow(self, line: int, number: int, arrow: Arrow) -> tuple[Point, Point]:
        """From the right of the cells of the panel before to the left of the cells of this one."""
        x0, y0 = self.bracket([self.corner(line, number - 1, spot) for spot in arrow.source], CELL, BRACKET)
        x1, y1 = self.bracket([self.corner(line, number, spot) for spot in arrow.target], 0, -BRACKET)
        if arrow.reduces or arrow.missing == "target":
            x1 -= 2 * RADIUS
        if arrow.missing == "source":
            x0 += 2 * RADIUS
        head = not arrow.reduces and arrow.missing != "target"
        self.shaft((x0, y0), (x1, y1), "dashed" if arrow.local else "solid", head, arrow.wrong)
        if arrow.missing:
            self.cross((x1 + RADIUS, y1) if arrow.missing == "target" else (x0 - RADIUS, y0))
        if arrow.reduces and arrow.missing != "target":
            self.plus((x1 + RADIUS, y1))
        return (x0, y0), (x1, y1)

    def bracket(self, corners: Sequence[Point], side: float, depth: float) -> Point:
        """Join the cells of a message, with a bracket if there are several, and return where its arrow is."""
        x = corners[0][0] + side
        runs: list[tuple[float, float]] = []
        for y in sorted({y for _, y in corners}):
            if runs and abs(runs[-1][1] - y) < TALL / 2:
                runs[-1] = runs[-1][0], y + TALL
            else:
                runs.append((y, y + TALL))
        ends = []
        for top, bottom in runs:
            several = bottom - top > 1.5 * TALL
            if several:
                top, bottom, near = top + TALL / 5, bottom - TALL / 5, x + depth / 4
                self.strokes[LINE, 1.0, "solid"].append(
                    [(near, top), (x + depth, top), (x + depth, bottom), (near, bottom)]
                )
            ends.append((x + depth * several, (top + bottom) / 2))
        if len(ends) == 1:
            return ends[0]
        spine = x + 2 * depth
        ticks = [[end, (spine, end[1])] for end in ends]
        self.strokes[LINE, 1.0, "solid"] += [*ticks, [(spine, ends[0][1]), (spine, ends[-1][1])]]
        return spine, (ends[0][1] + ends[-1][1]) / 2

    def shaft(self, start: Point, end: Point, dashes: str, head: bool, wrong: bool = False) -> None:
        colour, thick = (FAULT, 2.0) if wrong else (LINE, 1.0)
        (x0, y0), (x1, y1) = start, end
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        dx, dy = (x1 - x0) / length, (y1 - y0) / length
        if head:
            long, wide = (0.13, 0.05) if wrong else (0.1, 0.036)
            x2, y2 = x1 - long * dx, y1 - long * dy
            self.fills[colour].append([end, (x2 - wide * dy, y2 + wide * dx), (x2 + wide * dy, y2 - wide * dx)])
            end = x2, y2
        self.strokes[colour, thick, dashes].append([start, end])

    def plus(self, middle: Point) -> None:
        x, y = middle
        circle = [(x + RADIUS * cos(k * pi / 8), y + RADIUS * sin(k * pi / 8)) for k in range(16)]
        circle.append(circle[0])
        self.fills["white"].append(circle)
        arm = 0.6 * RADIUS
        for drawn in (circle, [(x - arm, y), (x + arm, y)], [(x, y - arm), (x, y + arm)]):
            self.strokes[PLUS, 1.1, "solid"].append(drawn)

    def cross(self, middle: Point) -> None:
        """The sign for an end of a message at which no rank is."""
        x, y = middle
        for way in (-RADIUS, RADIUS):
            self.strokes[FAULT, 2.0, "solid"].append([(x - RADIUS, y - way), (x + RADIUS, y + way)])

    def legend(self) -> None:
        arrows = [arrow for panel in self.picture.panels for arrow in panel.arrows]
        x, y = EDGE, self.height - 0.17

        def said(text: str, at: float) -> float:
            self.text(at, y, text, 7.5, FAINT, ha="left")
            return at + 0.25 + 0.06 * len(text)

        kinds = {(arrow.reduces, arrow.local) for arrow in arrows if not arrow.wrong}
        for (reduces, local), meaning in _MEANINGS.items():
            if (reduces, local) in kinds:
                self.shaft((x, y), (x + 0.3, y), "dashed" if local else "solid", head=not reduces)
                if reduces:
                    self.plus((x + 0.3 + RADIUS, y))
                x = said(meaning, x + 0.37 + 2 * RADIUS * reduces)
        if any(arrow.wrong for arrow in arrows):
            self.shaft((x, y), (x + 0.3, y), "solid", head=True, wrong=True)
            x = said("wrong", x + 0.37)
        if any(arrow.missing for arrow in arrows):
            self.cross((x + RADIUS, y))
            said("nobody is at this end", x + 0.07 + 2 * RADIUS)
