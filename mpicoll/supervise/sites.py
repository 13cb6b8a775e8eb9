"""Where in the program a call is made, outside of mpicoll and torch, and what the program's threads do now."""

from __future__ import annotations

import gc
import signal
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import thread as executors
from importlib.util import find_spec
from itertools import islice, takewhile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

from mpicoll.units import line_named

T = TypeVar("T")

_MOST_SAID = 200  # characters of an exception's text that are told
Site = tuple[CodeType, int]
"""A frame's code, and the index of the instruction that it is at. A frame itself would keep the program's arrays."""

_LIBRARIES = tuple(
    str(Path(spec.origin).parent) + "/"
    for name in ("mpicoll", "torch", "mpi4py")
    if (spec := find_spec(name)) is not None and spec.origin is not None
)
_PROGRAMS = tuple(f"{Path(__file__).parents[1]}/{room}/" for room in ("bench", "cli", "doctor"))
"""What of mpicoll calls it as a program does: its commands."""
_STANDARD = (sysconfig.get_path("stdlib") + "/", "<frozen ")
_PACKAGES = ("/site-packages/", "/dist-packages/")
is_library: dict[str, bool] = {}
"""Whether a file belongs to Python or to a library through which programs call, by the file's name."""


class _Here(threading.local):
    """What the current thread makes calls for."""

    site: Site | None = None
    handed_in: float | None = None


here = _Here()  # where and when (by ``time.monotonic``) another thread has handed in what this thread does now


def site_of(frame: FrameType) -> tuple[Site, int]:
    """The site of the program that has led to ``frame``, or its own, and how far out that is from what it called."""
    found: FrameType | None = frame
    depth = 1
    while found is not None:
        if is_program(found.f_code.co_filename):
            return (found.f_code, found.f_lasti), depth
        found, depth = found.f_back, depth + 1
    return here.site or (frame.f_code, frame.f_lasti), 2


def backward_pass(frame: FrameType | None) -> int | None:
    """The number of the backward pass in which autograd's engine has called what is now in ``frame``, if no function of
    the program's is between: so does the reducer of DistributedDataParallel."""
    for each in takewhile(lambda each: not is_program(each.f_code.co_filename), _outward(frame)):
        if each.f_globals.get("__name__") == "torch.autograd.graph":
            return int(sys.modules["torch"]._C._current_graph_task_id())
    return None


def site_now() -> Site:
    """The site of the program that has led to the caller."""
    return site_of(sys._getframe(1))[0]


def warn(text: str) -> None:
    """Warn of the program's line that has led here."""
    _, depth = site_of(sys._getframe(1))
    warnings.warn(text, stacklevel=depth + 1)


def is_program(file: str) -> bool:
    """Whether the file belongs neither to Python nor to a library through which programs call."""
    known = is_library.get(file)
    if known is None:
        pythons = file.startswith(_STANDARD) and not any(folder in file for folder in _PACKAGES)
        pythons = pythons or file.endswith("/typing_extensions.py")  # is around what torch has deprecated
        known = is_library[file] = pythons or (file.startswith(_LIBRARIES) and not file.startswith(_PROGRAMS))
    return not known


def place_of(site: Site) -> str:
    """The site as ``file.py:12 in function``."""
    code, _ = site
    return f"{line_named(code.co_filename, line_of(site))} in {code.co_name}"


def line_of(site: Site) -> int:
    """The number of the site's line in its file."""
    code, at = site
    return next((line for start, end, line in code.co_lines() if start <= at < end), None) or code.co_firstlineno


def handled() -> str:
    """The exception that the program's main thread handles now, as in ``ValueError: no such file``; or nothing."""
    found: Any = _of_threads(sys._current_exceptions).get(threading.main_thread().ident or 0)
    error = found[1] if isinstance(found, tuple) else found  # before Python 3.12, it was a tuple
    while error is not None and not ((trace := error.__traceback__) and is_program(trace.tb_frame.f_code.co_filename)):
        error = error.__context__  # one of mpicoll's own may have come in the program's handler
    if error is None:
        return ""
    said = _first_line(str(error))
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def failed_test() -> str:
    """The last test that has failed, as in ``test_sum.py::test_all failed with AssertionError: 3 != 4``, if pytest runs
    tests in the main thread. It tells of it at its end, to which this rank may not come."""
    frames = _outward(frames_now().get(threading.main_thread().ident or 0))
    session = next((f.f_locals.get("session") for f in frames if f.f_code.co_name == "pytest_runtestloop"), None)
    reporter = session and session.config.pluginmanager.get_plugin("terminalreporter")
    stats = getattr(reporter, "stats", {})
    failed = [*stats.get("error", []), *stats.get("failed", [])]
    if not failed:
        return ""
    crash = getattr(failed[-1].longrepr, "reprcrash", None)
    return f"{failed[-1].nodeid} failed{f' with {_first_line(crash.message)}' if crash else ''}"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:_MOST_SAID]


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame, what has called it, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def frames_now() -> dict[int, FrameType]:
    """The innermost frame of each thread, by the thread's number."""
    return _of_threads(sys._current_frames)


def _of_threads(ask: Callable[[], dict[int, T]]) -> dict[int, T]:
    collecting = sys.version_info < (3, 12) and gc.isenabled()
    if collecting:
        gc.disable()  # to collect here would block this version for ever: github.com/python/cpython/issues/106883
    try:
        return ask()
    finally:
        if collecting:
            gc.enable()


def whereabouts(thread: int | None = None) -> str:
    """Where the thread is now (the main thread if None): the program's frames, the innermost one first."""
    frames = _outward(frames_now().get(thread or threading.main_thread().ident or 0))
    programs = islice((each for each in frames if is_program(each.f_code.co_filename)), 3)
    return ", from ".join(place_of((each.f_code, each.f_lasti)) for each in programs) or "its end"


_SEND_NOTHING = (
    "/torch/utils/data/_utils/pin_memory.py",
    "/torch/_inductor/compile_worker/subproc_pool.py",
    "/tqdm/_monitor.py",
)
"""Files with the functions of threads that programs have without knowing it, and that make no calls."""


class DaemonThread(threading.Thread):
    """A thread of mpicoll's own. While it has no tasks, it makes no calls of the program's. The interpreter does not
    wait for it at its end: the other ranks of a call may never come."""

    tasks = 0  # how many calls were handed in to it and are not complete

    def __init__(self, target: Callable[..., object], name: str, args: Sequence[Any] = ()) -> None:
        super().__init__(target=target, name=name, args=args, daemon=True)


def is_alone() -> bool:
    """Whether only the main thread may make calls of this rank: no other thread does, and no function of the program's
    that a signal calls. While the main thread waits, the rank does nothing then."""
    ours = {each.ident for each in threading.enumerate() if isinstance(each, DaemonThread) and not each.tasks}
    others = frames_now()  # also the threads that the program has begun without the module threading
    for known in ours | {threading.main_thread().ident}:
        others.pop(known or 0, None)
    threads = any(not _does_nothing(frame) for frame in others.values())
    handles = any(_calls_program(each, signal.getsignal(each)) for each in signal.valid_signals())
    return not (threads or handles or _serves_torch())


def _does_nothing(frame: FrameType) -> bool:
    """Whether the thread in this frame makes no calls before another thread of this process lets it, or never any."""
    if frame.f_code is threading.Condition.wait.__code__ and frame.f_locals.get("timeout") is None:
        return True
    if (frame.f_code.co_filename, frame.f_code.co_name) == (executors.__file__, "_worker"):  # without a task
        return True
    # That of the function for which the thread was made is the outermost one that is not of threads as such.
    files = [file for each in _outward(frame) if (file := each.f_code.co_filename) != threading.__file__]
    return files != [] and files[-1].endswith(_SEND_NOTHING)


def _calls_program(number: int, handler: Any) -> bool:
    """Whether a signal calls a function of the program, perhaps through a library, as torch's DataLoader does."""
    if not callable(handler) or (number == signal.SIGINT and handler is signal.default_int_handler):
        return False
    code = getattr(handler, "__code__", None)
    if not isinstance(code, CodeType) or is_program(code.co_filename):
        return True
    given = [cell.cell_contents for cell in handler.__closure__ or ()]
    return any(_calls_program(number, each) for each in given)


def _serves_torch() -> bool:
    """Whether torch's RPC runs. Its threads are C++'s: nobody sees them before they call a function of the program."""
    try:
        sys.modules["torch.distributed.rpc"].get_worker_info()
    except (KeyError, AttributeError, RuntimeError):  # it is not loaded or not built, or does not run
        return False
    return True
