"""The buffers of each size, as raw bytes. All backends use the same ones, in turns.

Each buffer is an array of its own, as in programs. Buffers cut from one large array would lie on huge pages. There, MPI
libraries that read another rank's memory directly move short vectors in half the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.arrays.kernels import storage
from mpicoll.bench.cases import Case, bits, given

PAIRS = 4
"""Pairs of buffers that calls use in turns, so that no call finds in the caches what the call before it left there."""
MOST_BYTES = 256 << 20  # if so many pairs need more memory than this, there are fewer, but at least two
POISON = 0xEE  # the byte that fills the memory which a call is to write. No result consists of it.

Array = NDArray[Any]
Raw = Any  # a 1-D array of bytes: NumPy's, or a torch tensor on a GPU


def _pairs(case: Case) -> int:
    return max(2, min(PAIRS, MOST_BYTES // max(1, sum(case.lengths))))


def arena_bytes(cases: Sequence[Case]) -> int:
    """Bytes that one rank needs for whichever of these cases needs most."""
    return max((_pairs(c) * sum(c.lengths) for c in cases), default=0)


@dataclass
class Buffers:
    """One pair of buffers of a case, as raw bytes: ``x`` is what this rank passes, ``out`` is where its result goes.
    Either is None if this rank has no such buffer. In place, one lies within the other. ``rewrite()`` writes the input
    again and fills the memory of the result with :data:`POISON`."""

    case: Case
    x: Raw | None
    out: Raw | None
    writes: Sequence[Callable[[], object]] = ()

    def rewrite(self) -> None:
        for write in self.writes:
            write()

    def numpy(self) -> tuple[Any, Any]:
        """(x, out) as NumPy arrays of the dtype's storage, with a row for each rank if there is a block for each."""
        kind = storage(self.case.dtype)
        return self._shaped(lambda raw: raw.view(kind))

    def torch(self) -> tuple[Any, Any]:
        """(x, out) as torch tensors over the same memory. None if no data moves: torch cannot view that."""
        if not self.case.collective.moves:
            return None, None
        import torch

        kind = getattr(torch, self.case.dtype.name)
        return self._shaped(lambda raw: (torch.from_numpy(raw) if isinstance(raw, np.ndarray) else raw).view(kind))

    def _shaped(self, view: Callable[[Raw], Any]) -> tuple[Any, Any]:
        c = self.case

        def shaped(raw: Raw | None, extent: str) -> Any:
            return None if raw is None else view(raw).reshape((-1, c.count) if extent == "p" else (c.count,))

        return shaped(self.x, c.collective.gives), shaped(self.out, c.collective.gets)

    def result(self) -> Array:
        """The result as ``bits``, in host memory."""
        assert self.out is not None
        raw = self.out if isinstance(self.out, np.ndarray) else self.out.cpu().numpy()
        return np.asarray(raw.view(bits(self.case.dtype.itemsize)))


class Arena:
    """One rank's memory, on the host or on its GPU. It holds the buffers of one size at a time. ``new`` makes an array
    of so many bytes in host memory. NumPy asks for huge pages from 4 MiB on."""

    def __init__(self, device: str = "cpu", new: Callable[[int], Raw] = lambda n: np.empty(n, np.uint8)) -> None:
        self._device, self._host, self._new_on_host = device, device == "cpu", new
        self._lengths = (0, 0)
        self._arrays: list[tuple[Raw, Raw]] = []

    def buffers(self, case: Case) -> list[Buffers]:
        """The pairs of buffers of a case. They lie in the same memory as the last case's if the sizes are equal."""
        if (case.lengths, _pairs(case)) != (self._lengths, len(self._arrays)):
            self._arrays.clear()
            self._lengths = given, gotten = case.lengths
            self._arrays = [(self._new(given), self._new(gotten)) for _ in range(_pairs(case))]
        return [self._pair(case, *arrays) for arrays in self._arrays]

    def _new(self, nbytes: int) -> Raw:
        if self._host:
            return self._new_on_host(nbytes)
        import torch

        return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def _pair(self, case: Case, x: Raw, out: Raw) -> Buffers:
        own = slice(case.rank * case.block_bytes, (case.rank + 1) * case.block_bytes)
        if case.in_place:
            if case.collective.gathers:
                x = out[own]
            elif case.collective.scatters:
                out = x[own]
            else:
                out = x
        # In a scatter, only the root has an input. In a gather and a reduce, only it has a result.
        x = x if case.collective.in_x or case.collective.gives_at(case.rank, case.root) else None
        out = out if case.collective.gets_at(case.rank, case.root) else None
        return Buffers(case, x, out, self._writes(case, x, out))

    def _writes(self, case: Case, x: Raw | None, out: Raw | None) -> list[Callable[[], object]]:
        writes: list[Callable[[], object]] = []
        if not case.collective.moves:
            return writes
        gives = x is not None and (not case.collective.in_x or case.at_root)
        if out is not None and not (gives and case.in_place and case.collective.gets != "p"):
            writes.append(partial(out.fill if self._host else out.fill_, POISON))
        if gives:
            writes += self._fill(x, given(case))
        if not self._host:
            import torch

            writes.append(torch.cuda.synchronize)
        return writes

    def _fill(self, raw: Raw, period: Array) -> list[Callable[[], object]]:
        """Copies that repeat the period over the memory: first whole periods, then the rest."""
        kind = period.dtype
        source: Any = period
        if self._host:
            target: Any = raw.view(kind)
        else:
            import torch

            known = {1: "uint8", 16: "complex128"}.get(kind.itemsize, f"int{8 * kind.itemsize}")  # to torch
            target = raw.view(getattr(torch, known))
            source = torch.from_numpy(period.view(known)).to(raw.device)
        count = len(target)
        whole = count - count % len(source)
        parts = ((target[:whole].reshape(-1, len(source)), source), (target[whole:], source[: count - whole]))
        return [partial(np.copyto, to, of) if self._host else partial(to.copy_, of) for to, of in parts if to.shape[0]]
