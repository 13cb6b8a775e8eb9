"""The same work for several names at once, in processes that are forked."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from mpicoll.errors import MpicollError

Result = TypeVar("Result")


def at_once(work: Callable[[str], Result], names: Sequence[str], processes: int) -> dict[str, Result]:
    """What ``work`` returns for each name, in the order of the names, from so many processes at a time.

    Raises what ``work`` raises, and MpicollError if a process ends without a result. Only this process hears Ctrl-C.
    Whatever ends the work, no process is left.
    """
    found: dict[str, Result] = {}
    working: dict[Connection, tuple[str, BaseProcess]] = {}
    todo = [*names]
    try:
        while todo or working:
            while todo and len(working) < processes:
                with _deaf():
                    receiver, process = _started(work, todo[0])
                    working[receiver] = todo.pop(0), process
            for ready in wait([*working]):
                assert isinstance(ready, Connection)
                name, process = working[ready]
                found[name] = _received(ready, name, process)
                process.join()
                del working[ready]
                ready.close()
    finally:
        for _, process in working.values():
            process.kill()
        for _, process in working.values():
            process.join()
    return {name: found[name] for name in names}


@contextmanager
def _deaf() -> Iterator[None]:
    """Put Ctrl-C off. A process that is forked meanwhile never hears it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _started(work: Callable[[str], Result], name: str) -> tuple[Connection, BaseProcess]:
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, work, name), daemon=True)
    process.start()
    sender.close()  # so that the process has the only one, and the receiver notices its end
    return receiver, process


def _answer(sender: Connection, work: Callable[[str], Result], name: str) -> None:
    try:
        answer: Result | Exception = work(name)
    except Exception as error:
        answer = error
    sender.send(answer)


def _received(receiver: Connection, name: str, process: BaseProcess) -> Any:
    try:
        answer = receiver.recv()
    except EOFError:
        process.join()
        raise MpicollError(f"{name}: its process ended early, with exit code {process.exitcode}") from None
    if isinstance(answer, Exception):
        raise answer
    return answer
