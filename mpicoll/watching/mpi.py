"""The calls that a program makes of mpi4py itself, noted as a Communicator's calls are.

Each method of mpi4py's communicators and requests that sends, receives or waits gets a function around it. So a
communicator stays what it is: it may come from anywhere, and libraries in C take it. It is known by its handle.

The types of an extension cannot be assigned to. Their dictionaries are found through the mapping that Python shows."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from itertools import repeat
from operator import index
from time import monotonic
from typing import Any

from mpi4py import MPI

from mpicoll.calls.settings import Settings
from mpicoll.errors import StateError
from mpicoll.launch import lifecycle
from mpicoll.supervise import watched
from mpicoll.supervise.record import Pending, Record
from mpicoll.watching import arguments, windows
from mpicoll.watching.arguments import by_name, by_position, operation_of, parameters_of, size_of
from mpicoll.watching.calls import around, not_complete, waited_for
from mpicoll.watching.communicators import (
    CommunicatorCalls,
    Persistent,
    communicators,
    has_messages,
    persistent,
    tell_unfinished,
    under_way,
    watch_part,
    watch_world,
)

_OWN = "mpicoll."
_DEFAULTS = {"dest": MPI.PROC_NULL, "sendtag": 0, "source": MPI.ANY_SOURCE, "recvtag": MPI.ANY_TAG}


def install(settings: Settings) -> None:
    """Watch over MPI.COMM_WORLD and what is made of it. Collective. Raises StateError, on all ranks, if it cannot."""
    # The first reduction of objects on a communicator duplicates it, and holds Python's lock meanwhile. If others did
    # not come then, this rank could not even say so.
    MPI.COMM_WORLD.allreduce(0)
    for owner, name, function in _functions():
        _replace(owner, name, function)
    watched.under_way.append(has_messages)
    lifecycle.add(lifecycle.Hook.NAME_UNFINISHED, tell_unfinished)
    watch_world(settings)


def _replace(owner: type, name: str, function: object) -> None:
    found = gc.get_referents(owner.__dict__)
    if [type(each) for each in found] != [dict]:
        raise StateError(f"watch: this Python ({sys.implementation.name}) does not show the methods of mpi4py's types")
    found[0][name] = function
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))


def _begin(request: MPI.Request, calls: CommunicatorCalls, what: Record | Pending, name: str) -> None:
    """A request of this method stands for a message, or for the last collective."""
    if isinstance(what, Record):
        under_way.begin(request.handle, request, calls, not_complete(name, what), calls.recorder.begun - 1)
    else:
        under_way.begin(request.handle, request, calls, what)


# -- requests ---------------------------------------------------------------------------------------------------------


def _wait(real: Any, request: MPI.Request, status: MPI.Status | None = None) -> Any:
    found = under_way.pop(request.handle, None)
    return real(request, status) if found is None else waited_for(found, real, request, status)


def _test(real: Any, request: MPI.Request, *args: Any, **named: Any) -> Any:
    handle = request.handle
    found = real(request, *args, **named)
    if found[0] if isinstance(found, tuple) else found:
        _is_complete(handle)
    return found


def _wait_for_all(real: Any, _: type, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None) -> Any:
    """Waiting for all is waiting for one after the other: so it is known which one has not come."""
    wait = real.__name__.removesuffix("all")
    if not under_way:
        return real(requests, statuses)
    if statuses is not None:
        statuses.extend(MPI.Status() for _ in range(len(requests) - len(statuses)))
    got = [*map(getattr(MPI.Request, wait), requests, repeat(None) if statuses is None else statuses)]
    return True if wait == "Wait" else got


def _several(real: Any, cls: type, requests: Sequence[MPI.Request], *args: Any, **named: Any) -> Any:
    """What waits for one of several requests, or tests them."""
    known = [(each, each.handle) for each in requests if each.handle in under_way]
    try:
        if known and real.__name__[0] in "Ww":
            return waited_for(under_way[known[0][1]], real, requests, *args, **named)
        return real(requests, *args, **named)
    finally:
        for request, handle in known:
            if request == MPI.REQUEST_NULL or (handle in persistent and request.Get_status()):
                _is_complete(handle)


def _start(real: Any, request: MPI.Prequest) -> None:
    found = persistent.get(request.handle)
    if found is None:
        real(request)
        return
    calls, what = found.calls, found.what
    if isinstance(what, Record):
        calls.noted(what, real, request)
    else:
        real(request)
    _begin(request, calls, what, found.name)


def _start_all(real: Any, cls: type, requests: Sequence[MPI.Prequest]) -> None:
    for each in requests:
        each.Start()


def _free_request(real: Any, request: MPI.Request) -> None:
    for table in (persistent, under_way):
        table.pop(request.handle, None)  # another request may get the handle
    real(request)


def _is_complete(handle: int) -> None:
    if (found := under_way.pop(handle, None)) is not None:
        _, calls, begun, _ = found
        calls.waits.is_complete(begun)


# -- communicators ----------------------------------------------------------------------------------------------------


def _caller(real: Any, name: str, what_of: Callable[..., Record | Pending | None]) -> Callable[..., Any]:
    """A method that blocks, or gives a request, or a persistent one. ``what_of`` says of its arguments what it makes: a
    collective or a message; None if nothing is to be known of it."""
    parameters = parameters_of(real)
    begins, persists = name[0] in "Ii", name.endswith("_init")

    @wraps(real)
    def call(self: MPI.Comm, *args: Any, **named: Any) -> Any:
        calls = communicators.get(self.handle)
        if calls is None:
            return real(self, *args, **named)
        given = by_position(parameters, args, named) if named else args
        what = what_of(calls, given)
        if what is None:
            return real(self, *args, **named)
        if persists:
            found = real(self, *args, **named)
            persistent[found.handle] = Persistent(calls, what, name)
        elif isinstance(what, Record):
            found = calls.noted(what, real, self, *args, **named)
        elif begins:
            found = real(self, *args, **named)
        else:
            return calls.until((what, monotonic()), real, self, *args, **named)
        if begins:
            _begin(found, calls, what, name)
        return found

    return call


def _collective(real: Any, name: str, row: arguments.Method) -> Callable[..., Any]:
    parameters = parameters_of(real)
    at_op, at_root = (parameters.index(each) if each in parameters else None for each in ("op", "root"))
    size_of = row.size

    def record_of(calls: CommunicatorCalls, given: Sequence[Any]) -> Record:
        if calls.is_inter:  # there, the two groups give different roots, and take different buffers
            return calls.record(name, "meeting")
        op = root = size = None
        if at_op is not None:
            op = operation_of((given[at_op] if at_op < len(given) else None) or MPI.SUM)
        if at_root is not None:
            root = (given[at_root] if at_root < len(given) else None) or 0
        if size_of is not None:
            size = size_of(given[0] if given else None, given[1] if len(given) > 1 else None, calls.size)
        return calls.record(name, row.operation, op, root, size)

    return _caller(real, name, record_of)


def _make(real: Any, comm: MPI.Comm, *args: Any, **named: Any) -> Any:
    """What makes a communicator. It is a collective, and its result is watched, too, if it is the program's."""
    calls, name = communicators.get(comm.handle), real.__name__
    if (calls is None and name != "Create_intercomm") or _is_ours():  # by that, a rank alone gets others
        return real(comm, *args, **named)
    tag = by_name(real, args, named).get("tag", 0)
    if calls is None or name == "Create_group":  # ranks that are not in it do not come
        found = real(comm, *args, **named)
    else:
        record = calls.record(name, "meeting" if name in arguments.MEETINGS else "barrier")
        found = calls.noted(record, real, comm, *args, **named)
    if name not in arguments.DYNAMIC:
        watch_part(found, None if name == "Create_intercomm" else calls, tag)
    return found


def _is_ours() -> bool:
    """Whether mpicoll has called the method whose body asks."""
    return bool(sys._getframe(3).f_globals.get("__name__", "").startswith(_OWN))


def _end(real: Any, comm: MPI.Comm) -> None:
    calls = communicators.pop(comm.handle, None)
    if calls is not None:
        calls.free()
    real(comm)


def _message(real: Any, name: str) -> Callable[..., Any]:
    """A message, or both of a sendrecv, or a probe."""
    parameters = parameters_of(real)
    tag = "sendtag" if "dest" in parameters else "recvtag"
    meanings: list[str] = [each for each in ("dest", "sendtag", "source", "recvtag", "tag") if each in parameters]
    places = [parameters.index(each) for each in meanings]
    meanings = [tag if each == "tag" else each for each in meanings]
    has_buffer = parameters[0] in ("buf", "sendbuf") and name[0].isupper()

    def pending_of(calls: CommunicatorCalls, given: Sequence[Any]) -> Pending | None:
        """None if the message is nobody's, and complete at once, or if MPI refuses it."""
        key: Any = name, *[given[at] if at < len(given) else None for at in places]
        try:
            found: Pending | None = calls.known.get(key)
            if found is None:  # numbers of NumPy's cannot be told to other processes as they are
                numbers = zip(meanings, key[1:], strict=True)
                ends = {each: index(_DEFAULTS[each] if number is None else number) for each, number in numbers}
                if len(ends) == 2 and MPI.PROC_NULL in (ends.get("dest"), ends.get("source")):
                    return None
                found = calls.keep(key, calls.message(name, **ends))
        except TypeError:
            return None
        if has_buffer and calls.waits.tape is not None:
            size = size_of(given[0])
            return found if size is None else found._replace(nbytes=size[0], dtype=str(size[1]))
        return found

    return _caller(real, name, pending_of)


def _functions() -> Iterator[tuple[type, str, object]]:
    for owner in (MPI.Comm, MPI.Intracomm, MPI.Intercomm, MPI.Topocomm, MPI.Cartcomm):
        for name, real in [*vars(owner).items()]:
            base = name.removesuffix("_init")
            row = arguments.COLLECTIVES.get(base[1:].capitalize() if base.startswith("I") else base)
            if row is not None:
                yield owner, name, _collective(real, name, row)
            elif name in arguments.MAKERS:
                yield owner, name, around(real, _make)
            elif name in arguments.MESSAGES:
                yield owner, name, _message(real, name)
            elif name in ("Free", "Disconnect"):
                yield owner, name, around(real, _end)
    for name, same in (("Probe", "Mprobe"), ("probe", "mprobe")):
        yield MPI.Message, name, staticmethod(getattr(MPI.Comm, same))
    yield from windows.functions()
    for name in ("Wait", "wait", "Test", "test"):
        yield MPI.Request, name, around(getattr(MPI.Request, name), _wait if name in ("Wait", "wait") else _test)
        for kind in ("all", "any", "some"):
            body = _wait_for_all if name + kind in ("Waitall", "waitall") else _several
            yield MPI.Request, name + kind, classmethod(around(getattr(MPI.Request, name + kind), body))
    yield MPI.Request, "Free", around(MPI.Request.Free, _free_request)
    yield MPI.Prequest, "Start", around(MPI.Prequest.Start, _start)
    yield MPI.Prequest, "Startall", classmethod(around(MPI.Prequest.Startall, _start_all))
