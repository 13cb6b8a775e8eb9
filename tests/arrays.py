"""The same values as arrays of many kinds, to pass to a call, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]


def as_torch(x: Array, dtype: str) -> torch.Tensor:
    return torch.from_numpy(np.array(x, order="C")).to(getattr(torch, dtype))


def strided(x: Array, step: int) -> Array:
    """Some elements of a larger array, each so far from the next."""
    part = np.zeros((*x.shape, step), x.dtype)[..., 0]
    part[...] = x
    return part


def backwards(x: Array) -> Array:
    step: Any = slice(None, None, -1)
    return x[(*[step] * x.ndim, ...)]


def torch_strided(x: Array, dtype: str) -> torch.Tensor:
    part = torch.zeros((*x.shape, 2), dtype=getattr(torch, dtype))[..., 0]
    return part.copy_(as_torch(x, dtype))


class Subclass(np.ndarray[Any, Any]):
    """An array whose type is not NumPy's own."""


class Exporter:
    """An array behind DLPack alone."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


class OnAGpu:
    """An array behind CUDA's interface alone. ``x`` holds its memory."""

    def __init__(self, x: Any, **interface: Any) -> None:
        self.x, self.__cuda_array_interface__ = x, {"version": 3, **interface}


KINDS: dict[str, Callable[[Array, str], Any]] = {
    "numpy": lambda x, dtype: np.array(x, order="C"),
    "numpy, Fortran order": lambda x, dtype: np.array(x, order="F"),
    "numpy, strided": lambda x, dtype: strided(x, 2),
    "numpy, backwards": lambda x, dtype: backwards(strided(backwards(x), 3)),
    "numpy, subclass": lambda x, dtype: np.array(x, order="C").view(Subclass),
    "torch": as_torch,
    "torch, transposed": lambda x, dtype: (
        as_torch(np.moveaxis(x, 0, -1), dtype).movedim(-1, 0) if x.ndim else as_torch(x, dtype)
    ),
    "torch, strided": torch_strided,
    "torch, parameter": lambda x, dtype: torch.nn.Parameter(as_torch(x, dtype), requires_grad=x.dtype.kind in "fc"),
    "memoryview": lambda x, dtype: np.array(x, order="C").data,
}


def kinds(dtype: str) -> list[str]:
    """The kinds of array that can have this dtype."""
    if dtype == "bfloat16":
        return [k for k in KINDS if k.startswith("torch")]
    if dtype in ("complex64", "complex128"):
        return [k for k in KINDS if k != "memoryview"]
    return list(KINDS)


def back(x: Any) -> Array:
    """The values of an array of any kind, as the oracle holds them."""
    if isinstance(x, torch.Tensor):
        x = x.detach()
        return np.array((x.float() if x.dtype == torch.bfloat16 else x).numpy())
    return np.array(x)
