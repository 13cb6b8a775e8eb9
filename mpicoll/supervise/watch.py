"""The watching of a process's calls: it begins with the first communicator, and ends with the program."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from mpicoll.launch import lifecycle
from mpicoll.launch.elastic import lost
from mpicoll.launch.lifecycle import Hook
from mpicoll.supervise import report
from mpicoll.supervise.dump import checked_trace
from mpicoll.supervise.record import Begun, Recorder
from mpicoll.supervise.sites import is_alone
from mpicoll.supervise.trace import TracedRecorder
from mpicoll.supervise.watched import Cut, Watched, under_way
from mpicoll.units import named

if TYPE_CHECKING:
    from mpicoll.supervise.agent import AgentThread
    from mpicoll.supervise.wire import Rendezvous

_SECONDS_TO_COMPARE = _SECONDS_TO_DUMP = 10.0
_SECONDS_TO_PROGRESS = 0.02

_watchers: dict[Rendezvous, AgentThread] = {}
"""One for each job that this process belongs to: usually one."""
_made: Counter[str] = Counter()
"""How many communicators there were of the same ranks, of which this one is the first."""
_naming = threading.Lock()


class Group(NamedTuple):
    """The ranks of a new communicator, and how they meet: this is all that must be known of what connects them."""

    ranks: list[int]
    """Its ranks, as ranks of the job's world, in order."""
    rank: int
    """Which of them this process is."""
    one_node: bool
    """Whether all of them are processes of this node."""
    bcast: Callable[[Any], Any]
    """Gives all ranks what the first one gives. Collective."""
    allgather: Callable[[Any], list[Any]]
    """Gives all ranks what each of them gives. Collective."""
    name: Callable[[Sequence[int]], str] | None = None
    """Names the group of these ranks. Only the first rank is asked. None if no name is there: then one is made."""


def watch(
    group: Group,
    recorder: Recorder,
    waits: list[Begun],
    timeout: float,
    agrees: bool,
    cut: Cut | None = None,
    dump: str = "",
    trace: str = "",
) -> Watched | None:
    """Watch over the calls of a communicator. Collective. Returns None if a rank cannot reach the coordinator. ``dump``
    and ``trace`` are the texts of MPICOLL_DUMP and MPICOLL_TRACE."""
    ranks = group.ranks
    left_over = _forget_lost()
    found = _common_watcher(group, timeout, dump, trace)
    if found is None:
        return None
    watcher, name = found
    watched = Watched(name, ranks, recorder, waits, timeout, agrees, cut)
    watcher.agent.watched[watched.name] = watched
    watcher.soon(watcher.agent.tell)  # the coordinator must know of it when a process ends
    if isinstance(recorder, TracedRecorder):
        recorder.keep_in(watcher.events, watched.name)
    for each in left_over:
        if {*each.ranks} <= {*ranks}:
            each.reported = None
            watcher.agent.watched[each.name] = each
    return watched


def _forget_lost() -> list[Watched]:
    """End the watchers whose coordinator is lost. Returns the communicators that they watched over and that still
    work."""
    left_over: list[Watched] = []
    for rendezvous, watcher in [*_watchers.items()]:
        if rendezvous.rank in lost():
            left_over += watcher.agent.watched.values()
            watcher.soon(watcher.agent.may_leave.set)
            del _watchers[rendezvous]
    return left_over


def _all_watched() -> list[Watched]:
    return [watched for watcher in [*_watchers.values()] for watched in [*watcher.agent.watched.values()]]


def _name(ranks: Sequence[int]) -> str:
    """A name for a new communicator of these ranks. Its first rank gives it, and tells the others: they cannot count
    for themselves, because threads may make communicators of the same ranks at once."""
    of = blake2b(",".join(map(str, ranks)).encode(), digest_size=6).hexdigest()
    with _naming:
        _made[of] += 1
        return f"{of}.{_made[of]}"


def _common_watcher(group: Group, timeout: float, dump: str, trace: str) -> tuple[AgentThread, str] | None:
    """The watcher of this process that has the same coordinator as those of the other ranks, and the communicator's
    name. None if a rank cannot reach the coordinator."""
    from mpicoll.supervise.agent import AgentThread  # not before the first communicator: it loads asyncio
    from mpicoll.supervise.wire import listen

    ranks, first = group.ranks, group.ranks[0]
    sock = rendezvous = trace_file = None
    name = ""
    if group.rank == 0:
        name = (group.name or _name)(ranks)
        there = [rendezvous for rendezvous, watcher in [*_watchers.items()] if not watcher.has_left(0)]
        rendezvous = next((each for each in there if group.one_node or not each.on_one_node), None)
        if rendezvous is None:
            trace_file = checked_trace(trace, first) if trace else None
            sock, rendezvous = listen(group.one_node, first, len(ranks))
    rendezvous, name = group.bcast((rendezvous, name))
    me = ranks[group.rank]
    watcher = _watchers.get(rendezvous) or AgentThread(me, rendezvous, sock, timeout, dump, trace_file, _all_watched)
    problems = group.allgather(watcher.agent.reached.result())
    if not any(problems):
        _watchers[rendezvous] = watcher
        return watcher, name
    if rendezvous not in _watchers:
        watcher.soon(watcher.agent.leave)
    if group.rank == 0:
        apart = [rank for rank, problem in zip(ranks, problems, strict=True) if problem]
        said = f"mpicoll: {named(apart)} cannot reach the first rank's watcher"
        why = next(filter(None, problems))
        report.show(f"{said} at {why}. Calls are not compared, and may wait for ever")
    return None


def compare(watched: Watched) -> None:
    """Compare the calls of this communicator with those of its other ranks now. Where they differ, the job ends, and
    this does not return."""
    for watcher in _watchers.values():
        if watched.name in watcher.agent.watched:
            watcher.do(watcher.agent.compare(watched), _SECONDS_TO_COMPARE)


def _leave() -> None:
    """At the end of the program or of MPI: wait until the calls of all ranks are known to be the same."""
    serves = any(each(True, None) for each in under_way) or not is_alone()
    watchers = [*_watchers.values()]
    for watcher in watchers:  # all of them, before any wait: other ranks may wait for them in another order
        watcher.soon(partial(watcher.agent.leave, serves))
    for watcher in watchers:
        while not watcher.has_left(_SECONDS_TO_PROGRESS):
            lifecycle.progress()  # messages of this rank may still be under way


lifecycle.add(Hook.LEAVE_WATCHERS, _leave)


def _dump(why: str, of_calls: bool) -> None:
    """Let all processes write their files, because this one fails. There are none if it has made no call, and where the
    cause is not ``of_calls``, only those in a folder that the user has named."""
    if any(watched.recorder.begun for watched in _all_watched()):
        for watcher in (each for each in _watchers.values() if of_calls or each.has_folder):
            watcher.do(watcher.agent.dump(why), _SECONDS_TO_DUMP)


lifecycle.add(Hook.WRITE_FILES, _dump)

_of_parent: list[AgentThread] = []
"""In a forked child, the parent's watchers. To collect them would close what the parent still uses."""


def _in_child() -> None:
    for watcher in _watchers.values():
        watcher.let_go()
    _of_parent.extend(_watchers.values())
    _watchers.clear()  # the thread is the parent's alone


lifecycle.add(Hook.LET_WATCHERS_GO, _in_child)
