"""The types of arrays, for annotations and type checkers. What an array really is, ``buffers`` finds out at run time.

The types of results follow from these: a NumPy array in gives a NumPy array of the same dtype out, and a torch tensor
in gives a torch tensor out. An array of another library gives one of that library, which type checkers do not know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

Alike_co = TypeVar("Alike_co", covariant=True)


class Array(Protocol[Alike_co]):
    """A NumPy array or a torch tensor: what can be reshaped and written to. ``Alike_co`` is what it is reshaped to.

    A collective's new array has that type: it is of the same kind and dtype, but may have another shape."""

    def reshape(self, shape: tuple[int, ...], /) -> Alike_co: ...

    def __setitem__(self, key: Any, value: Any, /) -> None: ...


class SupportsBuffer(Protocol):
    """Memory with Python's buffer protocol: memoryview, bytes, bytearray, array.array."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


class SupportsDLPack(Protocol):
    """An array of any library that speaks DLPack."""

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


class SupportsCudaArrayInterface(Protocol):
    """Memory of a CUDA GPU, as CuPy and Numba describe theirs."""

    @property
    def __cuda_array_interface__(self) -> Any: ...


ArrayLike = Array[Any] | SupportsBuffer | SupportsDLPack | SupportsCudaArrayInterface
"""Every array that a Communicator takes."""
Out = ArrayLike | None
"""An array for the result, or None for a new one."""
Counts = Sequence[int]
"""Numbers of rows, one for each rank."""

A = TypeVar("A", bound=ArrayLike)
