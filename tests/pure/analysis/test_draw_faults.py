"""Drawings of algorithms that are wrong: what happens up to the fault is drawn, and each kind of fault is marked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mpicoll import algorithms
from mpicoll.algorithms import Algorithm
from mpicoll.algorithms.steps import INPUT, OUTPUT, SCRATCH, Copy, Place, Recv, RecvReduce, Send, Steps, one
from mpicoll.analysis.drawing.draw import draw, pictured
from mpicoll.analysis.drawing.page import PLAYER, SCRIPTS, STYLE
from mpicoll.analysis.drawing.picture import Picture
from mpicoll.analysis.palette import FAULT
from mpicoll.cli import main
from tests.known import star

Capture = pytest.CaptureFixture[str]

A = one(0)


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


def nothing_to_send(at: Place) -> Steps:
    yield from star(at) if at.rank != 1 else ((Send(0, A, SCRATCH),), (Recv(0, A, OUTPUT),))


class Expected(NamedTuple):
    """What the drawing of an algorithm of some ranks marks: the rank and its cells, each as space and block. The
    arrows at fault are (from rank, to rank, the end that is missing)."""

    steps: Callable[[Place], Any]
    size: int
    words: str
    rank: int
    title: str
    cells: set[tuple[str, int]]
    arrows: set[tuple[int, int, str]]
    rounds: int
    """Of what is drawn, with that of the fault."""


FAULTS = [
    Expected(without_rank_2, 4, "without the contribution of rank 2", 0, "after", {("", 0)}, set(), 3),
    Expected(with_rank_1_twice, 3, "counts rank 1 twice", 0, "the fault", {("", 0)}, {(1, 0, "")}, 3),
    Expected(
        last_receive_forgotten, 3, "waits forever for rank 2", 0, "the fault", {("", 0)},
        {(0, 2, "target")}, 3,
    ),
    Expected(
        nothing_to_send, 3, "reads scratch, which does not hold it", 1, "the fault", {("scratch", 0)},
        {(1, 0, "")}, 1,
    ),
    Expected(
        lambda at: [(Send((at.rank + 1) % at.size, A, INPUT),), (Recv((at.rank - 1) % at.size, A, OUTPUT),)],
        3, "waits forever for rank 1 to receive", 0, "the fault", {("", 0)},
        {(0, 1, "target"), (1, 2, "target"), (2, 0, "target")}, 1,
    ),
    Expected(
        lambda at: [(Send(at.rank + 1, A, INPUT),)], 3, "names rank 3 as its peer", 2, "the fault", {("", 0)}, set(), 1
    ),
    Expected(lambda at: [Copy(A, INPUT, OUTPUT)], 3, "is not a tuple of actions", 0, "the fault", set(), set(), 1),
]  # fmt: skip


def wrong(expected: Expected) -> Algorithm:
    return Algorithm("allreduce", "wrong", expected.steps)


def marked(picture: Picture) -> set[tuple[str, int]]:
    assert picture.fault is not None
    last = picture.panels[-1]
    assert {rank for rank, _, _ in last.at_fault} <= {picture.fault.rank}
    assert not any(panel.at_fault for panel in picture.panels[:-1])
    return {(picture.strips[strip], block) for _, strip, block in last.at_fault}


@pytest.mark.parametrize("expected", FAULTS, ids=lambda e: e.words)
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


def test_rounds_before_a_fault_are_those_that_happen(tmp_path: Path) -> None:
    """Rank 0 has combined ranks 1 and 2 when it counts rank 1 again. What comes after that is not drawn."""
    drawing = draw("allreduce", wrong(next(e for e in FAULTS if e.steps is with_rank_1_twice)), 3)
    panels = drawing.picture.panels
    messages = [[(a.source[0][0], a.target[0][0]) for a in panel.arrows] for panel in panels]
    assert messages == [[], [(1, 0)], [(2, 0)], [(1, 0)]]
    assert panels[2].cells[0, 0, 0].label == "Σ"
    pytest.importorskip("matplotlib")
    drawing.save(tmp_path / "fault.svg")
    text = (tmp_path / "fault.svg").read_text()
    assert drawing.fault is not None
    assert f"{drawing.fault.what}: rank 0" in text
    assert FAULT in text


# -- the page ---------------------------------------------------------------------------------------------------------


def of_input(at: Place) -> Steps:
    """The star, whose rank 0 combines its input twice, and so loses rank 1."""
    if at.rank:
        yield from star(at)
    for peer in range(1, at.size) if at.rank == 0 else ():
        yield (RecvReduce(peer, A, INPUT, OUTPUT, mine_first=True),)  # </script>


def page(steps: Callable[[Place], Steps], tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """The page of the function among 3 ranks, and the data in it."""
    file = tmp_path / "page.html"
    draw("allreduce", steps, 3).save(file)
    text = file.read_text(encoding="utf-8")
    found = re.search(r"^const SCHEDULES = (.*);$", text, re.MULTILINE)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return text, data


def test_a_page_is_the_player_and_one_schedule(tmp_path: Path) -> None:
    text, data = page(star, tmp_path)
    for file in (*SCRIPTS, STYLE):
        assert (PLAYER / file).read_text() in text
    assert "<title>allreduce star, 3 ranks</title>" in text
    assert re.findall(r"""(?:src|href)\s*=\s*["']?\w+|https?://(?!www.w3.org/2000/svg)""", text) == []
    picture = data["pictures"]["allreduce"]["star"].pop("3")
    assert data["pictures"] == {"allreduce": {"star": {}}}
    assert "fault" not in picture
    assert [len(each["arrows"]) for each in picture["rounds"]] == [1, 1, 2]
    assert picture["rounds"][0]["arrows"] == [[[1], [0], "combines"]]
    times = [seconds for seconds, _ in picture["times"]]
    assert len(times) == len(data["sizes"])
    assert times == sorted(times)


def test_a_fault_is_marked_where_it_happens(tmp_path: Path) -> None:
    text, data = page(of_input, tmp_path)
    picture = data["pictures"]["allreduce"]["of_input"]["3"]
    said = "allreduce of_input of 3 ranks: rank 0, step 1, block 0: reads input, after"
    assert picture["fault"]["text"].startswith(said)
    assert picture["fault"]["rank"] == 0
    assert picture["strips"] == ["out", "in"]
    assert picture["fault"]["cells"] == [0, 1]  # of rank 0: the output that is lost, and the input that is read
    assert [each["arrows"] for each in picture["rounds"]] == [
        [[[3], [0], "combines"]],
        [[[5], [0], "combines", "wrong"]],
    ]
    assert "times" not in picture
    assert "# </script>" in picture["fault"]["text"], "it ends no script"
    assert text.count("</script>") == 1


@pytest.mark.usefixtures("registry")
def test_the_command_says_the_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    algorithms.add(Algorithm("allreduce", "of_input", of_input))
    assert main(["draw", "allreduce", "of_input", "-n", "3", "-o", str(tmp_path / "page.html")]) == 1
    assert capsys.readouterr().err.startswith("mpicoll: allreduce of_input of 3 ranks: rank 0, step 1, block 0: reads")
    assert (tmp_path / "page.html").exists()
