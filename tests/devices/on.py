"""A device as the tests use it: the same words for the simulated device and for CUDA."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from mpicoll.arrays.buffers import as_buffer
from mpicoll.arrays.dtypes import DTYPES
from mpicoll.devices.cuda import device_named
from tests.devices.simulated import Simulated
from tests.devices.simulated_queue import Costs

Array = np.ndarray[Any, Any]


class OnSimulated:
    """The simulated device. bfloat16 values are float32 on the host."""

    def __init__(self, delay: float = 0.0, seed: int = 0, **options: Any) -> None:
        self.device: Simulated = Simulated(Costs(delay=delay), seed=seed, **options)
        self._streams = [self.device.current(), self.device.new_stream(), self.device.new_stream()]

    def array(self, values: Any, dtype: str) -> Any:
        """A new array with these values."""
        return self.device.array(values, dtype)

    def values(self, x: Any) -> Array:
        """The values of an array, when the current stream has come to them."""
        found: Array = x.get()
        return found

    def copy(self, target: Any, source: Any) -> None:
        """Copy an array, in the current stream's turn."""
        into, from_ = (self.device.view(as_buffer(x, "copy", "x")) for x in (target, source))
        self.device.current().copy(into, from_)

    def working_on(self, stream: int) -> AbstractContextManager[None]:
        """Work on one of three streams. 0 is the one on which everybody works at first."""
        return self.device.using(self._streams[stream])


class OnCuda:
    """The GPU that is current in torch, in the same words."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self.device = device_named(f"cuda:{torch.cuda.current_device()}")
        self._streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]

    def array(self, values: Any, dtype: str) -> Any:
        host = self._torch.from_numpy(np.array(values, order="C"))
        return host.to(getattr(self._torch, dtype)).cuda(non_blocking=True)

    def values(self, x: Any) -> Array:
        host = x.cpu()
        found: Array = (host.float() if host.dtype == self._torch.bfloat16 else host).numpy()
        return found

    def copy(self, target: Any, source: Any) -> None:
        target.copy_(source)

    def working_on(self, stream: int) -> AbstractContextManager[None]:
        made: AbstractContextManager[None] = self._torch.cuda.stream(self._streams[stream])
        return made


On = OnSimulated | OnCuda


def everywhere() -> list[str]:
    """The devices there are."""
    try:
        import torch
    except ImportError:
        return ["simulated"]
    return ["simulated", "cuda"] if torch.cuda.is_available() else ["simulated"]


def laid_out(on: On, values: Array, dtype: str, layout: str) -> Any:
    """An array with these values: without gaps, transposed, or every second element of a longer one."""
    assert dtype in DTYPES
    if layout == "transposed" and values.ndim > 1:
        return on.array(np.ascontiguousarray(values.T), dtype).T
    if layout == "strided" and values.ndim:
        wide = np.zeros((*values.shape[:-1], 2 * values.shape[-1]), values.dtype)
        wide[..., ::2] = values
        return on.array(wide, dtype)[..., ::2]
    return on.array(values, dtype)


def routes_of(on: On) -> tuple[str, ...]:
    """The routes that there are for the device."""
    return ROUTES if on.device.known_to_mpi() else tuple(route for route in ROUTES if route != "device")


LAYOUTS = ("plain", "transposed", "strided")
ROUTES = ("staged", "device", "ipc")
