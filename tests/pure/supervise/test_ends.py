"""What the coordinator of a job does where a rank comes to its end, does not answer, is lost, or fails."""

from __future__ import annotations

import asyncio
import time

import pytest

from mpicoll.supervise import ending
from mpicoll.supervise.agent import HashOf
from mpicoll.supervise.coordinator import Coordinator
from mpicoll.supervise.report import Why
from tests.pure.supervise.invented import Job, begin, ends, give_up_soon, looks, scene, until

Output = pytest.CaptureFixture[str]


@scene()
async def test_a_rank_has_not_finished_making_the_communicator(it: Job, capfd: Output) -> None:
    """It answers that it does not know it. It is sound, and is not killed."""
    del it.ranks[2].agent.watched["c"]
    it.ranks[1].agent.leave()
    begin(it.recorders[0], "bcast")
    await until(lambda: bool(ends))
    said = capfd.readouterr().err
    assert "rank 0  call 0: bcast, at" in said
    assert "rank 2  does not know this communicator: it has not finished making it" in said
    assert ends == [[]]


@scene()
async def test_a_rank_fails_of_what_others_have_called(it: Job, capfd: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its call has returned, with what their call sent. The table comes before all end, though no look has come yet."""

    async def no_look(*_: object) -> None:
        pass

    monkeypatch.setattr(Coordinator, "_check", no_look)
    it.make("allgather", "bcast")
    for rank in it.ranks:
        rank.joins("without a call", it.all)
    await until(lambda: it.told(2))
    await it.ranks[0].agent.dump("RuntimeError")
    await until(lambda: bool(ends))
    assert Why.DIFFERENT.value in capfd.readouterr().err


@scene()
async def test_a_machine_that_stops_for_a_while(it: Job) -> None:
    """Coordinator and ranks stop at once, for longer than ranks may take to answer. These answer when they go on."""
    it.make(times=3)
    await until(lambda: it.compared() == 3)
    asked = asyncio.ensure_future(it.coordinator._processes.ask([0, 1, 2], HashOf("c", None), 0.3))
    await asyncio.sleep(0)  # the question is on its way
    time.sleep(1)
    assert [each and each[0] for each in (await asked).values()] == [3, 3, 3]


@pytest.mark.slow
@scene(started=2, timeout=5.0)
async def test_a_rank_is_silent_while_others_are_at_their_end(
    it: Job, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up_soon(monkeypatch)
    _, writer, _ = await it.connect(2)
    await looks(20)
    for rank in it.ranks:
        rank.agent.leave()
    await until(lambda: bool(ends))
    writer.close()
    assert Why.IS_SILENT.value in capfd.readouterr().err


@scene(timeout=5.0)
async def test_a_rank_computes_while_others_are_at_their_end(it: Job) -> None:
    """It says seldom that it is there. A timeout of calls that is short does not make that a silence."""
    it.make()
    await until(lambda: it.compared() == 1)
    for rank in it.ranks[:2]:
        rank.agent.leave()
    await until(lambda: it.coordinator._processes[2].silent >= 25.0 or bool(ends))
    await it.all_leave()
    assert not ends


@pytest.mark.parametrize("was_killed", [True, False])
@pytest.mark.parametrize("others_wait", [True, False])
@scene()
async def test_a_process_is_lost(
    it: Job, others_wait: bool, was_killed: bool, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others that wait in a call are told of it, once. If all calls were made, they may end."""
    monkeypatch.setattr(ending, "exit_reason", lambda _: "its process was killed" * was_killed)
    it.make()
    await until(lambda: it.compared() == 1)
    await it.ranks[1].is_lost()
    if others_wait:
        for r in (0, 2):
            begin(it.recorders[r], "bcast")
        await until(lambda: bool(ends))
        gone = it.coordinator._processes[1].gone
        assert gone is not None
        assert gone > 5.0  # by then, a launcher has ended the others, and said why
    else:
        del it.ranks[1]
        await it.all_leave()
    said = capfd.readouterr().err
    assert (Why.IS_LOST.value in said) is was_killed
    assert (Why.IS_GONE.value in said) is (others_wait and not was_killed)
    assert ("rank 1      its process has ended" in said) is (others_wait and not was_killed)
    assert len(ends) == others_wait


@scene(started=2)
async def test_a_rank_crashes_and_another_one_is_too_slow_to_answer(
    it: Job, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher is about to end it: that it has not answered so soon does not mean that it is stuck."""
    monkeypatch.setattr(ending, "exit_reason", lambda _: "its process was killed")
    _, writer, _ = await it.connect(2)
    await until(lambda: 2 in it.coordinator._processes and bool(it.coordinator._communicators))
    await until(lambda: bool(it.coordinator._communicators["c"].ranks))
    await it.coordinator._say_loss(1)
    writer.close()
    for rank in it.ranks:
        rank.agent.may_leave.set()
    it.looking.cancel()
    said = capfd.readouterr().err
    assert Why.IS_LOST.value in said
    assert "rank 1  its process was killed" in said
    assert "rank 2  has had no time to answer" in said


@scene()
async def test_the_table_is_of_the_communicator_in_which_ranks_are(
    it: Job, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have used another one before."""
    monkeypatch.setattr(ending, "exit_reason", lambda _: "its process was killed")
    others = [rank.joins("d", it.all) for rank in it.ranks]
    it.make("barrier", times=3)
    for recorder in others:
        begin(recorder, "bcast")
    await until(lambda: it.told(2))
    await it.coordinator._say_loss(1)
    await it.all_leave()
    said = capfd.readouterr().err
    assert said.count(Why.IS_LOST.value) == 1
    assert "call 0: bcast, at" in said
    assert "barrier" not in said


@pytest.mark.parametrize("others_wait", [True, False])
@scene()
async def test_a_call_ended_midway_on_a_rank_that_leaves(it: Job, others_wait: bool, capfd: Output) -> None:
    """Numbers of calls say nothing then. Only if others wait, they wait for ever."""
    it.make()
    for recorder in it.recorders:
        begin(recorder, "bcast")
    it.recorders[1].close()
    if not others_wait:
        for r in (0, 2):
            it.recorders[r].under_way = False
            begin(it.recorders[r], "another one")
            it.recorders[r].close()
    it.ranks[1].agent.leave()
    await (until(lambda: bool(ends)) if others_wait else it.all_leave())
    assert (Why.HAS_LEFT.value in capfd.readouterr().err) is others_wait
    assert len(ends) == others_wait


@pytest.mark.slow
@pytest.mark.parametrize("agrees", [False, True])
@scene()
async def test_a_call_fails_on_one_rank(it: Job, agrees: bool, capfd: Output) -> None:
    """The rank goes on without the communicator. The others wait for ever, unless they agree on calls: then their
    waits end by themselves."""
    recorders = [rank.joins("f", it.all, agrees=agrees) for rank in it.ranks]
    for recorder in recorders:
        begin(recorder, "bcast")
    recorders[1].close()
    if agrees:
        await looks(40)
        for recorder in recorders:
            recorder.close()
        await it.all_leave()
    else:
        await until(lambda: bool(ends))
    assert (Why.HAS_FAILED.value in capfd.readouterr().err) is not agrees
    assert len(ends) == (not agrees)


@scene()
async def test_a_call_fails_on_one_rank_and_another_has_not_come(it: Job) -> None:
    """The failed one had done its part: the call may end when the late rank comes."""
    for recorder in it.recorders[:2]:
        begin(recorder, "gather")
    it.recorders[1].close()
    await looks(40)
    begin(it.recorders[2], "gather")
    for recorder in it.recorders:
        recorder.under_way = False
    await it.all_leave()
    assert not ends


@scene()
async def test_a_call_fails_on_all_ranks(it: Job) -> None:
    """One after another, and not at once: nobody waits for ever."""
    for recorder in it.recorders:
        begin(recorder, "bcast")
    for recorder in it.recorders:
        recorder.close()
        await looks(2)  # all of them take less time than a failure
    await it.all_leave()
    assert not ends
