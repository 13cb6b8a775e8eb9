"""Drawings of algorithms that are wrong: what happens up to the fault is drawn, and each kind of fault is marked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from mpicoll.algorithms import Algorithm, algorithms
from mpicoll.algorithms.steps import INPUT, OUTPUT, SCRATCH, Copy, Place, Recv, RecvReduce, Send, Steps, one
from mpicoll.analysis.drawing.draw import draw, pictured
from mpicoll.analysis.drawing.picture import Picture
from mpicoll.analysis.palette import FAULT
from mpicoll.cli import main

A = one(0)


def neighbours(at: Place) -> tuple[int, int]:
    return (at.rank + 1) % at.size, (at.rank - 1) % at.size


def star(at: Place) -> Steps:
    """Rank 0 combines all, and sends the result to all."""
    others = range(1, at.size)
    if at.rank:
        yield (Send(0, A, INPUT),)
        yield (Recv(0, A, OUTPUT),)
        return
    for peer in others:
        yield (RecvReduce(peer, A, INPUT if peer == 1 else OUTPUT, OUTPUT, mine_first=True),)
    yield tuple(Send(peer, A, OUTPUT) for peer in others)


def without_rank_2(at: Place) -> Steps:
    steps = [*star(at)]
    return steps[:1] + steps[2:] if at.rank == 0 else steps[1:] if at.rank == 2 else steps


def with_rank_1_twice(at: Place) -> Steps:
    steps = [*star(at)]
    if at.rank == 0:
        steps.insert(2, (RecvReduce(1, A, OUTPUT, OUTPUT, mine_first=True),))
    return [steps[0], *steps] if at.rank == 1 else steps


def last_receive_forgotten(at: Place) -> Steps:
    return [*star(at)][:1] if at.rank == 2 else star(at)


def all_send_first(at: Place) -> Steps:
    right, left = neighbours(at)
    yield (Send(right, A, INPUT),)
    yield (RecvReduce(left, A, INPUT, OUTPUT, mine_first=True),)


def race_in_a_step(at: Place) -> Steps:
    right, left = neighbours(at)
    yield (Send(right, A, INPUT), Recv(left, A, OUTPUT))


def unequal_trees(at: Place) -> Steps:
    peer = 1 - at.rank
    yield (Send(peer, A, INPUT), RecvReduce(peer, A, INPUT, SCRATCH, mine_first=True))
    yield (Copy(A, SCRATCH, OUTPUT),)


def nothing_to_send(at: Place) -> Steps:
    yield from star(at) if at.rank != 1 else ((Send(0, A, SCRATCH),), (Recv(0, A, OUTPUT),))


def other_blocks(at: Place) -> Steps:
    right, left = neighbours(at)
    yield (Copy(one(at.rank), INPUT, OUTPUT),)
    yield (Send(right, one(at.rank), OUTPUT), Recv(left, one((at.rank + 1) % at.size), OUTPUT))


def to_a_rank_that_is_not_there(at: Place) -> Steps:
    yield (Send(at.rank + 1, A, INPUT),)


def no_blocks(at: Place) -> Steps:
    yield (Recv(neighbours(at)[1], 0, OUTPUT),)  # type: ignore[arg-type]


def no_step(at: Place) -> Steps:
    yield Copy(A, INPUT, OUTPUT)  # type: ignore[misc]


def moved_block(at: Place) -> Steps:
    others = [peer for peer in range(at.size) if peer != at.rank]
    own = Copy(one(at.rank), INPUT, OUTPUT)
    yield (own, *(Send(peer, one(at.rank), INPUT) for peer in others), *(Recv(p, one(p), OUTPUT) for p in others))


def early(at: Place) -> Steps:
    """A barrier that rank 0 leaves before it has heard of the last rank."""
    last = at.size - 1
    if at.rank == 0:
        yield (Recv(1, (), SCRATCH),)
    elif at.rank == 1:
        yield (Send(0, (), INPUT),)
        yield (Recv(last, (), SCRATCH),)
    else:
        yield (Send(1, (), INPUT),)


class Expected(NamedTuple):
    """What the drawing of an algorithm of some ranks marks: the rank and its cells, each as space and block. The
    arrows at fault are (from rank, to rank, the end that is missing)."""

    collective: str
    steps: Callable[[Place], Steps]
    size: int
    words: str
    rank: int
    title: str
    cells: set[tuple[str, int]]
    arrows: set[tuple[int, int, str]]
    rounds: int
    """Of what is drawn, with that of the fault."""


FAULTS = [
    Expected("allreduce", without_rank_2, 4, "without the contribution of rank 2", 0, "after", {("", 0)}, set(), 3),
    Expected("allreduce", with_rank_1_twice, 3, "counts rank 1 twice", 0, "the fault", {("", 0)}, {(1, 0, "")}, 3),
    Expected(
        "allreduce", last_receive_forgotten, 3, "waits forever for rank 2", 0, "the fault", {("", 0)},
        {(0, 2, "target")}, 3,
    ),
    Expected(
        "allreduce", all_send_first, 3, "waits forever for rank 1 to receive", 0, "the fault", {("", 0)},
        {(0, 1, "target"), (1, 2, "target"), (2, 0, "target")}, 1,
    ),
    Expected(
        "allreduce", race_in_a_step, 3, "and the same step writes", 0, "the fault", {("", 0)},
        {(0, 1, ""), (2, 0, "")}, 1,
    ),
    Expected(
        "allreduce", unequal_trees, 2, "another order than rank 0: (1+0), not (0+1)", 1, "after", {("", 0)}, set(), 1
    ),
    Expected(
        "allreduce", nothing_to_send, 3, "reads scratch, which does not hold it", 1, "the fault", {("scratch", 0)},
        {(1, 0, "")}, 1,
    ),
    Expected(
        "allgather", other_blocks, 3, "takes blocks 1 from rank 2, which sends 2", 0, "the fault", {("", 1)},
        {(2, 0, "")}, 1,
    ),
    Expected(
        "allreduce", to_a_rank_that_is_not_there, 3, "names rank 3 as its peer", 2, "the fault", {("", 0)}, set(), 1
    ),
    Expected("allreduce", no_blocks, 3, "names blocks 0, which is no tuple of ranges", 0, "the fault", set(), set(), 1),
    Expected("allreduce", no_step, 3, "is not a tuple of actions", 0, "the fault", set(), set(), 1),
    Expected("alltoall", moved_block, 3, "ends with block 1 of rank 1, not 0 of 1", 0, "after", {("", 1)}, set(), 1),
    Expected("barrier", early, 3, "leaves without having heard of rank 2", 0, "after", {("", 0)}, set(), 2),
]  # fmt: skip
every = pytest.mark.parametrize("expected", FAULTS, ids=lambda e: e.steps.__name__)


def wrong(expected: Expected) -> Algorithm:
    from mpicoll.algorithms.steps import per_rank, whole

    cut = per_rank if expected.collective in ("allgather", "alltoall") else whole
    return Algorithm(expected.collective, expected.steps.__name__, expected.steps, cut)


def marked(picture: Picture) -> set[tuple[str, int]]:
    assert picture.fault is not None
    last = picture.panels[-1]
    assert {rank for rank, _, _ in last.at_fault} <= {picture.fault.rank}
    assert not any(panel.at_fault for panel in picture.panels[:-1])
    return {(picture.strips[strip], block) for _, strip, block in last.at_fault}


@every
def test_a_fault_is_marked(expected: Expected) -> None:
    found = pictured(wrong(expected), expected.size)
    assert found.fault is not None
    assert expected.words in found.fault.problem
    assert found.fault.rank == expected.rank
    last = found.panels[-1]
    assert last.title == expected.title
    assert len(found.panels) - 1 == expected.rounds
    assert marked(found) == expected.cells
    arrows = {(a.source[0][0], a.target[0][0], a.missing) for a in last.arrows if a.wrong}
    assert arrows == expected.arrows
    assert not any(arrow.wrong for panel in found.panels[:-1] for arrow in panel.arrows)


@every
def test_the_file_is_written_and_shows_the_line_of_the_proof(expected: Expected, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "fault.svg"
    drawing = draw(expected.collective, wrong(expected), expected.size)
    drawing.save(file)
    text = file.read_text()
    assert drawing.fault is not None
    assert f"{drawing.fault.what}: rank {expected.rank}" in text
    assert FAULT in text


def test_rounds_before_a_fault_are_those_that_happen() -> None:
    """Rank 0 has combined ranks 1 and 2 when it counts rank 1 again. What comes after that is not drawn."""
    expected = next(e for e in FAULTS if e.steps is with_rank_1_twice)
    panels = pictured(wrong(expected), 3).panels
    assert [[(a.source[0][0], a.target[0][0]) for a in panel.arrows] for panel in panels] == [
        [], [(1, 0)], [(2, 0)], [(1, 0)],
    ]  # fmt: skip
    assert panels[2].cells[0, 0, 0].label == "Σ"


def test_nothing_can_run(tmp_path: Path) -> None:
    """The ranks cut the vector into different numbers of blocks. The drawing shows what they begin with."""
    pytest.importorskip("matplotlib")
    algorithm = Algorithm("allreduce", "cuts", star, lambda at: 1 + at.rank)
    draw("allreduce", algorithm, 3).save(tmp_path / "a.svg")
    assert "before" in (tmp_path / "a.svg").read_text()
    found = pictured(algorithm, 3)
    assert [panel.title for panel in found.panels] == ["before"]
    assert found.fault is not None
    assert found.fault.rank == 1


# -- the command ------------------------------------------------------------------------------------------------------


OWN = '''
import helper
import mpicoll
from mpicoll.algorithms.steps import INPUT, OUTPUT, Recv, Send, one


def swapped(at):
    """Both send what they have, and keep what they get."""
    if at.size > 2:
        raise ZeroDivisionError("no third rank")
    peer = 1 - at.rank
    yield (Send(peer, one(0), INPUT), Recv(peer, one(0), helper.INTO))


mpicoll.register(mpicoll.Algorithm("allreduce", "swapped", swapped))
mpicoll.register(mpicoll.Algorithm("bcast", "swapped", swapped))
if {several}:
    mpicoll.register(mpicoll.Algorithm("allreduce", "other", swapped))
'''


def own(folder: Path, several: bool = False) -> str:
    (folder / "helper.py").write_text('INTO = "scratch"\n')
    file = folder / "own.py"
    file.write_text(OWN.replace("{several}", str(several)))
    return str(file)


def test_command_with_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    file = own(tmp_path)
    before = [*algorithms()]
    for picture in (tmp_path / "a.svg", tmp_path / "a.png"):
        assert main(["draw", "all_reduce", file, "-n", "2", "-o", str(picture)]) == 1
        said = capsys.readouterr().err
        assert said == "mpicoll: allreduce swapped of 2 ranks: rank 0, block 0: ends without it\n"
        assert picture.exists()
    assert [*algorithms()] == before


def test_command_with_one_of_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    file, options = own(tmp_path, several=True), ["-n", "2", "-o", str(tmp_path / "a.svg")]
    assert main(["draw", "allreduce", f"{file}:other", *options]) == 1
    assert "allreduce other of 2 ranks" in capsys.readouterr().err
    for given in (file, f"{file}:third"):
        assert main(["draw", "allreduce", given, *options]) == 2
        expected = f"algorithm: expected {file}:swapped or {file}:other; given '{given}'"
        assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [("x = 1\nraise ValueError('of the file')\n", ", line 2 (ValueError: of the file)"), ("x=(", " (SyntaxError: ")],
)
def test_a_file_that_does_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    file = tmp_path / "own.py"
    file.write_text(text)
    assert main(["draw", "allreduce", str(file), "-o", str(tmp_path / "own.svg")]) == 2
    assert f"draw: algorithm: expected a file that runs; given {str(file)!r}{said}" in capsys.readouterr().err
    assert main(["draw", "reduce", own(tmp_path), "-o", "a.svg"]) == 2
    assert "draw: algorithm: expected a file that registers one for reduce; given " in capsys.readouterr().err
