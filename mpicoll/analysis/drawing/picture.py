"""What a drawing shows, before any line is drawn: panels of cells, and arrows from each panel to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.algorithms.steps import INPUT, OUTPUT, SCRATCH, Space, merged
from mpicoll.analysis.drawing.trace import Block, Cell, Fault, Missing, Move, Tracing, given, results
from mpicoll.analysis.proof.rules import shown
from mpicoll.errors import ScheduleError

MOST_RANKS = 16

Spot = tuple[int, int, int]  # a cell of a panel: rank, strip and block
Holds = Mapping[Cell, Block]  # what the cells hold. The cell that was written last is the last one.


class Shown(NamedTuple):
    """A cell's label, the numbers of the colours that share it, and whether its round wrote it."""

    label: str
    colours: tuple[int, ...]
    fresh: bool


class Arrow(NamedTuple):
    """A message or a local copy, from cells of the panel before. One end of a ``wrong`` one may be missing."""

    source: tuple[Spot, ...]
    target: tuple[Spot, ...]
    label: str
    reduces: bool
    local: bool
    wrong: bool = False
    missing: Missing = ""


class Panel(NamedTuple):
    """What the ranks hold at one time, and the arrows that led to it. The cells ``at_fault`` are those of a fault."""

    title: str
    cells: Mapping[Spot, Shown]
    arrows: tuple[Arrow, ...] = ()
    at_fault: frozenset[Spot] = frozenset()


class Picture(NamedTuple):
    """The panels in the order of time. Every rank has its ``strips`` side by side. A strip is a column of ``blocks``
    cells. The last panel marks the ``fault`` of an algorithm that is wrong."""

    collective: str
    ranks: int
    blocks: int
    strips: tuple[str, ...]
    panels: tuple[Panel, ...]
    fault: ScheduleError | None = None

    @property
    def colours(self) -> int:
        """How many colours there are: one for each rank, or for each block where all come from the root."""
        return self.blocks if COLLECTIVES[self.collective].root == "gives" else self.ranks


def meaning(collective: str, size: int, root: int) -> Picture:
    """What ranks hold before and after a collective. A vector that no rule cuts is one block."""
    table = COLLECTIVES[collective]
    blocks = size if table.by_rank else 1
    scene = _Scene(collective, size, blocks, ())
    before = Panel("before", scene.cells(dict(given(collective, size, root, blocks))))
    after = Panel("after", scene.cells(dict(results(collective, size, root, blocks))))
    return Picture(collective, size, blocks, ("",), (before, after))


def picture(found: Tracing, fault: Fault | None = None) -> Picture:
    """The panels of what was traced: one before it, and one after each round. The last shows the result or the fault.
    The spaces of a rank are one strip, whose cells show what was written last, unless some message reads anything else.
    """
    rounds, marks = (fault.rounds, fault.marks) if fault else (found.rounds, ())
    what = found.collective, found.size, found.root, found.blocks
    scene = _Scene(found.collective, found.size, found.blocks, _spaces(found, rounds, marks))
    holds = dict(given(*what))
    panels = [Panel("before", scene.cells(holds))]
    holds |= found.written(0)
    for number in range(1, rounds + 1):
        _write(holds, found.written(number))
        moves = found.moved(number)
        if number == rounds and (fault is None or fault.ended):
            wanted = dict(results(*what))
            holds = {cell: block for cell, block in holds.items() if cell in wanted}
        fresh = {cell for move in moves for cell in move.writes}
        panels.append(Panel("", scene.cells(holds, fresh), tuple(scene.arrow(move) for move in moves)))
    if rounds:
        wrong = (scene.arrow(mark, wrong=True) for mark in marks)
        arrows = panels[-1].arrows + tuple(arrow for arrow in wrong if arrow.source and arrow.target)
        title = "the fault" if fault and not fault.ended else "after"
        at_fault = frozenset(scene.seen(fault.cells if fault else ()))
        panels[-1] = panels[-1]._replace(title=title, arrows=arrows, at_fault=at_fault)
    error = None if fault is None else fault.error
    return Picture(found.collective, found.size, found.blocks, scene.names, tuple(panels), error)


class _Scene:
    """How the cells of one collective are shown. Each of the ``spaces`` is a strip. Without any, all are one."""

    def __init__(self, collective: str, size: int, blocks: int, spaces: tuple[Space, ...]) -> None:
        self.table, self.size, self.blocks = COLLECTIVES[collective], size, blocks
        self.strip = {space: spaces.index(space) if space in spaces else 0 for space in _NAMES}
        self.names = tuple(_NAMES[space] for space in spaces) or ("",)

    def spot(self, cell: Cell) -> Spot:
        return cell.rank, self.strip.get(cell.space, 0), cell.block

    def cells(self, holds: Holds, fresh: Iterable[Cell] = ()) -> dict[Spot, Shown]:
        spots = {self.spot(cell) for cell in fresh}
        found = {self.spot(cell): block for cell, block in holds.items()}
        return {spot: Shown(self.label(block), self.colours(block), spot in spots) for spot, block in found.items()}

    def arrow(self, move: Move, wrong: bool = False) -> Arrow:
        label = shown(move.sent) if self.blocks > 1 and not move.local else ""
        reduces = move.reduces and self.table.reduces
        return Arrow(self.seen(move.reads), self.seen(move.writes), label, reduces, move.local, wrong, move.missing)

    def seen(self, cells: Iterable[Cell]) -> tuple[Spot, ...]:
        """The cells that exist. A wrong schedule may name others."""
        ranks, blocks = range(self.size), range(self.blocks)
        return tuple(self.spot(cell) for cell in cells if cell.rank in ranks and cell.block in blocks)

    def label(self, block: Block) -> str:
        """Whose contributions a block holds, or which block it is where all contributions come from the root."""
        if self.table.root == "gives":
            return str(block.block)
        if self.table.gives == self.table.gets == "p":
            return f"{min(block.ranks)}→{block.block}"
        if len(block.ranks) == self.size:
            return "Σ" if self.table.moves else "all"
        # Four or more ranks that follow each other are written as 0…3.
        between = "+" if self.table.moves else ","
        runs = merged(block.ranks)
        return between.join(f"{r[0]}…{r[-1]}" if len(r) > 3 else between.join(map(str, r)) for r in runs)

    def colours(self, block: Block) -> tuple[int, ...]:
        return (block.block,) if self.table.root == "gives" else tuple(sorted(block.ranks))


# A message reads the strips on the right and writes the strips on the left, so that its arrow crosses no strip.
_NAMES: dict[Space, str] = {OUTPUT: "out", SCRATCH: "scratch", INPUT: "in"}


def _spaces(found: Tracing, rounds: int, marks: Iterable[Move]) -> tuple[Space, ...]:
    """The spaces that must be strips, because a message reads what was not written last. Mostly there are none."""
    used = {cell.space for number, cell, _ in found.writes if number <= rounds}
    holds: dict[Cell, Block] = {}
    for number in range(rounds + 1):
        reads = [cell for move in found.moved(number) for cell in move.reads]
        if number == rounds and not found.signals:
            wrong = [cell for mark in marks for cell in mark.combines]
            wrong += [cell for mark in marks if mark.missing != "source" for cell in mark.reads]
            reads += wrong
            written = [cell for mark in marks if not mark.missing for cell in mark.writes]
            used |= {cell.space for cell in wrong + written if cell.space in _NAMES}
        last = {(cell.rank, cell.block): block for cell, block in holds.items()}
        if any(last.get((cell.rank, cell.block)) != holds.get(cell) for cell in reads):
            return tuple(space for space in _NAMES if space in used)
        _write(holds, found.written(number))
    return ()


def _write(holds: dict[Cell, Block], writes: Iterable[tuple[Cell, Block]]) -> None:
    for cell, block in writes:
        holds.pop(cell, None)
        holds[cell] = block
