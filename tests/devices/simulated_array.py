"""An array in the memory of a simulated device, as CuPy has arrays in the memory of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpicoll.arrays.buffers import as_buffer
from mpicoll.arrays.dtypes import Dtype

if TYPE_CHECKING:
    from tests.devices.simulated import Simulated


class SimulatedArray:
    """An array that mpicoll finds by its ``__cuda_array_interface__``. ``layout`` says where its elements lie, and must
    not be read. Values of bfloat16 go in and come out as float32."""

    def __init__(self, owner: Simulated, memory: Any, dtype: Dtype, layout: np.ndarray[Any, Any]) -> None:
        self.owner, self.memory, self.layout = owner, memory, layout
        self.dtype = dtype.name
        self._dtype = dtype

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        x = self.layout
        strides = None if x.flags.c_contiguous else x.strides
        data = (x.ctypes.data, not x.flags.writeable)
        return {"version": 3, "shape": x.shape, "typestr": x.dtype.str, "data": data, "strides": strides}

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        raise TypeError(f"this array lies on {self.owner.name}: only the streams of that device can touch it")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.layout.shape)

    @property
    def T(self) -> SimulatedArray:
        return self._as(self.layout.T)

    def __getitem__(self, key: Any) -> SimulatedArray:
        return self._as(self.layout[key])

    def read_only(self) -> SimulatedArray:
        """The same memory, which nobody may write to through this array."""
        layout = self.layout.view()
        layout.flags.writeable = False
        return self._as(layout)

    def _as(self, layout: np.ndarray[Any, Any]) -> SimulatedArray:
        return SimulatedArray(self.owner, self.memory, self._dtype, layout)

    def new_empty(self, shape: tuple[int, ...]) -> SimulatedArray:
        """A new array of this dtype on this device."""
        return self.owner.empty(shape, self._dtype)

    def set(self, values: Any) -> None:
        """Write these values, in the current stream's turn."""
        host = np.broadcast_to(np.asarray(values), self.shape)
        if self._dtype.storage is not None:
            host = (np.asarray(host, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        host = np.ascontiguousarray(host, self.layout.dtype).reshape(self.shape)
        target, source = (self.owner.view(as_buffer(a, "set", "values")) for a in (self, host))
        self.owner.current().copy(target, source)

    def get(self) -> np.ndarray[Any, Any]:
        """The values, when the current stream has come to them."""
        host = np.empty(self.shape, self.layout.dtype)
        target, source = (self.owner.view(as_buffer(a, "get", "array")) for a in (host, self))
        stream = self.owner.current()
        stream.copy(target, source)
        stream.synchronize()
        return host if self._dtype.storage is None else (host.astype(np.uint32) << 16).view(np.float32)
