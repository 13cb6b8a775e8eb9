"""CUDA GPUs, through the torch that the program has imported. Only the memory of peers goes through the CUDA driver.

mpicoll allocates from torch's caches, so that a program's own memory and mpicoll's do not compete."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import numpy as np

from mpicoll.arrays.buffers import Buffer
from mpicoll.arrays.dtypes import Dtype, Reduction
from mpicoll.arrays.kernels import COMBINE
from mpicoll.arrays.libraries import Described, loaded_torch, owners
from mpicoll.devices.device import Device, Event, Handle, Stream
from mpicoll.errors import DeviceError, DeviceFailure, StateError
from mpicoll.machine.cuda import close_ipc, hidden_from_captures, ipc_handle, open_ipc, pinned, supported
from mpicoll.machine.shared_memory import Block

_DEFAULT_STREAM = 1  # what the interface of an array calls the default stream, which torch knows by another number


class Cuda(Device):
    """A GPU that torch sees."""

    def __init__(self, name: str) -> None:
        torch = loaded_torch()
        if torch is None or not torch.cuda.is_available():
            expected = "GPU memory that this process can reach (torch with CUDA must be imported)"
            raise DeviceError("mpicoll", "x", expected, name)
        if torch.cuda._is_in_bad_fork():
            expected = "a process that was not forked after CUDA had begun (spawn processes that use GPUs)"
            raise DeviceError("mpicoll", "x", expected, f"{name} in a forked process")
        self.name, self._torch, self._device = name, torch, torch.device(name)

    def current(self) -> CudaStream:
        torch = self._torch
        if torch.cuda.is_current_stream_capturing():
            why = "the current stream is capturing a CUDA graph, which cannot hold a collective"
            raise StateError(f"{self.name}: {why}")
        return CudaStream(torch, torch.cuda.current_stream(self._device))

    def new_stream(self) -> CudaStream:
        return CudaStream(self._torch, self._torch.cuda.Stream(self._device))

    @contextmanager
    def using(self, stream: Stream) -> Iterator[None]:
        assert isinstance(stream, CudaStream)
        with hidden_from_captures(), self._torch.cuda.stream(stream.stream):
            yield

    def follow(self, stream: int) -> bool:
        torch, here = self._torch, self.current().stream
        default = stream == _DEFAULT_STREAM
        there = torch.cuda.default_stream(self._device) if default else torch.cuda.ExternalStream(stream, self._device)
        if there == here:
            return False
        here.wait_stream(there)
        return True

    def allocate(self, nbytes: int, stream: Stream) -> _Memory:
        torch = self._torch
        assert isinstance(stream, CudaStream)
        try:
            with torch.cuda.stream(stream.stream):
                return _Memory(torch.empty(nbytes, dtype=torch.uint8, device=self._device))
        except RuntimeError as e:  # torch's OutOfMemoryError is one
            raise MemoryError(f"{self.name} has no {nbytes} bytes left ({e})") from e

    def pinned(self, nbytes: int) -> Block:
        try:
            memory: Block = self._torch.empty(nbytes, dtype=self._torch.uint8, device="cpu", pin_memory=True).numpy()
        except RuntimeError as e:
            raise MemoryError(f"{nbytes} bytes cannot be pinned ({e})") from e
        return memory

    def pin(self, memory: Block) -> Block:
        with self._torch.cuda.device(self._device):
            return pinned(memory, self._device.index)

    def view(self, b: Buffer) -> Any:
        torch = self._torch
        if b.device != "cpu" and isinstance(b.array, torch.Tensor):
            return b.array if b.dtype.kind != "V" else b.array.view(getattr(torch, f"int{8 * b.dtype.itemsize}"))
        with torch.inference_mode(False):
            if not b.count:
                device = "cpu" if b.device == "cpu" else self._device
                return torch.empty(b.shape, dtype=_of(torch, b.dtype), device=device)
            if b.device == "cpu":
                raw = torch.from_numpy(np.asarray(_described(b, "__array_interface__")))
            else:
                raw = torch.as_tensor(_described(b, "__cuda_array_interface__"), device=self._device)
            kind = _of(torch, b.dtype)
            return raw if kind is None else raw.view(kind)

    def reduces(self, reduction: Reduction) -> bool:
        # torch has few functions for unsigned integers longer than a byte. Their bits may be combined as signed ones,
        # except where their order or their quotient counts.
        unsigned = reduction.dtype.kind == "u" and reduction.dtype.itemsize > 1
        return not (unsigned and (reduction.combine in ("MIN", "MAX") or reduction.averages))

    def known_to_mpi(self) -> bool:
        from mpicoll.machine.mpi_library import may_take_device_memory  # it loads MPI, which threads do not need

        return may_take_device_memory()

    @cached_property
    def model(self) -> str:
        return f"{self._torch.cuda.get_device_name(self._device)}, CUDA {supported()}"

    @cached_property
    def identity(self) -> str:
        return str(self._torch.cuda.get_device_properties(self._device).uuid)

    def again(self) -> Callable[[], Cuda]:
        return partial(Cuda, self.name)

    def for_mpi(self, address: int, nbytes: int) -> int:
        return address

    def export(self, address: int) -> Handle | None:
        with self._torch.cuda.device(self._device):
            found = ipc_handle(address)
        return None if found is None else Handle(os.getpid(), *found)

    def open(self, handle: Handle) -> int | None:
        with self._torch.cuda.device(self._device):
            return open_ipc(handle.allocation)

    def close(self, start: int) -> None:
        with self._torch.cuda.device(self._device):
            close_ipc(start)


class CudaStream(Stream):
    def __init__(self, torch: Any, stream: Any) -> None:
        self._torch, self.stream = torch, stream

    def copy(self, target: Any, source: Any) -> None:
        with self._torch.cuda.stream(self.stream), self._torch.inference_mode():
            target.copy_(source, non_blocking=True)

    def combine(
        self, rows: Sequence[Any], out: Any, reduction: Reduction, factors: Sequence[Any] | None = None
    ) -> None:
        torch = self._torch
        combine = getattr(torch, COMBINE[reduction.combine].__name__)
        with torch.cuda.stream(self.stream), torch.inference_mode():
            total = _term(torch, rows, 0, reduction, factors)
            for i in range(1, len(rows)):
                total = combine(total, _term(torch, rows, i, reduction, factors))
            if reduction.averages:
                total = _divided(torch, total, len(rows))
            _as_signed(torch, out).copy_(total)
            _unify_nans(out, reduction.dtype)

    def divide(self, values: Any, divisor: int, dtype: Dtype) -> None:
        torch = self._torch
        with torch.cuda.stream(self.stream), torch.inference_mode():
            wide = values.float() if dtype.short_float else values
            values.copy_(_divided(torch, wide, divisor))
            _unify_nans(values, dtype)

    def record(self) -> CudaEvent:
        return CudaEvent(self.stream.record_event())

    def wait_for(self, event: Event) -> None:
        assert isinstance(event, CudaEvent)
        self.stream.wait_event(event.event)


class CudaEvent(Event):
    def __init__(self, event: Any) -> None:
        self.event = event

    def wait(self) -> None:
        self._asked(self.event.synchronize)

    def is_past(self) -> bool:
        return bool(self._asked(self.event.query))

    @staticmethod
    def _asked(what: Callable[[], Any]) -> Any:
        try:
            with hidden_from_captures():
                return what()
        except RuntimeError as e:
            raise DeviceFailure(f"the GPU reports: {e}") from e


class _Memory:
    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self.address: int = tensor.data_ptr()


def _described(b: Buffer, interface: str) -> Described:
    """A buffer's memory by NumPy's interface or by CUDA's, as integers of the elements' size."""
    size = b.dtype.itemsize
    known = {1: "|i1", 2: "<i2", 4: "<i4", 8: "<i8", 16: "<c16"}
    if size in known:
        return Described(b.address, b.shape, known[size], b.strides, interface, b.array)
    return Described(b.address, (*b.shape, size), "|u1", (*b.strides, 1), interface, b.array)


def _of(torch: Any, dtype: Dtype) -> Any:
    """torch's dtype for these elements; None if they can only be moved."""
    return getattr(torch, dtype.name, None) if dtype.kind != "V" else None


def _as_signed(torch: Any, x: Any) -> Any:
    """Unsigned integers as signed ones of the same bits: torch computes with these."""
    signed = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}.get(x.dtype)
    return x if signed is None else x.view(signed)


def _term(torch: Any, rows: Sequence[Any], i: int, reduction: Reduction, factors: Sequence[Any] | None) -> Any:
    """One row's values in the type in which they are combined, multiplied by its factor."""
    x = rows[i].float() if reduction.dtype.short_float else _as_signed(torch, rows[i])
    return x if factors is None else x * factors[i]


def _divided(torch: Any, x: Any, divisor: int) -> Any:
    if x.is_complex():
        return torch.view_as_complex(_divided(torch, torch.view_as_real(x), divisor))
    if x.is_floating_point():
        # By a number, torch multiplies with its inverse on a GPU, which rounds twice.
        return x / torch.full((), divisor, dtype=x.dtype, device=x.device)
    return torch.div(x, divisor, rounding_mode="trunc")


def _unify_nans(values: Any, dtype: Dtype) -> None:
    """Give all NaNs among short floats the same bits, as ``kernels`` does."""
    if dtype.short_float:
        values.masked_fill_(values.isnan(), float("nan"))


made: dict[str, Device] = {}
"""By name, those that were asked for. A forked child forgets them: it cannot reach a GPU that its parent has used."""


def device_named(name: str) -> Device:
    """The device of this name in a Buffer: one that lists itself, or CUDA's, made when it is asked for."""
    listed = owners.get(name)
    if isinstance(listed, Device):
        return listed
    if name not in made:
        made[name] = Cuda(name)
    return made[name]
