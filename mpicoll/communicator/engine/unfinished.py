"""What is named at the end of a program: calls that are under way, and messages that nobody has received."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ctypes import py_object, pythonapi

from mpicoll.communicator.engine import requests
from mpicoll.communicator.engine.masked_thread import hold
from mpicoll.communicator.engine.requests import InFlight, Request
from mpicoll.launch import lifecycle
from mpicoll.machine.backoff import Backoff
from mpicoll.node.loaded import kernel
from mpicoll.supervise.report import MOST_NAMED, say_left, show
from mpicoll.supervise.watched import GIVES, TAKES

_SECONDS = 0.5  # what a collective that all ranks have begun may still take
_unfinished: list[Request] = []  # what the program had begun and had not happened when it came to its end


def has_messages(may_look: bool, waited_for: object) -> int:
    """Which messages of this rank are under way, besides the one that it waits for. At the end of the program, this may
    complete them. Before that, it may only see whether they are through."""
    if not may_look:
        under_way = [each for each in [*requests.open_requests] if each._since is not waited_for and each.is_message()]
        return _kinds(each for each in under_way if not each.is_through())
    lives = lifecycle.lives()
    known = [each for each in [*requests.open_requests] if lives or not each._under_way.by_mpi]
    _unfinished[:] = [each for each in known if each.unfinished()]
    return _kinds(_unfinished)


def _kinds(requests: Iterable[Request]) -> int:
    ends = [each._message.pending.ends for each in requests]
    return GIVES * any(each.targets for each in ends) | TAKES * any(each.sources for each in ends)


def tell() -> None:
    """When all ranks are at their ends, name what has not happened: no other rank may ever notice."""
    left: dict[InFlight, list[str]] = {}
    hold(_SECONDS)
    has_messages(True, None)  # threads have gone on meanwhile
    its = Backoff(_SECONDS)
    while any(request.unfinished() for request in _unfinished if not request.is_message()) and its.wait():
        pass  # all ranks look: a collective that all of them have begun is complete soon
    for request in _unfinished:
        if what := request.unfinished():
            left.setdefault(request._under_way, []).append(what)
            pythonapi.Py_IncRef(py_object(request))  # MPI_Finalize may write to its arrays, when Python has freed them
    named_already = {id(request._since) for request in [*requests.open_requests]}
    for each in _in_flight():
        for pending, _ in [wait for wait in [*each.waits] if id(wait) not in named_already]:  # of threads, for objects
            left.setdefault(each, []).append(f"{pending.operation}: {pending.missing}")
    for under_way, missing in [*left.items()][:MOST_NAMED]:
        say_left(under_way.rank, "calls under way", missing)
    if len(left) > MOST_NAMED:
        show(f"mpicoll: it has calls under way in {len(left) - MOST_NAMED} more communicators")
    for each in _in_flight():
        unreceived = [] if each.lost else each.waits.unreceived(True)
        if named := [f"{nbytes} bytes from rank {source} (tag {tag})" for source, tag, nbytes in unreceived]:
            say_left(each.rank, "not received messages", named)
    if kernel is not None:
        kernel.end_moving()


def _in_flight() -> Iterator[InFlight]:
    return filter(None, [made() for made in requests.all_in_flight.valuerefs()])
