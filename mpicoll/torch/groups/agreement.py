"""What the ranks of a group compare before a collective on lists of tensors moves any data.

MPI notices at most that a message is too long or too short, and not always that. So ranks first exchange a short
message about what they are going to do. If they disagree, every rank raises the same error.
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
    """The comparisons of one group. Rank r of ``comm`` is the global rank ``ranks[r]``.

    The arrays of the short messages are kept. A call on the same memory finds its plan again.
    """

    def __init__(self, comm: Communicator, ranks: Sequence[int]) -> None:
        self._comm, self._ranks = comm, ranks
        self._mine, self._all = np.zeros(1, np.int64), np.zeros(comm.size, np.int64)
        self._sent, self._coming = np.zeros(comm.size, np.int64), np.zeros(comm.size, np.int64)

    def same_shape_and_dtype(self, operation: str, tensor: torch.Tensor) -> None:
        """Raise MessageError on every rank unless all ranks' tensors have one shape and one dtype."""
        self._mine[0] = _digest(tensor.shape, tensor.dtype)
        self._comm.allgather(self._mine, out=self._all)
        if (self._all != self._mine[0]).any():
            given = self._comm.allgather_object(f"{tuple(tensor.shape)} {tensor.dtype}")
            ranks = ", ".join(f"rank {r} {what}" for r, what in zip(self._ranks, given, strict=True))
            raise MessageError(f"{operation}: expected tensors of one shape and dtype on all ranks; given: {ranks}")

    def same_counts(self, operation: str, argument: str, sent: Sequence[int], expected: Sequence[int]) -> None:
        """Raise MessageError on every rank unless each rank sends to each other one as much as that one expects.

        This rank sends ``sent[r]`` to rank r, and expects ``expected[r]`` from it.
        """
        self._sent[:] = sent
        self._comm.alltoall(self._sent, out=self._coming)
        wrong = [(r, int(n), expected[r]) for r, n in enumerate(self._coming) if n != expected[r]]
        self._mine[0] = len(wrong)
        self._comm.allreduce(self._mine, "max", out=self._mine)
        if not self._mine[0]:
            return
        for rank, faults in zip(self._ranks, self._comm.allgather_object(wrong), strict=True):
            for r, coming, awaited in faults:
                raise MessageError(
                    f"{operation}: {argument}[{r}] on rank {rank}: expected {coming}, "
                    f"as rank {self._ranks[r]} sends; given {awaited}"
                )


@lru_cache(maxsize=1024)
def _digest(shape: torch.Size, dtype: torch.dtype) -> int:
    return crc32(f"{tuple(shape)} {dtype}".encode())
