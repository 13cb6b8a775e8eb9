"""Any array as a :class:`Buffer`: where its elements lie, how many, of what dtype, and on which device.

Accepted are NumPy arrays, objects with the buffer protocol, torch tensors, and objects with DLPack or
``__cuda_array_interface__``. To describe an array copies nothing. Only :meth:`Buffer.on_host` copies: host memory
with gaps or in another order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.arrays.dtypes import DTYPES, Dtype
from mpicoll.arrays.libraries import Described, by_dlpack, loaded_torch, owner_of, read_only, tensor_of
from mpicoll.errors import ArgumentError, DeviceError, DtypeError, MpicollError


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that a call reads or writes. ``array`` is a NumPy array or a torch tensor over that memory, and None in
    a plan, which holds no arrays.

    ``strides`` are in bytes. MPI can use ``plain`` memory without a copy: its elements are in C order without gaps,
    and it is not a view that torch conjugates or negates when it is read."""

    array: Any
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Dtype
    device: str
    plain: bool
    writable: bool
    stream: int | None = None
    """The number of the stream on which its library works, as CUDA's interface says it; None where nobody says it."""

    @property
    def count(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize

    @property
    def read_as(self) -> tuple[bool, bool]:
        """Whether torch conjugates, and whether it negates, what is read from this memory."""
        if isinstance(self.array, np.ndarray) or not hasattr(self.array, "is_conj"):
            return False, False
        return self.array.is_conj(), self.array.is_neg()

    def check_writable(self, operation: str, argument: str) -> None:
        """Raise ArgumentError, on behalf of ``operation``, for memory that cannot hold a result."""
        if not self.writable:
            given = "one that is read-only, or whose elements share memory"
            raise ArgumentError(operation, argument, "an array that can be written to", given)

    def like(self, shape: tuple[int, ...], memory: NDArray[np.uint8] | None = None) -> Any:
        """A new, uninitialised array of this kind, dtype and device. It is in that ``memory``, if that is given."""
        if isinstance(self.array, np.ndarray):
            dtype = self.array.dtype
            return np.empty(shape, dtype) if memory is None else memory.view(dtype).reshape(shape)
        if memory is None:
            return self.array.new_empty(shape)
        return loaded_torch().from_numpy(memory).view(self.array.dtype).view(shape)

    def part(self, start: int, stop: int) -> Buffer:
        """Elements ``start`` to ``stop`` of plain memory, without an array."""
        size = self.dtype.itemsize
        return replace(
            self, array=None, address=self.address + start * size, shape=(stop - start,), strides=(size,), plain=True
        )

    def on_host(self) -> Buffer:
        """A plain copy, of memory of the host."""
        if isinstance(self.array, np.ndarray):
            return as_buffer(self.array.copy(order="C"), "copy", "array")
        host = loaded_torch().empty(self.shape, dtype=self.array.dtype, device="cpu")
        return as_buffer(host.copy_(self.array), "copy", "array")

    def assign(self, source: Buffer) -> None:
        """Write the elements of ``source``, in order, to this memory of the host."""
        if isinstance(self.array, np.ndarray):
            self.array[...] = source.array.reshape(self.shape)
        else:
            with loaded_torch().inference_mode():  # a tensor that was made in this mode can be written to only in it
                self.array.copy_(source.array.view(self.shape))


def host_buffer(memory: NDArray[np.uint8], shape: tuple[int, ...], dtype: Dtype) -> Buffer:
    """The first bytes of this memory, as elements of ``dtype`` without gaps. The buffer keeps the memory."""
    return Buffer(memory, memory.ctypes.data, shape, packed(shape, dtype.itemsize), dtype, "cpu", True, True)


def packed(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The strides of an array without gaps."""
    return tuple(itemsize * prod(shape[i + 1 :]) for i in range(len(shape)))


def as_buffer(x: Any, operation: str, argument: str) -> Buffer:
    """``x`` as a Buffer. Raises ArgumentError, DtypeError or DeviceError, which name ``operation`` and ``argument``."""
    if isinstance(x, np.ndarray):
        return _of_numpy(x, operation, argument)
    if isinstance(x, np.generic):  # a date lends its memory as bytes, and a structured scalar without its gaps
        return _of_numpy(read_only(x), operation, argument)
    torch = loaded_torch()
    if torch is not None and isinstance(x, torch.Tensor):
        return _of_torch(x, operation, argument)
    if hasattr(x, "__cuda_array_interface__"):
        return _of_cuda_interface(x, operation, argument)
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        array = by_dlpack(x, operation, argument)
        if isinstance(array, np.ndarray):
            return _of_numpy(array, operation, argument)
        return replace(_of_torch(array, operation, argument), writable=False)  # an immutable one does not always say so
    if type(x).__name__ == "InPlaceType":  # mpi4py's, which looks like memory without elements
        raise ArgumentError(operation, argument, "an array (out=x replaces MPI.IN_PLACE)", "MPI.IN_PLACE")
    try:
        view = memoryview(x)
    except TypeError:
        if hasattr(x, "__array_interface__"):
            return _of_numpy(np.asarray(x), operation, argument)
        forms = "an array (NumPy, torch, buffer protocol, DLPack or __cuda_array_interface__)"
        text = repr(x) if len(repr(x)) <= 60 else repr(x)[:57] + "..."
        raise ArgumentError(operation, argument, forms, f"{type(x).__name__} {text}") from None
    try:
        array = np.asarray(view)
    except (RuntimeError, TypeError, ValueError) as e:
        given = f"{type(x).__name__} of format {view.format!r} (numpy says: {e})"
        raise DtypeError(operation, argument, "elements that NumPy has a dtype for", given) from e
    return _of_numpy(array, operation, argument)


def exported(x: Any) -> Any:
    """The NumPy array over the memory of an object that is neither an array nor a tensor, such as a memoryview. While
    there is this array, the memory stays where it is. Anything else is returned as it is."""
    if isinstance(x, np.ndarray) or x is None:
        return x
    torch = loaded_torch()
    if (torch is not None and isinstance(x, torch.Tensor)) or hasattr(x, "__cuda_array_interface__"):
        return x
    try:
        array = np.asarray(x) if type(x) is memoryview else as_buffer(x, "", "").array
    except (MpicollError, ValueError):
        return x  # the call says what is wrong with it
    return array if isinstance(array, np.ndarray) else x


def _of_numpy(x: NDArray[Any], operation: str, argument: str) -> Buffer:
    dtype = x.dtype
    if type(x) is not np.ndarray and isinstance(x, np.ma.MaskedArray):  # whose module takes long to import
        expected = "an array without a mask (mpicoll would ignore the mask)"
        raise ArgumentError(operation, argument, expected, "a masked array")
    if dtype.hasobject:
        expected = "a dtype of fixed size (use the methods for objects, such as bcast_object)"
        raise DtypeError(operation, argument, expected, str(dtype))
    if not dtype.itemsize:
        raise DtypeError(operation, argument, "elements of at least one byte", f"dtype {dtype}, of 0 bytes")
    plain = x.flags.c_contiguous
    writable = x.flags.writeable and (plain or not repeats(x.shape, x.strides, dtype.itemsize))
    return Buffer(x, x.ctypes.data, x.shape, x.strides, _dtype_of_numpy(dtype), "cpu", plain, writable)


@cache  # NumPy takes microseconds to name a dtype
def _dtype_of_numpy(dtype: np.dtype[Any]) -> Dtype:
    known = DTYPES.get(dtype.name) if dtype.isnative else None
    return known or Dtype(str(dtype), dtype.itemsize, "V", None)


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
        raise ArgumentError(operation, argument, _WITH_MEMORY, given) from e
    if address == 0 and x.numel():
        if hasattr(x, "trigger_wait"):  # an AsyncCollectiveTensor has none: it stands for a result, which it waits for
            return _of_torch(x.trigger_wait(), operation, argument)
        raise ArgumentError(operation, argument, _WITH_MEMORY, f"a {type(x).__name__}, which has none")
    shape, strides = tuple(x.shape), tuple(s * size for s in x.stride())
    contiguous = x.is_contiguous()
    plain = contiguous and not x.is_conj() and not x.is_neg()
    writable = contiguous or not repeats(shape, strides, size)
    dtype = DTYPES.get(name) or Dtype(name, size, "V", None)
    return Buffer(x.detach(), address, shape, strides, dtype, str(x.device), plain, writable)


_WITH_MEMORY = "a tensor with memory of its own (of a DTensor: x.to_local())"


@lru_cache(maxsize=1024)
def repeats(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Whether two elements may share memory, as in a broadcast view. Such an array cannot hold a result."""
    if prod(shape) == 0:
        return False
    covered = itemsize  # bytes from the first to the last element of the dimensions looked at so far
    for stride, length in sorted((abs(s), n) for n, s in zip(shape, strides, strict=True) if n > 1):
        if stride < covered:
            return True
        covered += stride * (length - 1)
    return False


def _of_cuda_interface(x: Any, operation: str, argument: str) -> Buffer:
    interface = x.__cuda_array_interface__
    owner = owner_of(interface["data"][0])
    if owner is not None:
        return _of_owner(x, interface, owner.name)
    torch = loaded_torch()
    if torch is None or not torch.cuda.is_available() or torch.cuda._is_in_bad_fork():
        expected = "GPU memory that this process can reach (torch with CUDA must be imported)"
        raise DeviceError(operation, argument, expected, f"{type(x).__name__} with a __cuda_array_interface__")
    buffer = _of_torch(tensor_of(x, interface), operation, argument)
    writable = buffer.writable and not interface["data"][1]
    return replace(buffer, writable=writable, stream=interface.get("stream"))


def _of_owner(x: Any, interface: Mapping[str, Any], device: str) -> Buffer:
    """An array of a device that is not CUDA's. Its ``dtype`` counts, because an interface has no name for bfloat16."""
    (address, is_read_only), layout = interface["data"], np.dtype(interface["typestr"])
    shape = tuple(interface["shape"])
    without_gaps = packed(shape, layout.itemsize)
    strides = tuple(interface.get("strides") or without_gaps)
    plain = prod(shape) == 0 or strides == without_gaps
    writable = not is_read_only and (plain or not repeats(shape, strides, layout.itemsize))
    dtype = DTYPES.get(str(getattr(x, "dtype", layout))) or _dtype_of_numpy(layout)
    return Buffer(x, address, shape, strides, dtype, device, plain, writable, interface.get("stream"))


def memory_overlaps(a: Buffer, b: Buffer) -> bool:
    """Whether an element of ``a`` and an element of ``b`` share a byte. True also where it takes too long to tell."""
    (a_low, a_high), (b_low, b_high) = _extent(a), _extent(b)
    if a_high <= b_low or b_high <= a_low:
        return False
    if a.plain and b.plain:
        return True
    try:
        ours, theirs = (strided(each, np.dtype((np.void, each.dtype.itemsize))) for each in (a, b))
        return np.shares_memory(ours, theirs, max_work=100_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _extent(b: Buffer) -> tuple[int, int]:
    """The address of the buffer's first byte, and the address after its last byte."""
    if b.plain:
        return b.address, b.address + b.nbytes
    if not b.count:
        return b.address, b.address
    distances = [(n - 1) * s for n, s in zip(b.shape, b.strides, strict=True)]
    low = b.address + sum(d for d in distances if d < 0)
    return low, b.address + sum(d for d in distances if d > 0) + b.dtype.itemsize


def strided(b: Buffer, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The buffer's memory as an array of a dtype of its elements' size. The array does not keep the memory."""
    return np.asarray(Described(b.address, b.shape, dtype.str, b.strides))
