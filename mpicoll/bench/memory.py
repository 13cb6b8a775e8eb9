"""The buffers: allocated once, as raw bytes, then cut into slots that every backend uses in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.bench.data import given, words
from mpicoll.bench.rules import Case
from mpicoll.kernels import storage

__all__ = ["Arena", "Slot", "arena_bytes"]

SLOTS = 4
"""Pairs of buffers that calls take turns on, so that none works on memory that the last one left in cache."""
ROOMY = 256 << 20
"""Bytes beyond which two pairs must do."""
ALIGNMENT = 64
POISON = 0xEE
"""Fills what a call is to write. No result is made of it."""

Array = NDArray[Any]
Raw = Any
"""A 1-D array of bytes: NumPy's, or a torch tensor on a GPU."""


def _pair(case: Case) -> tuple[int, int]:
    """Bytes set apart for the input and for the result."""
    both = (case.given_blocks * case.block_bytes, case.gotten_blocks * case.block_bytes)
    return -(-both[0] // ALIGNMENT) * ALIGNMENT, -(-both[1] // ALIGNMENT) * ALIGNMENT


def _slots(case: Case) -> int:
    return max(2, min(SLOTS, ROOMY // max(1, sum(_pair(case)))))


def arena_bytes(cases: Sequence[Case]) -> int:
    """Bytes that one rank needs to measure any of these cases."""
    return max((_slots(c) * sum(_pair(c)) for c in cases), default=0) + ALIGNMENT


@dataclass
class Slot:
    """One pair of buffers of a case, as raw bytes: what this rank hands over, and where its result goes.

    Either is None where this rank has no such part. In place, one lies within the other. ``rewrite()`` puts the
    input back and poisons the place of the result.
    """

    case: Case
    x: Raw | None
    out: Raw | None
    writes: list[Callable[[], object]] = field(default_factory=list)

    def rewrite(self) -> None:
        for write in self.writes:
            write()

    def numpy(self) -> tuple[Any, Any]:
        """(x, out) as NumPy arrays of the dtype's storage, with a row for each rank where there are blocks."""
        kind = storage(self.case.dtype)
        return self._shaped(lambda raw: raw.view(kind))

    def torch(self) -> tuple[Any, Any]:
        """(x, out) as torch tensors over the same memory."""
        import torch

        kind = getattr(torch, self.case.dtype.name)
        return self._shaped(lambda raw: (torch.from_numpy(raw) if isinstance(raw, np.ndarray) else raw).view(kind))

    def _shaped(self, view: Callable[[Raw], Any]) -> tuple[Any, Any]:
        c, kinds = self.case, self.case.rule.collective
        x, out = (
            None if raw is None else view(raw).reshape((c.ranks, c.count) if blocks == "p" else (c.count,))
            for raw, blocks in ((self.x, kinds.gives), (self.out, kinds.gets))
        )
        return x, out

    def result(self) -> Array:
        """The words of the result, in host memory."""
        assert self.out is not None
        raw = self.out if isinstance(self.out, np.ndarray) else self.out.cpu().numpy()
        return np.asarray(raw.view(words(self.case.dtype.itemsize)[0]))


class Arena:
    """Memory of one rank, on the host or on its GPU, that all cases share."""

    def __init__(self, nbytes: int, device: str = "cpu") -> None:
        self._raw: Raw
        if device == "cpu":
            memory = np.empty(nbytes + ALIGNMENT, np.uint8)
            start = -memory.ctypes.data % ALIGNMENT
            self._raw = memory[start : start + nbytes]
        else:
            import torch

            self._raw = torch.empty(nbytes, dtype=torch.uint8, device=device)
            self._finish = torch.cuda.synchronize
        self._host = device == "cpu"

    def slots(self, case: Case) -> list[Slot]:
        """The slots of a case, from the start of the memory on: cases are measured one after another."""
        stride = sum(_pair(case))
        return [self._slot(case, self._raw[i * stride : (i + 1) * stride]) for i in range(_slots(case))]

    def _slot(self, case: Case, raw: Raw) -> Slot:
        block, rank = case.block_bytes, case.rank
        x, out = raw[: case.given_blocks * block], raw[_pair(case)[0] :][: case.gotten_blocks * block]
        own = slice(rank * block, (rank + 1) * block)
        if case.in_place:
            match case.rule.collective.gives, case.rule.collective.gets:
                case "1", "p":
                    x = out[own]
                case "p", "1":
                    out = x[own]
                case _:
                    out = x
        slot = Slot(case, x if case.has_input else None, out if case.has_output else None)
        slot.writes = self._writes(slot)
        return slot

    def _writes(self, slot: Slot) -> list[Callable[[], object]]:
        case, writes = slot.case, list[Callable[[], object]]()
        if not case.rule.sized:
            return []
        gives = case.name != "bcast" or case.at_root
        inside = case.in_place and case.rule.collective.gets == "1" and slot.x is not None and gives
        if slot.out is not None and not inside:
            writes.append(partial(slot.out.fill if self._host else slot.out.fill_, POISON))
        if slot.x is not None and gives:
            writes += self._fill(slot.x, given(case))
        return writes if self._host else [*writes, self._finish]

    def _fill(self, raw: Raw, period: Array) -> list[Callable[[], object]]:
        """Copies that repeat the period over the memory: whole periods, then the rest."""
        kind = period.dtype
        target: Any
        source: Any
        if self._host:
            target, source = raw.view(kind), period
        else:
            import torch

            signed = f"int{8 * kind.itemsize}" if kind.itemsize > 1 else "uint8"  # torch's views know these
            target = raw.view(getattr(torch, signed))
            source = torch.from_numpy(period.view(signed)).to(raw.device)
        count = len(target)
        whole = count - count % len(source)
        parts = (
            (target[:whole].reshape(-1, len(source)), source),
            (target[whole:], source[: count - whole]),
        )
        copy = np.copyto if self._host else _copy
        return [partial(copy, to, of) for to, of in parts if to.shape[0]]


def _copy(to: Any, of: Any) -> None:
    to.copy_(of)
