"""Any array as a :class:`Buffer`: where its elements lie, how many, of what dtype, and on which device.

Accepted are NumPy arrays, everything with the buffer protocol, torch tensors, and what speaks DLPack or
``__cuda_array_interface__``. Nothing is copied: a copy is made only by :meth:`Buffer.on_host`, for memory that
is not contiguous or that the MPI cannot reach.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.arrays.dtypes import DTYPES, Dtype
from mpicoll.errors import ArgumentError, DeviceError, DtypeError

__all__ = ["Buffer", "as_buffer", "loaded_torch", "memory_overlaps"]


def loaded_torch() -> Any:
    """The torch module if the program has imported it already, else None: nothing here is worth its import."""
    return sys.modules.get("torch")


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that a call reads or writes. ``array`` is a NumPy array or a torch tensor over that very memory.

    ``strides`` are in bytes. ``plain`` memory is what MPI can use as it lies: in C order without gaps, and not a
    lazy conjugate or negative view.
    """

    array: Any
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Dtype
    device: str
    plain: bool
    writable: bool

    @property
    def count(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize

    def like(self, shape: tuple[int, ...]) -> Any:
        """A new, uninitialised array of this kind, dtype and device."""
        if isinstance(self.array, np.ndarray):
            return np.empty(shape, self.array.dtype)
        return self.array.new_empty(shape)

    def part(self, start: int, stop: int) -> Buffer:
        """Elements ``start`` to ``stop`` of plain memory: a place to move from or to, without an array of its own."""
        size = self.dtype.itemsize
        return replace(
            self, array=None, address=self.address + start * size, shape=(stop - start,), strides=(size,), plain=True
        )

    def on_host(self) -> Buffer:
        """A plain copy in host memory (pinned for a GPU's array, so that the copy is one DMA transfer).

        A copy from a GPU follows what the caller has queued on the current stream and is complete on return.
        """
        if isinstance(self.array, np.ndarray):
            return as_buffer(self.array.copy(order="C"), "copy", "array")
        torch = loaded_torch()
        host = torch.empty(self.shape, dtype=self.array.dtype, device="cpu", pin_memory=self.device != "cpu")
        return as_buffer(host.copy_(self.array), "copy", "array")

    def assign(self, source: Buffer) -> None:
        """Write the elements of ``source``, in order, to this memory."""
        if isinstance(self.array, np.ndarray):
            self.array[...] = source.array.reshape(self.shape)
        else:
            with loaded_torch().inference_mode():  # outside it, what was made in it cannot be written to
                self.array.copy_(source.array.view(self.shape))


def as_buffer(x: Any, operation: str, argument: str) -> Buffer:
    """``x`` as a Buffer; ArgumentError, DtypeError or DeviceError naming ``operation`` and ``argument``."""
    if isinstance(x, np.ndarray):
        return _of_numpy(x, operation, argument)
    torch = loaded_torch()
    if torch is not None and isinstance(x, torch.Tensor):
        return _of_torch(x, operation, argument)
    if hasattr(x, "__cuda_array_interface__"):
        return _of_cuda_interface(x, operation, argument)
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return _of_dlpack(x, operation, argument)
    try:
        view = memoryview(x)
    except TypeError:
        forms = "an array (NumPy, torch, buffer protocol, DLPack or __cuda_array_interface__)"
        raise ArgumentError(operation, argument, forms, _described(x)) from None
    return _of_numpy(np.asarray(view), operation, argument)


def _described(x: object) -> str:
    text = repr(x)
    return f"{type(x).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def _of_numpy(x: NDArray[Any], operation: str, argument: str) -> Buffer:
    t = x.dtype
    if isinstance(x, np.ma.MaskedArray):
        raise ArgumentError(operation, argument, "an array without a mask, which would be ignored", "a masked array")
    if t.hasobject:
        raise DtypeError(operation, argument, "a dtype of fixed size (objects go through the object forms)", str(t))
    if not t.itemsize:
        raise DtypeError(operation, argument, "elements of at least one byte", f"dtype {t}, of none")
    return Buffer(
        array=x,
        address=x.ctypes.data,
        shape=x.shape,
        strides=x.strides,
        dtype=_dtype_of_numpy(t),
        device="cpu",
        plain=x.flags.c_contiguous,
        writable=x.flags.writeable and (x.flags.c_contiguous or not _repeats(x.shape, x.strides, t.itemsize)),
    )


@cache  # NumPy takes microseconds to name a dtype
def _dtype_of_numpy(t: np.dtype[Any]) -> Dtype:
    known = DTYPES.get(t.name) if t.isnative else None
    return known or Dtype(str(t), t.itemsize, "V", None)


def _of_torch(x: Any, operation: str, argument: str) -> Buffer:
    torch = loaded_torch()
    if x.layout is not torch.strided or x.is_quantized or x.is_nested:
        kind = "nested" if x.is_nested else "quantized" if x.is_quantized else str(x.layout)
        raise ArgumentError(operation, argument, "a dense tensor", f"a {kind} tensor")
    if x.device.type not in ("cpu", "cuda"):
        raise DeviceError(operation, argument, "memory of a CPU or a CUDA GPU", f"a tensor on {x.device}")
    name = str(x.dtype).removeprefix("torch.")
    size = x.element_size()
    try:
        address = x.data_ptr()
    except RuntimeError as e:
        given = f"a {type(x).__name__}, which has none ({e})"
        raise ArgumentError(operation, argument, "a tensor with memory of its own", given) from e
    if address == 0 and x.numel():
        raise ArgumentError(operation, argument, "a tensor with memory of its own", "one whose storage was given up")
    strides = tuple(s * size for s in x.stride())
    contiguous = x.is_contiguous()
    return Buffer(
        array=x.detach(),
        address=address,
        shape=tuple(x.shape),
        strides=strides,
        dtype=DTYPES.get(name) or Dtype(name, size, "V", None),
        device=str(x.device),
        plain=contiguous and not x.is_conj() and not x.is_neg(),
        writable=contiguous or not _repeats(x.shape, strides, size),
    )


def _repeats(shape: Any, strides: tuple[int, ...], itemsize: int) -> bool:
    """Whether elements may share memory, as in a broadcast view: such an array cannot take a result."""
    if prod(shape) == 0:
        return False
    reach = itemsize
    for stride, n in sorted((abs(s), n) for n, s in zip(shape, strides, strict=True) if n > 1):
        if stride < reach:
            return True
        reach += stride * (n - 1)
    return False


def _of_cuda_interface(x: Any, operation: str, argument: str) -> Buffer:
    torch = loaded_torch()
    if torch is None or not torch.cuda.is_available():
        reach = "GPU memory that this process can reach (torch with CUDA must be imported)"
        raise DeviceError(operation, argument, reach, f"{type(x).__name__} with a __cuda_array_interface__")
    interface = x.__cuda_array_interface__
    stream = interface.get("stream")
    if stream is not None:
        torch.cuda.ExternalStream(stream).synchronize()
    found = _of_torch(torch.as_tensor(x, device="cuda"), operation, argument)
    return replace(found, writable=found.writable and not interface["data"][1])


def _of_dlpack(x: Any, operation: str, argument: str) -> Buffer:
    torch = loaded_torch()
    why: Exception
    try:
        array = np.from_dlpack(x)
    except (RuntimeError, BufferError, TypeError, ValueError) as e:
        why = e
    else:
        return _of_numpy(array, operation, argument)
    if torch is not None:  # which takes bfloat16, too, and the memory of a GPU
        try:
            tensor = torch.from_dlpack(x)
        except (RuntimeError, BufferError, TypeError, ValueError) as e:
            why = e
        else:
            return _of_torch(tensor, operation, argument)
    given = f"{type(x).__name__}, which {'NumPy' if torch is None else 'torch'} cannot take ({why})"
    raise ArgumentError(operation, argument, "a DLPack array that NumPy or torch can take", given) from why


def memory_overlaps(a: Buffer, b: Buffer) -> bool:
    """Whether an element of ``a`` and one of ``b`` share a byte."""
    (a_low, a_high), (b_low, b_high) = _extent(a), _extent(b)
    if a_high <= b_low or b_high <= a_low:
        return False
    if a.plain and b.plain:
        return True
    try:
        return np.shares_memory(_strided(a), _strided(b), max_work=100_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _extent(b: Buffer) -> tuple[int, int]:
    if b.plain:
        return b.address, b.address + b.nbytes
    if not b.count:
        return b.address, b.address
    reach = [(n - 1) * s for n, s in zip(b.shape, b.strides, strict=True)]
    low = b.address + sum(r for r in reach if r < 0)
    return low, b.address + sum(r for r in reach if r > 0) + b.dtype.itemsize


class _Places:
    """Describes a buffer's places to NumPy; never read through, so it may describe any memory."""

    def __init__(self, b: Buffer) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (b.address, True),
            "shape": b.shape,
            "strides": b.strides,
            "typestr": f"|V{b.dtype.itemsize}",
        }


def _strided(b: Buffer) -> NDArray[Any]:
    return np.asarray(_Places(b))
