"""The table: one line for all ranks that do the same, and words that fit what each of them does."""

from __future__ import annotations

import pytest

from mpicoll.supervise.messages import Files, RankStatus
from mpicoll.supervise.record import BROKEN, FREED
from mpicoll.supervise.report import Missing, Silence, Why, files, text
from tests.pure.supervise.invented import status

WAITS = status(waits=False, message="recv: no message came from rank 2 (tag 0)")
BEHIND = status(begun=3, number=2, description="bcast", waits=False)
ENDED = status(waits=False, leaving=True)
BROKEN_ONE = status(state=BROKEN, waits=False)
UNKNOWN = status(description=None, site=None, waits=False, number=7)


def lines(*statuses: RankStatus | None, latest: bool = True) -> list[str]:
    said = {rank: each for rank, each in enumerate(statuses) if each is not None}
    missing: dict[int, Missing] = {rank: Silence.DOES_NOT_ANSWER for rank, each in enumerate(statuses) if each is None}
    return text(Why.TIME_IS_UP, [*range(len(statuses))], said, missing, latest).splitlines()


def test_ranks_that_do_the_same_share_a_line() -> None:
    title, waits, late, silent = lines(status(), BEHIND, status(seconds=4.5), None, status())
    assert title == f"mpicoll: {Why.TIME_IS_UP.said()} (communicator of ranks 0-4). Look at ranks 1, 3:"
    assert waits == "  ranks 0, 2, 4  call 3: barrier, at a.py:1 in f: waiting for 5 s"
    assert late.startswith(
        "  rank 1         has not arrived: its last call was 2: bcast, at a.py:1 in f. It is at a.py:2 in g"
    )
    assert silent.startswith("  rank 3         does not answer")


@pytest.mark.parametrize("why", [Why.IS_GONE, Why.IS_LOST, Why.TIME_IS_UP])
def test_what_a_rank_had_sent_before_it_was_gone(why: Why) -> None:
    waits = status(unreceived=[(2, 5, 24), (1, 0, 8), (2, 6, 18)])
    said = text(why, [0, 1, 2], {0: waits, 1: status()}, {2: "its process has ended"}).splitlines()
    line = "  rank 0 has not received 24 bytes from rank 2 (tag 5); 18 bytes from rank 2 (tag 6)"
    assert (line in said) == (why != Why.TIME_IS_UP)


@pytest.mark.parametrize(
    ("statuses", "line", "words"),
    [
        ([status(), BEHIND, BEHIND], 2, "ranks 1-2  have not arrived: their last call was 2: bcast, at a.py:1 in f"),
        ([WAITS, ENDED, ENDED], 2, "ranks 1-2  have ended their program: their last call was 3: barrier"),
        # It is not where its last call was.
        ([WAITS, ENDED], 2, "rank 1  has ended its program: its last call was 3: barrier, at a.py:1 in f"),
        ([status(), None, None], 2, "ranks 1-2  do not answer: they are stopped or stuck"),
        ([BROKEN_ONE] * 2, 1, "They cannot use the communicator any more, which is broken. They are at"),
        ([BROKEN_ONE], 1, "which is broken. It is at"),
        ([UNKNOWN.changed(leaving=True)] * 2, 1, "have not arrived and have ended their program"),
        ([UNKNOWN.changed(state=FREED)], 1, "has not arrived and has freed the communicator. It is at"),
        ([status(seconds=0.5)], 1, "in f: waiting"),  # it has just begun
        ([WAITS], 1, "rank 0  recv: no message came from rank 2 (tag 0), at a.py:2 in g: waiting for 5 s"),
    ],
)
def test_what_ranks_do(statuses: list[RankStatus | None], line: int, words: str) -> None:
    assert words in lines(*statuses)[line]


def test_a_call_of_before_is_shown_whatever_the_rank_does_now() -> None:
    now = status(number=1, begun=9, waits=False, message="recv: no message came from rank 2 (tag 0)")
    behind = status(number=1, begun=2, waits=False, description="bcast")
    assert [line.split(",")[0] for line in lines(now, behind, latest=False)[1:]] == [
        "  rank 0  call 1: barrier",
        "  rank 1  call 1: bcast",
    ]


def test_the_title_says_at_which_ranks_to_look() -> None:
    def look_at(why: Why, *given: RankStatus, **silent: Silence) -> str:
        """The ranks after those that are given do not answer."""
        missing: dict[int, Missing] = dict(enumerate(silent.values(), len(given)))
        title = text(why, [*range(len(given) + len(silent))], dict(enumerate(given)), missing).splitlines()[0]
        return title.partition("). Look at ")[2]

    waits, other, ended, receives = status(), status(description="bcast"), ENDED, WAITS
    assert look_at(Why.DIFFERENT, waits, other, waits) == "rank 1:"
    assert look_at(Why.DIFFERENT, waits, other) == ""  # nobody knows which one is wrong
    assert look_at(Why.DIFFERENT, waits, other, waits, other) == ""
    assert look_at(Why.HAS_LEFT, waits, ended, waits) == "rank 1:"
    assert look_at(Why.HAS_LEFT, waits, ended, ended) == "rank 0:"
    assert look_at(Why.HAS_FAILED, waits, status(state=BROKEN, waits=False)) == "rank 1:"
    assert look_at(Why.HAS_FREED, waits, status(state=FREED, waits=False)) == "rank 1:"
    assert look_at(Why.STUCK, receives, waits, status(waits=False)) == "rank 0:"
    assert look_at(Why.STUCK, waits, status(waits=False)) == ""  # rank 1 waits in another communicator
    assert look_at(Why.STUCK, receives, receives) == ""
    for why in (Why.TIME_IS_UP, Why.SLOW):
        assert look_at(why, waits, status(waits=False), receives) == "rank 1:"
    assert look_at(Why.SLOW, waits, ended) == "rank 1:"
    assert look_at(Why.IS_LOST, waits, gone=Silence.HAS_ENDED, hurried=Silence.HAD_NO_TIME) == "rank 1:"
    ended_too: dict[int, Missing] = {
        1: "its process was killed",
        2: "its process has ended; its last collective: bcast",
    }
    assert "Look at rank 1:" in text(Why.IS_LOST, [0, 1, 2], {0: waits}, ended_too, first=1)


def test_files_of_several_nodes() -> None:
    written = {
        0: Files("/a", ""),
        1: Files("/b", ""),
        2: Files("/a", ""),
        3: Files("", "/c: full"),
        4: Files("", "/c: full"),
    }
    assert files(written) == (
        "mpicoll: the last calls of each rank are in /a, /b\n"
        "mpicoll: ranks 3-4 could not write the last calls to /c: full"
    )
