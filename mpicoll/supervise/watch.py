"""The watching of a process's calls: it begins with the first communicator, and ends with the program. And
``mpicoll.record``: the calls that ranks make in a part of the program, in one file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, reduce
from operator import or_
from pathlib import Path
from secrets import token_hex
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from mpicoll.errors import ArgumentError, StateError
from mpicoll.launch import board, lifecycle
from mpicoll.launch.lifecycle import Hook
from mpicoll.supervise import report, tape
from mpicoll.supervise.dump import checked_trace, file_of_part
from mpicoll.supervise.messages import Rows
from mpicoll.supervise.record import Recorder, Waits
from mpicoll.supervise.rendezvous import Rendezvous, listen
from mpicoll.supervise.sites import is_alone
from mpicoll.supervise.watched import GIVES, TAKES, Cut, Watched, under_way
from mpicoll.units import named

if TYPE_CHECKING:
    from mpicoll.supervise.agent_thread import AgentThread

_SECONDS_TO_COMPARE = _SECONDS_TO_DUMP = 10.0
_SECONDS_TO_PROGRESS, _SECONDS_TO_FAIL, _SECONDS_TO_WRITE = 0.02, 1.0, 120.0

_watchers: dict[Rendezvous, AgentThread] = {}  # one for each coordinator that this process has: usually one
_first: list[int] = []  # the lowest rank with which this process has communicators, perhaps by way of others


class Group(NamedTuple):
    """The ranks of a new communicator, and how they meet: this is all that must be known of what connects them."""

    ranks: list[int]  # its ranks, as ranks of the job's world, in order
    rank: int  # which of them this process is
    one_node: bool  # whether all of them are processes of this node
    allgather: Callable[[Any], list[Any]]
    """Gives all ranks what each of them gives. Collective."""


def watch(
    group: Group,
    recorder: Recorder,
    waits: Waits,
    timeout: float,
    agrees: bool,
    cut: Cut | None = None,
    dump: str = "",
    trace: str = "",
) -> Watched | None:
    """Watch over the calls of a communicator. Collective. Returns None if a rank cannot reach the coordinator. ``dump``
    and ``trace`` are the texts of MPICOLL_DUMP and MPICOLL_TRACE."""
    found = _common_watcher(group, dump, trace)
    if found is None:
        return None
    watcher, name = found
    if trace:
        watcher.agent.trace = str(file_of_part(Path(trace).absolute(), _first[0]))
        tape.begin()  # it runs to the end of the job
    return _known_to(watcher, Watched(name, group.ranks, recorder, waits, timeout, agrees, cut))


def watch_part(of: Watched, name: str, ranks: list[int], recorder: Recorder, waits: Waits) -> Watched | None:
    """Watch over a communicator of some ranks of another one's, as over that one. Each of them gives the same ``name``,
    and none waits for the others. Returns None if nobody watches over the other one any more."""
    watcher = next((each for each in _watchers.values() if of.name in each.agent.watched), None)
    part = Watched(name, ranks, recorder, waits, of.timeout, of.agrees)
    return None if watcher is None else _known_to(watcher, part)


def _known_to(watcher: AgentThread, watched: Watched) -> Watched:
    """From now on, the watcher looks at this communicator."""
    watcher.agent.watched[watched.name] = watched
    watcher.soon(watcher.agent.tell)  # the coordinator must know of it when a process ends
    if tape.active is not None:
        watched.note_on(tape.active)
    return watched


def _all_watched() -> list[Watched]:
    return [watched for watcher in [*_watchers.values()] for watched in [*watcher.agent.watched.values()]]


def _common_watcher(group: Group, dump: str, trace: str) -> tuple[AgentThread, str] | None:
    """The watcher that has the same coordinator as the others', and the communicator's name. None without one."""
    from mpicoll.supervise.agent_thread import AgentThread  # not before the first communicator: it loads asyncio

    ranks = group.ranks
    sock = rendezvous = None
    first, name = min([*_first, ranks[0]]), ""
    if group.rank == 0:
        name = token_hex(6)
        there = [rendezvous for rendezvous, watcher in [*_watchers.items()] if not watcher.has_left(0)]
        there += [Rendezvous.given(given)] if (given := board.coordinator()) else []
        rendezvous = next((each for each in there if group.one_node or not each.on_one_node), None)
        if trace and not _watchers:
            checked_trace(trace, first)
        if rendezvous is None:
            sock, rendezvous = listen(group.one_node, ranks[0], len(ranks))
    rendezvous, name, first = group.allgather((rendezvous, name, first))[0]
    _first[:] = [min([*_first, first])]
    watcher = _watchers.get(rendezvous)
    if watcher is None or watcher.has_left(0):
        watcher = AgentThread(ranks[group.rank], rendezvous, sock, dump, _all_watched)
    problems = group.allgather(watcher.agent.reached.result())
    if not any(problems):
        _watchers[rendezvous] = watcher
        return watcher, name
    if rendezvous not in _watchers:
        watcher.soon(watcher.agent.leave)
    if group.rank == 0:
        apart = {rank: problem for rank, problem in zip(ranks, problems, strict=True) if problem}
        said = f"mpicoll: {named([*apart])} cannot reach the coordinator at {next(iter(apart.values()))}"
        report.show(f"{said}. Calls are not compared, and may wait forever")
    return None


@contextmanager
def record(file: str | os.PathLike[str]) -> Iterator[None]:
    """Record all calls that this rank makes within the ``with`` statement, and write them to ``file`` at its end.

    Each collective and message is in it: its communicator, its bytes and dtype, the line of the program, and when it
    was issued, waited for and complete. ``mpicoll report`` reads the file, and so do Perfetto and chrome://tracing.

    Each rank may record, or one alone. It is no collective: a rank waits at its end only until the file is written,
    with the calls of all ranks that have come to their ends of it by then. When all of them have, the file is complete.
    The first rank's process writes it. A call takes some microseconds longer meanwhile.

    Of an mpi4py program, and of torch over gloo, calls are recorded where they are watched: see :func:`watch`.

    Raises ArgumentError if the file cannot be in its folder, and StateError if it could not be written."""
    try:
        path = Path(file).absolute()
    except TypeError:
        raise ArgumentError("record", "file", "the name of a file", repr(file)) from None
    if path.is_dir():
        raise ArgumentError("record", "file", "the name of a file", f"{str(file)!r}, which is a folder")
    process, begin = os.getpid(), monotonic()
    running = tape.begin()
    _note_on_tape()
    try:
        yield
    finally:
        recording = running.copied(begin)
        tape.end()
        _note_on_tape()
        # A forked child that comes here has made none of the calls.
        failure = _write_recording(path, recording) if os.getpid() == process else ""
    if failure:
        raise StateError(f"record: {path} could not be written: {failure}")


def _note_on_tape() -> None:
    """Note all calls from now on, on the tape that runs, or on none if none does."""
    for each in _all_watched():
        each.note_on(tape.active)


def _write_recording(file: Path, recording: Rows) -> str:
    """Write what this process and others have recorded. Returns why it cannot be written, or an empty text."""
    from mpicoll.supervise.trace import written  # it loads asyncio

    if not _watchers:
        return written(file, {0: recording}, {}, 1)
    # A rank that has met others in a part of the job, too, must choose the same process as all of them.
    watcher = _watchers[min(_watchers, key=lambda each: (each.rank or 0, each.on_one_node))]
    if watcher.has_left(0):
        return "the part that is recorded must end before MPI is finalised"
    file = file_of_part(file, _first[0])
    failure = watcher.do(watcher.agent.write_recording(str(file), recording), _SECONDS_TO_WRITE)
    return "the coordinator, which writes it, does not answer" if failure is None else failure


def compare(watched: Watched) -> None:
    """Compare the ranks' calls of this communicator now. Where they differ, the job ends, and this does not return."""
    for watcher in _watchers.values():
        if watched.name in watcher.agent.watched:
            watcher.do(watcher.agent.compare(watched), _SECONDS_TO_COMPARE)


def _leave() -> None:
    """At the end of the program or of MPI: wait until the calls of all ranks are known to be the same."""
    found = [each(True, None) for each in under_way]
    serves = reduce(or_, found, 0) if is_alone() else GIVES | TAKES
    watchers = [*_watchers.values()]
    for watcher in watchers:  # all of them, before any wait: other ranks may wait for them in another order
        watcher.soon(partial(watcher.agent.leave, serves))
    for watcher in watchers:
        while not watcher.has_left(_SECONDS_TO_PROGRESS):
            lifecycle.progress()  # messages of this rank may still be under way


def _dump(why: str, of_calls: bool) -> None:
    """Let all processes write their files, because this one fails. There are none if it has made no call, and where the
    cause is not ``of_calls``, only those in a folder that the user has named."""
    if any(watched.recorder.begun for watched in _all_watched()):
        for watcher in (each for each in _watchers.values() if of_calls or each.has_folder):
            watcher.do(watcher.agent.dump(why), _SECONDS_TO_DUMP)


def _tell_failure(code: int) -> None:
    for watcher in _watchers.values():
        watcher.do(watcher.agent.fail(code), _SECONDS_TO_FAIL)


_of_parent: list[AgentThread] = []
"""In a forked child, the parent's watchers. To collect them would close what the parent still uses."""


def _in_child() -> None:
    for watcher in _watchers.values():
        watcher.let_go()
    _of_parent.extend(_watchers.values())
    _watchers.clear()  # the thread is the parent's alone


lifecycle.add(Hook.LEAVE_WATCHERS, _leave)
lifecycle.add(Hook.WRITE_FILES, _dump)
lifecycle.add(Hook.TELL_FAILURE, _tell_failure)
lifecycle.add(Hook.LET_WATCHERS_GO, _in_child)
