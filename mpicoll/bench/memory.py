"""The buffers of each size, as raw bytes, which every backend uses in turn.

Each is an array of its own, as programs have them: cut from a large one they would lie on huge pages, on which MPIs
that read the memory of other ranks where it lies move short vectors in half the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.arrays.kernels import storage
from mpicoll.bench.data import given, words
from mpicoll.bench.rules import Case

__all__ = ["Arena", "Slot", "arena_bytes"]

SLOTS = 4
"""Pairs of buffers that calls take turns on, so that none works on memory that the last one left in cache."""
ROOMY = 256 << 20
"""Bytes beyond which two pairs must do."""
POISON = 0xEE
"""Fills what a call is to write. No result is made of it."""

Array = NDArray[Any]
Raw = Any
"""A 1-D array of bytes: NumPy's, or a torch tensor on a GPU."""


def _pair(case: Case) -> tuple[int, int]:
    """Bytes set apart for the input and for the result."""
    return case.given_blocks * case.block_bytes, case.gotten_blocks * case.block_bytes


def _slots(case: Case) -> int:
    return max(2, min(SLOTS, ROOMY // max(1, sum(_pair(case)))))


def arena_bytes(cases: Sequence[Case]) -> int:
    """Bytes that one rank needs to measure any of these cases."""
    return max((_slots(c) * sum(_pair(c)) for c in cases), default=0)


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
            None if raw is None else view(raw).reshape((blocks, c.count) if by_rank else (c.count,))
            for raw, blocks, by_rank in (
                (self.x, c.given_blocks, kinds.gives == "p"),
                (self.out, c.gotten_blocks, kinds.gets == "p"),
            )
        )
        return x, out

    def result(self) -> Array:
        """The words of the result, in host memory."""
        assert self.out is not None
        raw = self.out if isinstance(self.out, np.ndarray) else self.out.cpu().numpy()
        return np.asarray(raw.view(words(self.case.dtype.itemsize)[0]))


def of_numpy(nbytes: int) -> Raw:
    """NumPy's own memory, for which it asks for huge pages from 4 MiB on."""
    return np.empty(nbytes, np.uint8)


class Arena:
    """Memory of one rank, on the host or on its GPU: the buffers of one size at a time. ``new`` makes those of the
    host."""

    def __init__(self, device: str = "cpu", new: Callable[[int], Raw] = of_numpy) -> None:
        self._device, self._host, self._of_host = device, device == "cpu", new
        self._pair = (0, 0)
        self._buffers: list[tuple[Raw, Raw]] = []

    def slots(self, case: Case) -> list[Slot]:
        """The slots of a case: in the same memory as those of the last one, if that was of this size."""
        pair, slots = _pair(case), _slots(case)
        if (pair, slots) != (self._pair, len(self._buffers)):
            self._buffers.clear()
            self._pair, self._buffers = pair, [(self._new(pair[0]), self._new(pair[1])) for _ in range(slots)]
        return [self._slot(case, *buffers) for buffers in self._buffers]

    def _new(self, nbytes: int) -> Raw:
        if self._host:
            return self._of_host(nbytes)
        import torch

        return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def _slot(self, case: Case, x: Raw, out: Raw) -> Slot:
        own = slice(case.rank * case.block_bytes, (case.rank + 1) * case.block_bytes)
        if case.in_place:
            if case.rule.collective.gathers:
                x = out[own]
            elif case.rule.collective.scatters:
                out = x[own]
            else:
                out = x
        slot = Slot(case, x if case.has_input else None, out if case.has_output else None)
        slot.writes = self._writes(slot)
        return slot

    def _writes(self, slot: Slot) -> list[Callable[[], object]]:
        case, writes = slot.case, list[Callable[[], object]]()
        if not case.rule.sized:
            return []
        gives = case.name != "bcast" or case.at_root
        inside = case.in_place and case.rule.collective.gets != "p" and slot.x is not None and gives
        if slot.out is not None and not inside:
            writes.append(partial(slot.out.fill if self._host else slot.out.fill_, POISON))
        if slot.x is not None and gives:
            writes += self._fill(slot.x, given(case))
        return writes if self._host else [*writes, _finish]

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


def _finish() -> None:
    import torch

    torch.cuda.synchronize()


def _copy(to: Any, of: Any) -> None:
    to.copy_(of)
