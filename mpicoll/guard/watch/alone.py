"""Whether a rank's main thread is all that may make calls of the rank. While it waits, the rank does nothing then."""

from __future__ import annotations

import signal
import sys
import threading
from concurrent.futures import thread as executors
from types import CodeType, FrameType
from typing import Any

from mpicoll.fabrics.thread_job import Helper, Onlooker
from mpicoll.guard.sites import frames_now, is_program

_SEND_NOTHING = (
    "/torch/utils/data/_utils/pin_memory.py",
    "/torch/_inductor/compile_worker/subproc_pool.py",
    "/tqdm/_monitor.py",
)
"""Files with the functions of threads that programs have without knowing it, and that make no calls."""


def is_alone() -> bool:
    """Whether no thread and no function of the program's that a signal calls may make a call."""
    ours = {each.ident for each in threading.enumerate() if isinstance(each, Onlooker) or _is_idle(each)}
    others = frames_now()  # also the threads that the program has begun without the module threading
    for known in ours | {threading.main_thread().ident}:
        others.pop(known or 0, None)
    threads = any(not _does_nothing(frame) for frame in others.values())
    handles = any(_is_of_program(each, signal.getsignal(each)) for each in signal.valid_signals())
    return not (threads or handles or _serves_torch())


def _is_idle(thread: threading.Thread) -> bool:
    return isinstance(thread, Helper) and not thread.tasks


def _does_nothing(frame: FrameType) -> bool:
    """Whether the thread that is in this frame makes no calls before another thread of this process lets it: it waits
    for that, and for nothing else. Or it never makes any."""
    if frame.f_code is threading.Condition.wait.__code__ and frame.f_locals.get("timeout") is None:
        return True
    of_executor = (frame.f_code.co_filename, frame.f_code.co_name) == (executors.__file__, "_worker")  # without a task
    return of_executor or _made_for(frame).endswith(_SEND_NOTHING)


def _made_for(frame: FrameType) -> str:
    """The file of the function for which the thread was made: the outermost frame that is not of threads as such."""
    file = ""
    around: FrameType | None = frame
    while around is not None:
        file = file if (here := around.f_code.co_filename) == threading.__file__ else here
        around = around.f_back
    return file


def _is_of_program(number: int, handler: Any) -> bool:
    """Whether a signal calls a function of the program, perhaps through one of a library, as torch's DataLoader does
    that has found one in its place."""
    if not callable(handler) or (number == signal.SIGINT and handler is signal.default_int_handler):
        return False
    code = getattr(handler, "__code__", None)
    if not isinstance(code, CodeType) or is_program(code.co_filename):
        return True
    given = [cell.cell_contents for cell in handler.__closure__ or ()]
    return any(_is_of_program(number, each) for each in given)


def _serves_torch() -> bool:
    """Whether torch's RPC runs. Its threads are C++'s: nobody sees them before they call a function of the program."""
    its_name = getattr(sys.modules.get("torch.distributed.rpc"), "get_worker_info", None)
    if its_name is None:
        return False
    try:
        its_name()
    except RuntimeError:  # it has not begun, or has ended
        return False
    return True
