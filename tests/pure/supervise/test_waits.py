"""What the coordinator of a job finds in its ranks' waits for messages: which of them never end, and which may."""

from __future__ import annotations

from time import monotonic

import pytest

from mpicoll.supervise import deadlock, watched
from mpicoll.supervise.messages import Ends
from mpicoll.supervise.record import Pending
from mpicoll.supervise.report import Why
from tests.pure.supervise.invented import Job, begin, ends, looks, scene, until

Output = pytest.CaptureFixture[str]


def waits_for_message(it: Job, *others: int) -> None:
    """Rank 0 waits for a message of one of these ranks."""
    pending = Pending.message("recv", "came from rank 1 (tag 0)", 1, "int64", Ends(others, 0))
    it.ranks[0].agent.watched["c"].waits.append((pending, monotonic()))


def waited(it: Job) -> float:
    """Seconds for which rank 0 has waited."""
    return it.ranks[0].agent.watched["c"].seconds


def on_two_hosts(it: Job, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 is on another host. A message may need so many seconds from one to the other."""
    monkeypatch.setattr(deadlock, "_SECONDS_ON_A_NETWORK", seconds)
    first = it.coordinator._processes[0]
    first.process = first.process.changed(host="another")


@pytest.mark.slow
@scene(timeout=6000.0)
async def test_the_last_message_of_a_rank_may_come_long_after_it_has_left(
    it: Job, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "is_alone", lambda: True)
    it.make()
    on_two_hosts(it, 200.0, monkeypatch)
    waits_for_message(it, 1)
    await until(lambda: waited(it) > 220.0)
    it.ranks[1].agent.leave()
    begun = waited(it)
    await until(lambda: bool(ends))
    assert waited(it) - begun >= 200.0
    assert Why.HAS_LEFT.value in capfd.readouterr().err


@pytest.mark.slow
@scene()
async def test_a_wait_that_begins_late_is_found_as_soon_as_another_one(
    it: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 has waited for long when rank 1 begins to wait for it."""
    monkeypatch.setattr(watched, "is_alone", lambda: True)
    it.make()
    waits_for_message(it, 1)
    await until(lambda: waited(it) > 170.0)
    begin(it.recorders[1], "barrier")
    assert not ends
    begun = waited(it)
    await until(lambda: bool(ends))
    assert waited(it) - begun < 30.0


@pytest.mark.slow
@scene()
async def test_ranks_that_wait_for_each_other_on_two_nodes(
    it: Job, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 waits for a message of rank 1, which waits in a collective. Between nodes, a message may take its time."""
    monkeypatch.setattr(watched, "is_alone", lambda: True)
    it.make()
    on_two_hosts(it, 100.0, monkeypatch)
    waits_for_message(it, 1)
    begin(it.recorders[1], "barrier")
    await looks(100)
    assert not ends
    await until(lambda: bool(ends))
    said = capfd.readouterr().err
    assert Why.STUCK.value in said
    assert "rank 1  call 1: barrier, at " in said


@scene()
async def test_a_wait_that_has_ended_meanwhile_ends_no_job(it: Job) -> None:
    """What the ranks say for the table has the last word."""
    it.make()
    await until(lambda: it.compared() == 1)
    await it.coordinator._end(it.coordinator._communicators["c"], None, Why.STUCK, [0])
    assert not ends
    begin(it.recorders[1], "bcast")
    begin(it.recorders[0], "barrier")
    begin(it.recorders[2], "barrier")
    await until(lambda: bool(ends))  # and the coordinator goes on


@pytest.mark.slow
@pytest.mark.parametrize("why", ["it serves", "a thread waits", "another rank may send"])
@scene()
async def test_a_message_that_may_still_come(it: Job, why: str, capfd: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be on its way, and threads may send or wait for others. So there is a warning, which names the rank."""
    monkeypatch.setattr(watched, "is_alone", lambda: why != "a thread waits")
    said = ""

    def warned() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return Why.SLOW.value in said

    it.make()
    it.ranks[1].agent.leave(serves=why == "it serves")
    waits_for_message(it, *((1, 2) if why == "another rank may send" else (1,)))
    await until(warned)
    it.ranks[0].agent.watched["c"].waits.clear()
    await it.all_leave()
    assert not ends
    assert "rank 0  recv: no message came from rank 1 (tag 0), at " in said
    assert "rank 1  has ended its program" in said
