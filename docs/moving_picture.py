"""The picture of README that moves: an algorithm's blocks on their way, round by round, as an animated SVG.

It shows what the drawings show: the schedule that runs, proved before it is followed. Browsers play it as an image,
without a script.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from mpicoll.algorithms import find
from mpicoll.analysis.drawing.draw import pictured
from mpicoll.analysis.drawing.picture import Arrow, Picture, Shown, Spot
from mpicoll.analysis.palette import EMPTY, FAINT, GRID, INK, OF_CELLS, PLUS

FILE = Path(__file__).with_name("allreduce_ring.svg")
WIDE, TALL, GAP = 92, 30, 78
"""Of a cell, and between the columns of two ranks, in pixels."""
LEFT, TOP, FOOT = 24, 84, 34
BEFORE, MOVES, RESTS, AFTER = 1.2, 1.1, 0.5, 2.4
"""Seconds: before the first round, of a message, after each round, and after the last one."""


def moving(collective: str, algorithm: str, size: int) -> str:
    """The SVG."""
    found = find(collective, algorithm)
    if found is None:
        raise ValueError(f"{collective} has no algorithm {algorithm}")
    picture = pictured(found, size)
    if picture.fault is not None:
        raise picture.fault
    if len(picture.strips) > 1:
        raise ValueError(f"{algorithm} uses more than one space of a rank")
    return _Film(picture, f"{collective} {algorithm}").text()


class _Film:
    def __init__(self, picture: Picture, name: str) -> None:
        self.picture, self.name = picture, name
        self.rounds = len(picture.panels) - 1
        self.seconds = BEFORE + self.rounds * (MOVES + RESTS) + AFTER

    def text(self) -> str:
        p = self.picture
        wide = 2 * LEFT + p.ranks * (WIDE + GAP) - GAP
        tall = TOP + p.blocks * TALL + FOOT
        title = f"{self.name}, {p.ranks} ranks, {self.rounds} rounds"
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall}" width="{wide}" height="{tall}" '
            'font-family="DejaVu Sans, Verdana, sans-serif" text-anchor="middle">',
            f"<title>{title}</title>",
            f'<rect width="{wide}" height="{tall}" fill="white"/>',
            f'<text x="{LEFT}" y="28" font-size="17" font-weight="bold" text-anchor="start" fill="{INK}">',
            f"{title}</text>",
        ]
        for rank in range(p.ranks):
            x, _ = _corner((rank, 0, 0))
            lines.append(f'<text x="{x + WIDE / 2}" y="{TOP - 12}" font-size="14" fill="{INK}">rank {rank}</text>')
        lines += self._captions(wide, tall)
        for spot in ((rank, 0, block) for rank in range(p.ranks) for block in range(p.blocks)):
            lines += self._cell(spot)
        for number in range(1, self.rounds + 1):
            for arrow in p.panels[number].arrows:
                lines += self._message(number, arrow)
        return "\n".join([*lines, "</svg>", ""])

    def _begin(self, number: int) -> float:
        """When a round begins, in seconds. The first one has the number 1."""
        return BEFORE + (number - 1) * (MOVES + RESTS)

    def _shown(self, begin: float, end: float) -> str:
        """What is seen from ``begin`` to ``end`` alone."""
        times, values = [0.0], ["1" if begin == 0 else "0"]
        for time, value in ((begin, "1"), (end, "0")):
            if 0 < time < self.seconds:
                times.append(time)
                values.append(value)
        return self._animate('<animate attributeName="opacity" calcMode="discrete"', values, times)

    def _animate(self, tag: str, values: list[str], times: list[float]) -> str:
        keys = ";".join(f"{time / self.seconds:.4f}" for time in times)
        return f'{tag} values="{";".join(values)}" keyTimes="{keys}" dur="{self.seconds:g}s" repeatCount="indefinite"/>'

    def _captions(self, wide: int, tall: int) -> list[str]:
        said = ["each rank has a vector, cut into blocks"]
        said += [f"round {number} of {self.rounds}" for number in range(1, self.rounds + 1)]
        said += ["every rank has the sum of each block"]
        begins = [0.0, *(self._begin(number) for number in range(1, self.rounds + 2)), self.seconds]
        return [
            f'<text x="{LEFT}" y="{tall - 12}" font-size="13" fill="{FAINT}" text-anchor="start" '
            f'opacity="{int(i == 0)}">{text}{self._shown(begins[i], begins[i + 1])}</text>'
            for i, text in enumerate(said)
        ]

    def _cell(self, spot: Spot) -> list[str]:
        """All that the cell shows, one after another."""
        found = [f'<rect {_box(spot)} fill="{EMPTY}" stroke="{GRID}"/>']
        changes: list[tuple[float, Shown | None]] = []
        for number, panel in enumerate(self.picture.panels):
            shown = panel.cells.get(spot)
            before = changes[-1][1] if changes else None
            if shown is not None and (before is None or before.label != shown.label):
                changes.append((0.0 if number == 0 else self._begin(number) + MOVES, shown))
        ends = [*(begin for begin, _ in changes[1:]), self.seconds]
        for (begin, shown), end in zip(changes, ends, strict=True):
            if shown is not None:
                inside = _block(spot, shown) + self._shown(begin, end)
                found.append(f'<g opacity="{int(begin == 0)}">{inside}</g>')
        return found

    def _message(self, number: int, arrow: Arrow) -> list[str]:
        """The blocks of a message, which move while its round lasts."""
        begin = self._begin(number)
        found = []
        for source, target in zip(arrow.source, arrow.target, strict=True):
            (x, y), (to_x, to_y) = _corner(source), _corner(target)
            block = _block(source, self.picture.panels[number - 1].cells[source])
            if arrow.reduces:
                block += (
                    f'<text x="{x + WIDE - 9}" y="{y + 13}" font-size="14" font-weight="bold" fill="{PLUS}">+</text>'
                )
            moves = self._animate(
                '<animateTransform attributeName="transform" type="translate"',
                ["0 0", "0 0", f"{to_x - x} {to_y - y}", f"{to_x - x} {to_y - y}"],
                [0.0, begin, begin + MOVES, self.seconds],
            )
            found.append(f'<g opacity="0">{block}{self._shown(begin, begin + MOVES)}{moves}</g>')
        return found


def _corner(spot: Spot) -> tuple[int, int]:
    rank, _, block = spot
    return LEFT + rank * (WIDE + GAP), TOP + block * TALL


def _box(spot: Spot) -> str:
    x, y = _corner(spot)
    return f'x="{x}" y="{y}" width="{WIDE}" height="{TALL}"'


def _block(spot: Spot, shown: Shown) -> str:
    """A cell's colours side by side, and its label."""
    x, y = _corner(spot)
    wide = WIDE / len(shown.colours)
    stripes = "".join(
        f'<rect x="{x + i * wide:g}" y="{y}" width="{wide:g}" height="{TALL}" fill="{OF_CELLS[number]}"/>'
        for i, number in enumerate(shown.colours)
    )
    edge = f'<rect {_box(spot)} fill="none" stroke="{GRID}"/>'
    return (
        f'{stripes}{edge}<text x="{x + WIDE / 2}" y="{y + 20}" font-size="12" fill="{INK}">{escape(shown.label)}</text>'
    )


if __name__ == "__main__":
    FILE.write_text(moving("allreduce", "ring", 4))
