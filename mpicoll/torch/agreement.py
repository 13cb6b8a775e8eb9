"""What a group's ranks compare before a collective of lists moves data.

MPI would see only that there is too much or too little, and not always that; a short message more makes it an error
on every rank. The arrays of that message are kept, so that its plan is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from zlib import crc32

import numpy as np
import torch

from mpicoll.communicator.communicator import Communicator
from mpicoll.errors import MessageError

__all__ = ["Agreement"]


class Agreement:
    """The comparisons of one group, whose rank r is the global rank ``ranks[r]``."""

    def __init__(self, comm: Communicator, ranks: Sequence[int]) -> None:
        self._comm, self._ranks = comm, ranks
        self._mine, self._all = np.zeros(1, np.int64), np.zeros(comm.size, np.int64)
        self._to, self._coming = np.zeros(comm.size, np.int64), np.zeros(comm.size, np.int64)

    def alike(self, operation: str, tensor: torch.Tensor) -> None:
        """All ranks' tensors have one shape and dtype; MessageError on every rank if not."""
        self._mine[0] = _digest(tensor.shape, tensor.dtype)
        self._comm.allgather(self._mine, out=self._all)
        if (self._all != self._mine[0]).any():
            said = self._comm.allgather_object(f"{tuple(tensor.shape)} {tensor.dtype}")
            ranks = ", ".join(f"rank {r} {what}" for r, what in zip(self._ranks, said, strict=True))
            raise MessageError(f"{operation}: expected tensors of one shape and dtype on all ranks; given: {ranks}")

    def meet(self, operation: str, argument: str, to: Sequence[int], of: Sequence[int]) -> None:
        """What each rank sends to each other is what that one expects; MessageError on every rank if not."""
        self._to[:] = to
        self._comm.alltoall(self._to, out=self._coming)
        wrong = [(r, int(n), of[r]) for r, n in enumerate(self._coming) if n != of[r]]
        self._mine[0] = len(wrong)
        self._comm.allreduce(self._mine, "max", out=self._mine)
        if self._mine[0]:
            for rank, faults in zip(self._ranks, self._comm.allgather_object(wrong), strict=True):
                for r, sent, expected in faults:
                    raise MessageError(
                        f"{operation}: {argument}[{r}] on rank {rank}: expected {sent}, "
                        f"as rank {self._ranks[r]} sends; given {expected}"
                    )


@lru_cache(maxsize=1024)
def _digest(shape: torch.Size, dtype: torch.dtype) -> int:
    return crc32(f"{tuple(shape)} {dtype}".encode())
