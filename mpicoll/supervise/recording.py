"""``mpicoll.record``: the calls that ranks make in a part of the program, in one file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from mpicoll.errors import ArgumentError, StateError
from mpicoll.supervise import tape, watch


@contextmanager
def record(file: str | os.PathLike[str]) -> Iterator[None]:
    """Record all calls that this rank makes within the ``with`` statement, and write them to ``file`` at its end.

    Each collective and message is in it: its communicator, its bytes and dtype, the line of the program, and when it
    was issued, waited for and complete. ``mpicoll report`` reads the file, and so do Perfetto and chrome://tracing.

    Each rank may record, or one alone. It is no collective: a rank waits at its end only until the file is written,
    with the calls of all ranks that have come to their ends of it by then. When all of them have, the file is complete.
    The first rank's process writes it. A call takes some microseconds longer meanwhile.

    Of an mpi4py program, and of torch over gloo, calls are recorded where they are watched: see :func:`watch`.

    Raises ArgumentError if the file cannot be in its folder, and StateError if it could not be written.
    """
    try:
        path = Path(file).absolute()
    except TypeError:
        raise ArgumentError("record", "file", "the name of a file", repr(file)) from None
    if path.is_dir():
        raise ArgumentError("record", "file", "the name of a file", f"{str(file)!r}, which is a folder")
    process, begin = os.getpid(), monotonic()
    running = tape.begin()
    watch.tape_all()
    try:
        yield
    finally:
        recording = running.copied(begin)
        tape.end()
        watch.tape_all()
        # A forked child that comes here has made none of the calls.
        failure = watch.write_recording(path, recording) if os.getpid() == process else ""
    if failure:
        raise StateError(f"record: {path} could not be written: {failure}")
