"""What a recording costs: invented calls, whose times are plain to see."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mpicoll.profile.costs import Costs, costs
from mpicoll.profile.recording import ASYNCHRONOUS, Call, Communicator, Recording, Span
from mpicoll.profile.report import text

WORLD = Communicator("c.1", (0, 1))
PROGRAM = "program"


def call(rank: int, number: int | None, begin: float, end: float, operation: str = "allreduce", **named: Any) -> Call:
    """One that blocks from ``begin`` to ``end``."""
    plain = Call(
        rank=rank, thread=PROGRAM, communicator=WORLD, number=number, operation=operation, description=operation,
        nbytes=8, elements=1, dtype="float64", root=None, sources=(), source_tag=None, targets=(), target_tag=None,
        site="train.py:3 in step", is_over=True, issued=begin, method=(begin, end), waits=(),
        complete=end, backward=None,
    )  # fmt: skip
    return replace(plain, **named)


def begun(rank: int, number: int, issued: float, wait: Span, **named: Any) -> Call:
    """One that does not block."""
    return call(rank, number, issued, issued + 1, "iallreduce", waits=(wait,), complete=wait[1], **named)


def of(*calls: Call, time: float = 1000.0) -> Costs:
    ranks = sorted({each.rank for each in calls})
    return costs(recording(*calls, spans=dict.fromkeys(ranks, (0.0, time))))


def recording(*calls: Call, spans: dict[int, Span], size: int = 2) -> Recording:
    return Recording(sorted(calls, key=lambda each: each.issued), spans, dict.fromkeys(spans, "here"), size)


def test_a_call_that_blocks_is_exposed() -> None:
    found = of(call(0, 0, 100, 400), call(1, 0, 300, 400))
    first, second = found.ranks
    assert (first.exposed, first.computing, first.hidden, first.late) == (300, 700, 0, 200)
    assert (second.exposed, second.late) == (100, 0)
    assert dict(found.last) == {1: 200, 0: 0}


def test_what_is_under_way_while_the_program_goes_on_is_hidden() -> None:
    (first,) = of(begun(0, 0, 100, (500, 600))).ranks
    assert (first.exposed, first.hidden) == (101, 399)


def test_one_wait_for_several_calls_counts_once() -> None:
    found = of(begun(0, 0, 100, (500, 600), site="a"), begun(0, 1, 200, (500, 700), site="b"))
    assert found.ranks[0].exposed == 202
    assert {each.site: each.exposed for each in found.sites} == {"a": 101, "b": 101}


def test_an_asynchronous_call_that_nobody_waits_for_is_hidden() -> None:
    (first,) = of(call(0, 0, 100, 400, thread=ASYNCHRONOUS)).ranks
    assert (first.exposed, first.hidden) == (0, 300)


@pytest.mark.parametrize(
    ("operation", "root", "late"),
    [("allreduce", None, [300, 0]), ("bcast", 0, [0, 0]), ("bcast", 1, [300, 0]), ("reduce", 0, [300, 0]),
     ("reduce", 1, [0, 0]), ("scan", None, [0, 0]), ("alltoallv", None, [0, 0]), ("allgather_object", None, [300, 0]),
     ("iallreduce", None, [300, 0]), ("reduce", None, [0, 0])],
)  # fmt: skip
def test_a_rank_waits_for_those_whose_data_it_needs(operation: str, root: int | None, late: list[float]) -> None:
    """Rank 1 comes 300 microseconds after rank 0."""
    found = of(*(call(rank, 0, 100 + 300 * rank, 500, operation, root=root) for rank in (0, 1)))
    assert [each.late for each in found.ranks] == late


def test_the_last_of_several_ranks_is_waited_for() -> None:
    three = Communicator("c.3", (0, 1, 2))
    found = of(*(call(rank, 0, 100 + 200 * rank, 700, communicator=three) for rank in range(3)))
    assert [each.late for each in found.ranks] == [400, 200, 0]
    assert found.last[2] == 600


def test_a_receive_waits_for_its_send() -> None:
    sent = [call(0, None, begin, begin + 1, "send", targets=(1,), target_tag=0) for begin in (300, 600)]
    came = [call(1, None, begin, end, "recv", sources=(0,), source_tag=0) for begin, end in ((100, 310), (590, 620))]
    assert of(*sent, *came).ranks[1].late == 210
    assert of(*sent, came[0]).ranks[1].late == 0, "nobody knows which of them came"
    assert of(*sent, *(replace(each, source_tag=None) for each in came)).ranks[1].late == 0


def test_the_text_names_what_is_missing() -> None:
    mine = recording(call(0, 0, 100, 400), spans={0: (0.0, 1000.0)}, size=4)
    said = text("step.json", mine, costs(mine)).splitlines()
    assert said[0] == "step.json: 1 call of rank 0 of 4 on 1 node in 1 ms"
    assert said[4].split() == ["rank", "0", "1", "ms", "700", "us", "300", "us", "30%", "0", "us", "0", "us"]
    empty = recording(spans={0: (0.0, 1000.0)})
    assert "It has no calls" in text("step.json", empty, costs(empty))
