"""The plan that makes a call, and how a repeated call finds its plan again.

A plan is a function without arguments: addresses, counts, datatypes and operations are bound in it. It holds addresses
and no arrays. So it is found by a key that describes the memory as it is *now*: its address, its size and its dtype. It
serves every array in that memory, and no other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import prod
from typing import Any, TypeVar

import numpy as np

from mpicoll.arrays.libraries import loaded_torch
from mpicoll.node.loaded import kernel
from mpicoll.supervise.record import Record

Plan = Callable[[], object]


class CachedPlan:
    """A Communicator's call that is bound to its arrays: the steps that ``run`` makes, and what is recorded of it."""

    __slots__ = ("kept", "record", "run")

    def __init__(self, steps: Sequence[Plan], record: Record) -> None:
        self.run, self.record = sequence(*steps), record
        self.kept: object = None  # what holds the arrays' memory, where the program's arrays do not


Kept = TypeVar("Kept")


class Plans(dict[Hashable, Kept]):
    """A cache of the ``LIMIT`` plans that were bound last."""

    LIMIT = 2048

    def keep(self, key: Hashable, plan: Kept) -> None:
        if len(self) >= self.LIMIT:
            for first in self:  # a signal's handler, or another thread, may keep one at the same time
                self.pop(first, None)
                break
        self[key] = plan


def key_by(address: Callable[[Any], int]) -> Callable[[Any], tuple[Hashable, ...] | None]:
    """A function that gives an array's key. ``address`` says where a NumPy array's memory begins, if it has no gaps."""

    def key(x: Any) -> tuple[Hashable, ...] | None:
        """A description of the array's memory as it is now, which no other memory has. None if it is not plain
        memory."""
        kind = type(x)
        try:
            if kind is np.ndarray or (isinstance(x, np.ndarray) and not isinstance(x, np.ma.MaskedArray)):
                if kind is not np.ndarray and kernel is not None:
                    kernel.know_subclass(kind)
                # A program may also change whether the array is contiguous or writable. The flags say both.
                if x.flags.c_contiguous:
                    return (address(x), x.size, x.dtype, x.flags.num)
                begin = x.__array_interface__["data"][0]
                return (begin, x.shape, x.strides, x.dtype, x.flags.num)
            if kind in _TENSORS:
                if x.is_neg() or x.is_conj():
                    return None
                if not x.is_contiguous():
                    return (x.data_ptr(), x.shape, x.stride(), x.dtype) if x.is_cpu else None
                if x.is_cpu:
                    return (x.data_ptr(), x.numel(), x.dtype)
                return (x.data_ptr(), x.numel(), x.dtype, x.device.index) if x.is_cuda else None
            if (torch := loaded_torch()) is not None:
                if not _TENSORS:
                    _TENSORS.update((torch.Tensor, torch.nn.Parameter))
                    if kernel is not None:
                        kernel.know_tensors(torch.Tensor, torch.nn.Parameter)
                    return key(x)
                if isinstance(x, torch.Tensor):  # a tensor on a GPU has an interface, which does not say all of it
                    return None
            if (interface := getattr(x, "__cuda_array_interface__", None)) is not None:
                if interface.get("strides") is not None or interface.get("stream") is not None:
                    return None  # it has gaps, or its stream is to be waited for
                dtype = str(getattr(x, "dtype", ""))
                return (interface["data"], prod(interface["shape"]), interface["typestr"], dtype)
        except (RuntimeError, ValueError, BufferError):
            pass  # it has no memory; binding the call raises an error that says what is wrong with the array
        return None

    return key


_TENSORS: set[type] = set()


def sequence(*steps: Plan) -> Plan:
    """The steps, one after another, as one plan."""
    if len(steps) == 1:
        return steps[0]

    def run() -> None:
        for step in steps:
            step()

    return run


class Workspace:
    """Scratch memory of one communicator. All its calls use the same memory, one call at a time.

    If each plan had scratch memory of its own, a thousand cached plans would hold a thousand vectors."""

    def __init__(self) -> None:
        self._block = np.empty(0, np.uint8)

    @property
    def nbytes(self) -> int:
        """The bytes that it has; 0 if nobody has asked for memory."""
        return self._block.size

    def arrays(self, dtype: np.dtype[Any], *counts: int) -> list[np.ndarray[Any, Any]]:
        """Uninitialised 1-D arrays of these lengths, which do not overlap. The next call gets the same memory."""
        nbytes = sum(counts) * dtype.itemsize
        block = self._block  # another thread may bind a plan at this moment, and replace it
        if nbytes > block.size:
            # Plans that were bound before keep the old block. Since each block has at least twice the size of the one
            # before, all old blocks together are no larger than the new one.
            self._block = block = np.empty(max(nbytes, 2 * block.size), np.uint8)
        elements = block[:nbytes].view(dtype)
        ends = np.cumsum(counts)
        return [elements[end - n : end] for end, n in zip(ends, counts, strict=True)]
