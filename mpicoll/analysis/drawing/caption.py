"""The title of a drawing, and under it what is wrong with the algorithm."""

from __future__ import annotations

from textwrap import wrap

from mpicoll.analysis.drawing.canvas import Canvas
from mpicoll.analysis.palette import FAINT, FAULT, INK
from mpicoll.errors import ScheduleError

LEAST_WIDE = 7.5
"""The least width of a drawing with a fault, whose lines are long."""
LINE, LETTER = 0.16, 0.061
FIRST = 0.46
"""Where the first line is."""


def title_width(name: str, of: str) -> float:
    return 0.14 + 0.089 * len(name) + 0.07 * len(of)


def height(fault: ScheduleError | None, width: float) -> float:
    """The height of the lines about the fault."""
    return LINE * len(_lines(fault, width))


def draw(on: Canvas, name: str, of: str, fault: ScheduleError | None, edge: float, width: float) -> None:
    """Draw the title, and the lines about the fault. The first line, which says what is wrong, has its colour."""
    on.text(edge, 0.22, name, 10.5, weight="bold", ha="left")
    on.text(edge + 0.14 + 0.089 * len(name), 0.22, of, 8.5, FAINT, ha="left")
    for number, (text, first) in enumerate(_lines(fault, width)):
        on.text(edge, FIRST + number * LINE, text, 8, FAULT if first else INK, ha="left")


def _lines(fault: ScheduleError | None, width: float) -> list[tuple[str, bool]]:
    """The lines, and for each whether it belongs to the first one of the error."""
    if fault is None:
        return []
    letters = int(width / LETTER)
    lines = str(fault).splitlines()
    return [
        (part, number == 0)
        for number, line in enumerate(lines)
        for part in wrap(line.strip(), letters, subsequent_indent="    ")
    ]
