"""What the coordinator says of a job that cannot go on, or waits for long: one table of a communicator's ranks."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from enum import Enum

from mpicoll.launch.failure import say
from mpicoll.supervise.messages import Files, RankStatus
from mpicoll.supervise.record import BROKEN, CLOSED, FREED, OPEN
from mpicoll.units import alike, named, rows


class Why(Enum):
    """What a table is shown for."""

    DIFFERENT = "the ranks made different calls"
    FORGOTTEN = "the ranks made different calls, before the last ones, which are equal"
    HAS_LEFT = "a rank has finished, and others wait for it"
    IS_GONE = "a rank's process is gone, and others wait for it"
    IS_LOST = "a rank's process has ended before its program has"
    HAS_FAILED = "a call has failed on a rank, and others wait for it"
    HAS_FREED = "a rank has freed the communicator, and others still use it"
    STUCK = "ranks wait for each other, and none of them can go on"
    IS_SILENT = "a rank does not answer, and others wait for its end"
    TIME_IS_UP = "a call was not complete in time"
    MEANWHILE = "ranks wait in another communicator, too"
    SLOW = "a call has been under way for long. Nothing is wrong if a rank is still busy"

    def said(self, job_ends: bool = True) -> str:
        """In words, which say that the job ends if it does, and if this is the reason."""
        goes_on = self in (Why.MEANWHILE, Why.SLOW) or not job_ends
        return self.value if goes_on else f"{self.value}. The job ends"


class Silence(Enum):
    """Why a rank gives no status of a call: what is said of one rank, and of several."""

    DOES_NOT_KNOW = (
        "does not know this communicator: it has not finished making it, or has lost it",
        "do not know this communicator: they have not finished making it, or have lost it",
    )
    """It answers. Others may use a communicator some time before the last rank returns from making it."""
    NEVER_REACHED = "has never been reached", "have never been reached"
    HAS_ENDED = "its process has ended", "their processes have ended"
    HAD_NO_TIME = "has had no time to answer", "have had no time to answer"
    """Those who asked were hurried: its silence says nothing."""
    DOES_NOT_ANSWER = (
        "does not answer: it is stopped or stuck, or its node is lost",
        "do not answer: they are stopped or stuck, or their nodes are lost",
    )


Missing = Silence | str
"""What is said in the place of a rank's status. If it is in words, these are of this rank alone."""
MOST_NAMED = 5  # calls and messages that are named of a rank
_WAITING = ": waiting"  # how the lines end of which a duration is said


def text(
    why: Why,
    ranks: Sequence[int],
    statuses: dict[int, RankStatus],
    missing: dict[int, Missing],
    latest: bool = True,
    job_ends: bool = True,
    first: int | None = None,
) -> str:
    """The table: a line for all ranks that do the same. The statuses are of the ranks' ``latest`` calls, or else of one
    call of all. ``missing`` says why some ranks give none. If a rank was lost ``first``, only it is to be looked at."""
    furthest = max((status.begun for status in statuses.values()), default=0) if latest else 0

    def line(rank: int, many: bool = False) -> str:
        return instead(missing[rank], many) if rank in missing else _line(statuses[rank], furthest, many)

    table: list[tuple[list[int], str]] = []
    for who in alike({rank: line(rank) for rank in sorted(ranks)}).values():
        said = line(who[0], len(who) > 1)
        # Their looks differ a little: that must not tear them apart.
        seconds = max(statuses[rank].seconds for rank in who) if said.endswith(_WAITING) else 0.0
        table.append((who, said + (f" for {seconds:.0f} s" if seconds >= 1 else "")))
    hint = _unreceived(statuses, missing) if why in (Why.IS_GONE, Why.IS_LOST) else []
    concerned = _concerned(why, statuses, missing) if first is None else [first]
    look = f". Look at {named(concerned)}" if 0 < len(concerned) < len(ranks) else ""
    title = f"mpicoll: {why.said(job_ends)} (communicator of {named(sorted(ranks))}){look}:"
    return "\n".join([title, *rows(table), *hint])


def _concerned(why: Why, statuses: dict[int, RankStatus], missing: dict[int, Missing]) -> list[int]:
    """The ranks at which to look first, as far as they are known."""
    if why in (Why.DIFFERENT, Why.HAS_LEFT):  # either may be the mistake, and that of few ranks is the likelier one
        calls = {r: each.leaving if why == Why.HAS_LEFT else each.description for r, each in statuses.items()}
        most = max(alike(calls).values(), key=len, default=[])
        return sorted({*calls} - {*most}) if 2 * len(most) > len(calls) else []
    of_status = _CONCERNED.get(why)
    without = [rank for rank, each in missing.items() if each is not Silence.HAD_NO_TIME]
    return sorted([*without, *(rank for rank, each in statuses.items() if of_status and of_status(each))])


_CONCERNED: dict[Why, Callable[[RankStatus], bool]] = {
    Why.HAS_FAILED: lambda each: each.state == BROKEN,
    Why.HAS_FREED: lambda each: each.state == FREED,
    Why.STUCK: lambda each: each.message is not None,  # those in a collective wait for ranks that may be anywhere
    Why.TIME_IS_UP: lambda each: not each.waits and each.message is None,
    Why.SLOW: lambda each: not each.waits and each.message is None,
}
"""By the reason of a report: whether a rank that answers is one at which to look."""


def instead(missing: Missing, many: bool = False) -> str:
    """What is said in the place of a status, of one rank or of ``many``."""
    return missing if isinstance(missing, str) else missing.value[many]


def _unreceived(statuses: dict[int, RankStatus], missing: dict[int, Missing]) -> list[str]:
    """What has come from the ranks that are gone, and was never received."""
    lines = []
    for rank, status in sorted(statuses.items()):
        if named := [f"{n} bytes from rank {of} (tag {tag})" for of, tag, n in status.unreceived if of in missing]:
            lines.append(f"  rank {rank} has not received {'; '.join(named)}")
    return lines


def _line(status: RankStatus, furthest: int, many: bool = False) -> str:
    """What a rank does, or what ``many`` ranks do alike."""
    number, description, site = status.number, status.description, status.site
    has, its, it_is = ("have", "their", "They are") if many else ("has", "its", "It is")
    handles = f" (while {'they handle' if many else 'it handles'} {status.handles})" if status.handles else ""
    handles += f" (after {status.failed})" if status.failed else ""
    handles += f" (while {'they hold' if many else 'it holds'} locks of windows)" if status.locks else ""
    if status.message and not status.waits and number >= status.begun - 1:
        return f"{status.message}, at {status.where}{handles}{_WAITING}"
    if status.waits and description is not None:
        return f"call {number}: {description}, at {site}{handles}{_WAITING}"
    if furthest and status.leaving and status.state == OPEN and description is not None:
        return f"{has} ended {its} program: {its} last call was {number}: {description}, at {site}"
    if description is None and 0 <= number < status.begun:
        since = f"{'they' if many else 'it'} {has} made {status.begun - number - 1} calls since"
        does = f"call {number}: {since}, and {has} forgotten this one"
    elif description is None:
        # This rank has not made the call that others speak of.
        freed = f" and {has} freed the communicator" if status.state == FREED else ""
        does = f"{has} not arrived" + (f" and {has} ended {its} program" if status.leaving else freed)
    elif status.begun < furthest and number == status.begun - 1:
        does = f"{has} not arrived: {its} last call was {number}: {description}, at {site}"
    else:
        does = f"call {number}: {description}, at {site}"
        if status.state in (BROKEN, CLOSED):
            does += f". {'They' if many else 'It'} cannot use the communicator any more, which is {status.state}"
    return does if status.leaving else f"{does}. {it_is} at {status.where}{handles}"


def files(written: dict[int, Files]) -> str:
    """Where the processes have written their calls, and which could not."""
    folders = sorted({each.folder for each in written.values() if each.folder})
    lines = [f"mpicoll: the last calls of each rank are in {', '.join(folders)}"] if folders else []
    failures = {rank: each.failure for rank, each in sorted(written.items()) if each.failure}
    for failure, who in alike(failures).items():
        lines.append(f"mpicoll: {named(who)} could not write the last calls to {failure}")
    return "\n".join(lines)


def failed(who: str) -> None:
    """Say that a mistake of mpicoll's own has ended this one. It must not end a job that may be sound."""
    said = f"mpicoll: {who} has failed. From now on, calls are not compared, and may wait forever"
    show(f"{said}\n{traceback.format_exc().rstrip()}")


def say_left(rank: int, has: str, named: Sequence[str]) -> None:
    """Say what a rank ``has`` left undone at its end, and the first of what is ``named``."""
    more = f", and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    show(f"mpicoll: rank {rank} is at its end and has {has}. {'; '.join(named[:MOST_NAMED])}{more}")


def show(said: str) -> None:
    """Write this to stderr, if it says something."""
    if said:
        say(said)
