"""What the coordinator of a job does where a rank comes to its end, does not answer, is lost, or fails."""

from __future__ import annotations

from time import monotonic

import pytest

from mpicoll.supervise import deadlock, ending, watched
from mpicoll.supervise.messages import Ends
from mpicoll.supervise.record import Pending
from mpicoll.supervise.report import Why
from tests.pure.supervise.invented import Job, begin, ends, give_up_soon, let_time_fly, looks, play, until

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    let_time_fly(monkeypatch)


def test_a_rank_has_not_finished_making_the_communicator(capfd: Output) -> None:
    """It answers that it does not know it. It is sound, and is not killed."""

    async def scene(it: Job) -> None:
        del it.ranks[2].agent.watched["c"]
        it.ranks[1].agent.leave()
        begin(it.recorders[0], "bcast")
        await until(lambda: bool(ends))

    play(scene)
    said = capfd.readouterr().err
    assert "rank 0  call 0: bcast, at" in said
    assert "rank 2  does not know this communicator: it has not finished making it" in said
    assert ends == [[]]


@pytest.mark.slow
def test_a_rank_is_silent_while_others_are_at_their_end(capfd: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    give_up_soon(monkeypatch)

    async def scene(it: Job) -> None:
        _, writer, _ = await it.connect(2)
        await looks(20)
        for rank in it.ranks:
            rank.agent.leave()
        await until(lambda: bool(ends))
        writer.close()

    play(scene, started=2, timeout=5.0)
    assert Why.IS_SILENT.value in capfd.readouterr().err


def test_a_rank_computes_while_others_are_at_their_end() -> None:
    """It says seldom that it is there. A timeout of calls that is short does not make that a silence."""

    async def scene(it: Job) -> None:
        it.make()
        await until(lambda: it.compared() == 1)
        for rank in it.ranks[:2]:
            rank.agent.leave()
        await until(lambda: it.coordinator._processes[2].silent >= 25.0 or bool(ends))
        await it.all_leave()

    play(scene, timeout=5.0)
    assert not ends


@pytest.mark.parametrize("was_killed", [True, False])
@pytest.mark.parametrize("others_wait", [True, False])
def test_a_process_is_lost(others_wait: bool, was_killed: bool, capfd: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others that wait in a call are told of it, once. If all calls were made, they may end."""
    monkeypatch.setattr(ending, "exit_reason", lambda _: "its process was killed" * was_killed)

    async def scene(it: Job) -> None:
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

    play(scene)
    said = capfd.readouterr().err
    assert (Why.IS_LOST.value in said) is was_killed
    assert (Why.IS_GONE.value in said) is (others_wait and not was_killed)
    assert ("rank 1      its process has ended" in said) is (others_wait and not was_killed)
    assert len(ends) == others_wait


@pytest.mark.slow
@pytest.mark.parametrize("agrees", [False, True])
def test_a_call_fails_on_one_rank(agrees: bool, capfd: Output) -> None:
    """The rank goes on without the communicator. The others wait for ever, unless they agree on calls: then their
    waits end by themselves."""

    async def scene(it: Job) -> None:
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

    play(scene)
    assert (Why.HAS_FAILED.value in capfd.readouterr().err) is not agrees
    assert len(ends) == (not agrees)


def test_a_call_fails_on_one_rank_and_another_has_not_come() -> None:
    """The failed one had done its part: the call may end when the late rank comes."""

    async def scene(it: Job) -> None:
        for recorder in it.recorders[:2]:
            begin(recorder, "gather")
        it.recorders[1].close()
        await looks(40)
        begin(it.recorders[2], "gather")
        for recorder in it.recorders:
            recorder.under_way = False
        await it.all_leave()

    play(scene)
    assert not ends


@pytest.mark.slow
@pytest.mark.parametrize("why", [Why.HAS_LEFT, Why.STUCK])
def test_a_message_may_be_long_on_its_way_between_nodes(
    why: Why, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 waits for a message of rank 1, which has left or waits in a collective."""
    monkeypatch.setattr(watched, "is_alone", lambda: True)
    monkeypatch.setattr(deadlock, "_SECONDS_ON_A_NETWORK", 100.0)

    async def scene(it: Job) -> None:
        it.make()
        first = it.coordinator._processes[0]
        first.process = first.process.changed(host="another")
        of_rank_0 = it.ranks[0].agent.watched["c"]
        pending = Pending.message("recv", "came from rank 1 (tag 0)", 1, "int64", Ends([1], 0))
        of_rank_0.waits.append((pending, monotonic()))
        if why == Why.HAS_LEFT:
            await until(lambda: of_rank_0.seconds > 120.0)
            it.ranks[1].agent.leave()
        else:
            begin(it.recorders[1], "barrier")
        begun = of_rank_0.seconds
        await until(lambda: bool(ends))
        assert of_rank_0.seconds - begun >= 100.0

    play(scene, timeout=6000.0)
    said = capfd.readouterr().err
    assert why.value in said
    assert why == Why.HAS_LEFT or "rank 1  call 1: barrier, at " in said
