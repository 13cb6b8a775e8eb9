"""What the coordinator of a job finds in the calls of its ranks, and what it leaves alone."""

from __future__ import annotations

import pytest

from mpicoll.supervise.record import FREED, LENGTH
from mpicoll.supervise.report import Why
from tests.pure.supervise.invented import Job, begin, ends, let_time_fly, looks, play, until

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    let_time_fly(monkeypatch)


@pytest.mark.parametrize("more", [0, 1, LENGTH - 4, LENGTH - 3, LENGTH])
def test_a_difference_found_at_the_end(more: int, capfd: Output) -> None:
    """Ranks have made other calls since, and leave."""

    async def scene(it: Job) -> None:
        it.make(times=3)
        it.make("barrier", "barrier", "bcast")
        it.make(times=more)
        await it.all_leave()

    play(scene)
    assert len(ends) == 1
    said = capfd.readouterr().err
    assert Why.DIFFERENT.value in said
    assert "ranks 0-1  call 3: barrier" in said
    assert "rank 2     call 3: bcast" in said


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_difference_of_long_ago(forgotten: bool, capfd: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    if forgotten:
        monkeypatch.setattr("mpicoll.supervise.record._RINGS", 3)

    async def scene(it: Job) -> None:
        it.make(times=77)
        it.make("barrier", "bcast")
        it.make(times=20 * LENGTH)
        await it.all_leave()

    play(scene)
    assert len(ends) == 1
    said = capfd.readouterr().err
    if forgotten:
        assert Why.FORGOTTEN.value in said
    else:
        assert Why.DIFFERENT.value in said
        assert f"ranks 0-2  call 77: they have made {20 * LENGTH} calls since, and have forgotten this one" in said


def test_others_that_come_to_their_ends_soon_after_one(capfd: Output) -> None:
    """Else the report would say to look at the rank that has ended, and not at the one that makes a call more."""

    async def scene(it: Job) -> None:
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

    play(scene)
    assert f"{Why.HAS_LEFT.said()} (communicator of ranks 0-2). Look at rank 0:" in capfd.readouterr().err


@pytest.mark.parametrize("how", ["freed", "closed", "broken"])
def test_what_is_over_is_forgotten(how: str) -> None:
    async def scene(it: Job) -> None:
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

    play(scene)
    assert not ends


@pytest.mark.slow
def test_one_warning(capfd: Output) -> None:
    """While a rank is still busy, and makes other calls. A later wait has a warning of its own."""

    said = ""

    def warnings() -> int:
        nonlocal said
        said += capfd.readouterr().err
        return said.count(Why.SLOW.value)

    async def scene(it: Job) -> None:
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

    play(scene)
    assert warnings() == 2
    assert "ranks 1-2  have not arrived: their last call was" in said
    assert not ends
