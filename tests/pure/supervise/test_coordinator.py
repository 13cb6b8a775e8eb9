"""What the coordinator of a job finds in the calls of its ranks, and what it leaves alone."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest

from mpicoll.supervise import ending, ranks
from mpicoll.supervise.agent import Agent, Leave, StatusOf
from mpicoll.supervise.messages import Answer
from mpicoll.supervise.ranks import SECONDS_TO_ANSWER
from mpicoll.supervise.record import FREED, LENGTH
from mpicoll.supervise.report import Why
from tests.pure.supervise.invented import Job, begin, ends, looks, scene, until

Output = pytest.CaptureFixture[str]


@scene()
async def test_nobody_goes_before_the_end_is_said(it: Job, capfd: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank whose call has failed asks for a comparison, and others take long to say what they called."""
    told: list[Any] = []
    gone_at_end: list[list[Any]] = []
    obey, ask = Agent._obey, ranks.Processes.ask

    def note(self: Agent, message: object) -> None:
        told.append(message)
        obey(self, message)

    async def slowly(self: Any, ranks: Any, question: Any, seconds: float = SECONDS_TO_ANSWER) -> Any:
        if isinstance(question, StatusOf):
            await looks(20)
        return await ask(self, ranks, question, seconds)

    monkeypatch.setattr(Agent, "_obey", note)
    monkeypatch.setattr(ranks.Processes, "ask", slowly)
    monkeypatch.setattr(ending, "end", lambda _: gone_at_end.append([m for m in told if type(m) in (Answer, Leave)]))
    it.make(times=3)
    await until(lambda: it.compared() == 3)
    it.make("barrier", "bcast")
    agent = it.ranks[1].agent
    asking = asyncio.ensure_future(agent.compare(agent.watched["c"]))
    await until(lambda: bool(gone_at_end))
    asking.cancel()  # the job has ended
    assert gone_at_end == [[]]
    assert Why.DIFFERENT.value in capfd.readouterr().err


@pytest.mark.parametrize("more", [0, 1, LENGTH - 4, LENGTH - 3, LENGTH])
@scene()
async def test_a_difference_found_at_the_end(it: Job, more: int, capfd: Output) -> None:
    """Ranks have made other calls since, and leave."""
    it.make(times=3)
    it.make("barrier", "barrier", "bcast")
    it.make(times=more)
    await it.all_leave()
    assert len(ends) == 1
    said = capfd.readouterr().err
    assert Why.DIFFERENT.value in said
    assert "ranks 0-1  call 3: barrier" in said
    assert "rank 2     call 3: bcast" in said


@pytest.mark.parametrize("forgotten", [False, True])
@scene()
async def test_a_difference_of_long_ago(it: Job, forgotten: bool, capfd: Output) -> None:
    if forgotten:
        for recorder in it.recorders:
            recorder._rings = deque(maxlen=3)
    it.make(times=77)
    it.make("barrier", "bcast")
    it.make(times=20 * LENGTH)
    await it.all_leave()
    assert len(ends) == 1
    said = capfd.readouterr().err
    if forgotten:
        assert Why.FORGOTTEN.value in said
    else:
        assert Why.DIFFERENT.value in said
        assert f"ranks 0-2  call 77: they have made {20 * LENGTH} calls since, and have forgotten this one" in said


@scene()
async def test_others_that_come_to_their_ends_soon_after_one(it: Job, capfd: Output) -> None:
    """Else the report would say to look at the rank that has ended, and not at the one that makes a call more."""
    it.make()
    begin(it.recorders[0], "bcast")
    for rank in (1, 2):
        it.ranks[rank].agent.leave()
        known = it.coordinator._processes
        await until(lambda: rank in known and known[rank].left is not None)  # noqa: B023
        known[rank].left = -600.0  # just now, for some looks
        await looks(20)
        assert not ends
    known[1].left = 600.0
    await until(lambda: bool(ends))
    assert f"{Why.HAS_LEFT.said()} (communicator of ranks 0-2). Look at rank 0:" in capfd.readouterr().err


@scene(started=2)
async def test_a_rank_comes_late(it: Job, capfd: Output) -> None:
    it.make()
    for recorder in it.recorders:
        begin(recorder, "bcast")
    it.ranks[0].agent.leave()
    await looks(20)
    assert not ends
    it.recorders[0].under_way = False
    it.add()
    begin(it.recorders[2], "barrier")
    it.recorders[2].under_way = False
    begin(it.recorders[2], "bcast")
    await until(lambda: it.compared() == 2)
    assert not ends


@pytest.mark.parametrize("how", ["freed", "closed", "broken"])
@scene()
async def test_what_is_over_is_forgotten(it: Job, how: str) -> None:
    for i in range(300):
        for rank in it.ranks:
            recorder = rank.joins(f"s{i}", it.all)
            begin(recorder, "bcast")
            recorder.under_way = how == "broken"
            if how == "freed":
                recorder.state = FREED
            recorder.close()
    await until(lambda: all(len(rank.agent.watched) == 1 for rank in it.ranks))
    assert [*it.coordinator._communicators] == ["c"]
    assert not ends


@pytest.mark.slow
@scene()
async def test_one_warning(it: Job, capfd: Output) -> None:
    """While a rank is still busy, and makes other calls. A later wait has a warning of its own."""

    said = ""

    def warnings() -> int:
        nonlocal said
        said += capfd.readouterr().err
        return said.count(Why.SLOW.value)

    it.make()
    for times in (1, 2):
        begin(it.recorders[0], "bcast")
        await until(lambda: warnings() >= times)  # noqa: B023  # it is awaited here
        await looks(50)
        it.recorders[0].under_way = False
        for r in (1, 2):
            begin(it.recorders[r], "bcast")
            it.recorders[r].under_way = False
        await until(lambda: not it.coordinator._communicators["c"].warned)
    assert warnings() == 2
    assert "ranks 1-2  have not arrived: their last call was" in said
    assert not ends
