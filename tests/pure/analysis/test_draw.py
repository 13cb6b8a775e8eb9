"""Drawings: what they show is what the schedules do and what the collectives mean; files, and bad input."""

from __future__ import annotations

import re
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import mpicoll
from mpicoll.algorithms import Algorithm, algorithms
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.algorithms.steps import INPUT, OUTPUT, SCRATCH, Copy, Place, RecvReduce, Send, Steps, one
from mpicoll.analysis.drawing.draw import draw, pictured, usual_nodes, usual_segments
from mpicoll.analysis.drawing.picture import Picture
from mpicoll.analysis.palette import of_cell
from mpicoll.analysis.proof.cases import prove
from mpicoll.errors import ArgumentError
from tests.known import known

ALL = [(a, size) for a in algorithms() for size in (3, 4)]
every = pytest.mark.parametrize(("algorithm", "size"), ALL, ids=[f"{a.collective}-{a.name}-{n}" for a, n in ALL])


def roots(collective: str, size: int) -> range:
    return range(size if COLLECTIVES[collective].rooted else 1)


@every
def test_a_drawing_shows_what_happens(algorithm: Algorithm, size: int) -> None:
    """Each message is an arrow, which brings what it comes from. tests/pure/docs looks at the ends."""
    for root in roots(algorithm.collective, size):
        picture = pictured(algorithm, size, root)
        arrows = [arrow for panel in picture.panels for arrow in panel.arrows]
        proof = prove(algorithm, size, root, usual_segments(algorithm), usual_nodes(algorithm, size))
        assert sum(not arrow.local for arrow in arrows) == proof.messages
        assert all(arrow.source and len(arrow.source) == len(arrow.target) for arrow in arrows)
        assert_arrows_bring(picture, algorithm.collective)


def assert_arrows_bring(picture: Picture, collective: str) -> None:
    ends = [
        (arrow.reduces, before, after, source, target)
        for before, after in pairwise(picture.panels)
        for arrow in after.arrows
        for source, target in zip(arrow.source, arrow.target, strict=True)
    ]
    for reduces, before, after, source, target in ends:
        brought, found = before.cells[source], after.cells[target]
        assert found.fresh
        if reduces:
            rank, _, block = target
            # A rank may add to its input, which is the last strip, and write the sum elsewhere.
            had = before.cells.get(target) or before.cells[rank, len(picture.strips) - 1, block]
            assert set(found.colours) == set(brought.colours) | set(had.colours)
            assert not set(brought.colours) & set(had.colours)
        elif collective != "barrier":
            assert found[:2] == brought[:2]


@pytest.mark.parametrize(
    ("collective", "name", "size", "segments", "messages"),
    [
        ("bcast", "binomial_tree", 8, None, [1, 2, 4]),
        ("bcast", "chain", 4, 3, [1, 2, 3, 2, 1]),
        ("allreduce", "ring", 4, None, [4] * 6),
        ("allreduce", "recursive_doubling", 5, None, [3, 2, 4, 1]),
        ("alltoall", "bruck", 4, None, [3, 4, 4, 4]),
        ("barrier", "dissemination", 5, None, [5] * 3),
    ],
)
def test_rounds(collective: str, name: str, size: int, segments: int | None, messages: list[int]) -> None:
    panels = pictured(known(collective, name), size, 0, segments).panels
    assert [len(panel.arrows) for panel in panels[1:]] == messages


# -- files ------------------------------------------------------------------------------------------------------------


def test_svg_is_text_and_always_the_same(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for file in files:
        draw("allreduce", "ring", 3).save(file)
    text = files[0].read_text()
    assert text == files[1].read_text()
    assert text.startswith("<?xml")
    assert all(f">{label}<" in text for label in ("allreduce ring", "rank 2", "0+2", "Σ", "before", "after", "round 4"))
    assert text.count(">Σ<") == 3 + 6 + 9
    assert "date" not in text.lower()


@pytest.mark.parametrize("many", [1, 16, 17, 300])
def test_colours_do_not_repeat(many: int) -> None:
    assert len({of_cell(number, many) for number in range(many)}) == many


# -- in a program and a notebook --------------------------------------------------------------------------------------


def gossip(at: Place) -> Steps:
    """Each rank of two sends what it has, and combines what it gets."""
    peer, first = 1 - at.rank, at.rank == 0
    yield (Send(peer, one(0), INPUT), RecvReduce(peer, one(0), INPUT, SCRATCH, mine_first=first))
    yield (Copy(one(0), SCRATCH, OUTPUT),)


def test_a_function_that_was_just_written() -> None:
    drawing = mpicoll.draw("all_reduce", gossip, 2)
    assert repr(drawing) == "<allreduce gossip, 2 ranks: 1 round>"
    assert drawing.fault is None
    assert [*algorithms("allreduce")] == [a for a in algorithms("allreduce") if a.name != "gossip"]
    same = mpicoll.draw("allreduce", Algorithm("allreduce", "gossip", gossip), 2)
    assert same.picture == drawing.picture
    (page,) = re.findall(r'^<iframe srcdoc="([^"]*)" style="[^"]*" onload="[^"]*"></iframe>$', drawing._repr_html_())
    assert "<title>allreduce gossip, 2 ranks</title>" in unescape(page)
    pytest.importorskip("matplotlib")
    assert "allreduce gossip" in (drawing._repr_svg_() or "")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("allreduce", 3), "expected a name, an Algorithm, or a function from a Place to steps; given 3"),
        (("bcast", Algorithm("allreduce", "gossip", gossip)), "expected one for bcast; given gossip, which is"),
        (("allreduce", gossip, "2"), "draw: ranks: expected 2 to 16 ranks; given '2'"),
        (("barrier", "two_level", 4, 0, None, [0, 1]), r"expected the node of each of 4 ranks; given \[0, 1\]"),
        (("barrier", "two_level", 4, 0, None, 2), "draw: nodes: expected the node of each of 4 ranks; given 2"),
        (("bcast", "chain", 4, "1"), "draw: root: expected a rank, 0 to 3; given '1'"),
        (("bcast", "chain", 4, 0, 2.5), "draw: segments: expected a number, at least 1; given 2.5"),
        (("allreduce", "ring", 4, 0, None, [0, 0, 1, 1]), "draw: nodes: expected none, as ring does not go by nodes"),
    ],
)
def test_wrong_arguments(given: Any, said: str) -> None:
    """The rest of them is among those that the command refuses."""
    with pytest.raises(ArgumentError, match=said):
        mpicoll.draw(*given)
