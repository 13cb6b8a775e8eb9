"""How CUDA's device uses torch's streams, on an invented torch that notes what it is asked. Needs no GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from mpicoll.arrays import libraries
from mpicoll.arrays.buffers import as_buffer
from mpicoll.communicator.engine import base  # noqa: F401  # which lists what a forked child forgets
from mpicoll.devices import cuda
from mpicoll.devices.cuda import Cuda, CudaEvent, CudaStream
from mpicoll.errors import DeviceError, DeviceFailure, StateError
from tests.arrays import OnAGpu
from tests.ranks.children import in_child

pytestmark = pytest.mark.first_mpi


class Seen(Exception):
    """What was to be seen was seen."""


class InventedTorch:
    """What ``torch.cuda`` is asked for."""

    def __init__(self) -> None:
        self.capturing = self.forked = False
        self.streams: list[Any] = ["the default one"]
        self.cuda = SimpleNamespace(
            is_available=lambda: True,
            _is_in_bad_fork=lambda: self.forked,
            is_current_stream_capturing=lambda: self.capturing,
            current_stream=lambda device: self.streams[-1],
            Stream=lambda device: SimpleNamespace(),
            stream=self.stream,
        )
        self.taken: list[tuple[int, bool, str]] = []

    class Tensor:
        pass

    @staticmethod
    def device(name: str, number: int | None = None) -> str:
        return name if number is None else f"{name}:{number}"

    def as_tensor(self, x: Any, device: str) -> None:
        self.taken.append((*x.__cuda_array_interface__["data"], device))
        raise Seen

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.streams.append(stream)
        yield
        self.streams.pop()


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[InventedTorch]:
    made = InventedTorch()
    monkeypatch.setitem(sys.modules, "torch", made)
    monkeypatch.setattr(cuda, "hidden_from_captures", nullcontext)
    monkeypatch.setattr(libraries, "number_of", lambda address: 1)
    cuda.made.clear()
    yield made
    cuda.made.clear()


def test_the_current_stream(torch: InventedTorch) -> None:
    device = cuda.device_named("cuda:0")
    assert isinstance(device, Cuda)
    assert device.current().stream == "the default one"
    stream = device.new_stream()
    with device.using(stream):
        assert device.current().stream is stream.stream
    assert device.current().stream == "the default one"
    torch.capturing = True
    with pytest.raises(StateError, match="cuda:0: the current stream is capturing a CUDA graph, which cannot hold a c"):
        device.current()


def test_events(torch: InventedTorch) -> None:
    class Failed:
        def query(self) -> bool:
            raise RuntimeError("an illegal memory access")

        synchronize = query

    assert CudaEvent(SimpleNamespace(query=lambda: True)).is_past()
    assert not CudaEvent(SimpleNamespace(query=lambda: False)).is_past()
    for ask in (CudaEvent(Failed()).is_past, CudaEvent(Failed()).wait):
        with pytest.raises(DeviceFailure, match="the GPU reports: an illegal memory access"):
            ask()
    waited: list[Any] = []
    event = object()
    stream = CudaStream(torch, SimpleNamespace(wait_event=waited.append, record_event=lambda: event))
    stream.wait_for(stream.record())
    assert waited == [event]


def test_the_stream_of_another_library(torch: InventedTorch) -> None:
    """Its default stream has the number 1. Nothing waits for the current stream, nor in a capture."""
    device = cuda.device_named("cuda:0")
    waited: list[Any] = []
    here = SimpleNamespace(wait_stream=waited.append)
    torch.streams.append(here)
    torch.cuda.default_stream = lambda device: "the default one"
    torch.cuda.ExternalStream = lambda number, device: here if number == 96 else number
    assert [device.follow(number) for number in (1, 96, 128)] == [True, False, True]
    assert waited == ["the default one", 128]
    torch.capturing = True
    with pytest.raises(StateError, match="is capturing a CUDA graph"):
        device.follow(128)
    assert len(waited) == 2


def test_a_process_that_was_forked_after_cuda_had_begun(torch: InventedTorch) -> None:
    """The child has none of its parent's devices, and gets an error with a name for a new one."""
    cuda.device_named("cuda:0")

    def check() -> None:
        torch.forked = True
        with pytest.raises(DeviceError, match="not forked after CUDA had begun"):
            cuda.device_named("cuda:0")

    in_child(check)
    assert isinstance(cuda.device_named("cuda:0"), Cuda)
    # Memory that may only be read. torch takes no interface which says so.
    x = OnAGpu(None, data=(4096, True), shape=(1,), typestr="<f4", strides=None)
    with pytest.raises(Seen):
        as_buffer(x, "allreduce", "x")
    assert torch.taken == [(4096, False, "cuda:1")]  # without the number, it would copy to the current GPU
    torch.forked = True
    with pytest.raises(DeviceError, match="allreduce: x: expected GPU memory that this process can reach"):
        as_buffer(x, "allreduce", "x")
