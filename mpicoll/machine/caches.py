"""How memory that ranks share goes from one core's cache to another's.

On an AMD EPYC, a reader overwrites what it has read, and a loop copies long vectors. Both make calls faster
(benchmarks/overwritten.py). They were measured where the cores of two ranks were near each other, and where they were
far apart.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from mpicoll.machine.cpu import fingerprint

__all__ = ["both_help", "copied", "overwritten"]

Array = np.ndarray[Any, np.dtype[Any]]

_MEASURED = ("AuthenticAMD", "family 25 model 17 ")
"""What stands in the fingerprints of CPUs on which both were measured to help."""
_LEAST = 8 << 10
"""Bytes of the shortest array that is overwritten: for a shorter one, NumPy's own time counts more."""
_LONG = 2 << 20
"""Bytes of the shortest vector that is copied by a loop."""
_WORD = np.dtype(np.int64)


def both_help(cpu: str) -> bool:
    """Whether ranks overwrite what they have read and copy long vectors by a loop, on a CPU with this fingerprint.

    To write again what another rank has read takes long, and much less after that rank has overwritten it. Probably,
    two caches hold it before, and afterwards the reader's alone, which hands it over whole. On an EPYC (family 25 model
    17), to write 256 KiB again took 19 us in place of 113 where the two cores were far apart, and 8 in place of 30
    where they were near. To overwrite them took 3 to 4."""
    return all(part in cpu for part in _MEASURED)


def overwritten(read: Array) -> list[partial[None]]:
    """What a rank does with memory that it has read. The caller knows that nobody reads it again before its owner has
    written it."""
    return [partial(read.view(np.uint8).fill, 0)] if read.nbytes >= _LEAST and both_help(fingerprint()) else []


def copied(target: Array, source: Array, nbytes: int) -> partial[Any]:
    """A copy of what another rank has written. It is a vector of ``nbytes`` bytes, or a piece of it.

    The C library copies long arrays by one instruction (``rep movsb``). Into memory that is in no cache, a loop copies
    faster: in pieces of 256 KiB, 16 MiB took 1.2 ms in place of 2.2."""
    if nbytes >= _LONG and both_help(fingerprint()):
        ends = [at for a in (target, source) for at in (a.ctypes.data, a.nbytes)]
        if all(end % _WORD.itemsize == 0 for end in ends):
            return partial(np.positive, source.view(_WORD), out=target.view(_WORD))
    return partial(np.copyto, target, source)
