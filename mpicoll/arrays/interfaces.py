"""What arrays of other libraries say about their memory, and torch does not heed when it takes it."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from mpicoll.machine.cuda import number_of

_FLAGS, _READ_ONLY = 24, 1
"""Where the flags of DLPack's DLManagedTensorVersioned lie, and the one that says that nobody may write."""


def as_tensor(torch: Any, x: Any, interface: Mapping[str, Any]) -> Any:
    """A tensor over the memory of a ``__cuda_array_interface__``. Nothing waits for the stream of its library."""
    address, _ = interface["data"]
    where = number_of(address) if address else None
    device = torch.device("cuda", torch.cuda.current_device() if where is None else where)
    return torch.as_tensor(_ForTorch(x, interface), device=device)


class _ForTorch:
    """Memory of a GPU as torch takes it. torch refuses an interface which says that nobody may write there."""

    def __init__(self, x: Any, interface: Mapping[str, Any]) -> None:
        self.__cuda_array_interface__ = {**interface, "data": (interface["data"][0], False)}
        self.keep = x


def may_be_written(x: Any) -> bool:
    """Whether an array that speaks DLPack says so. Before DLPack 1 an array cannot say it, and counts as read-only, as
    NumPy has it: those of JAX, which are immutable, are such arrays."""
    try:
        capsule = x.__dlpack__(max_version=(1, 0))
    except TypeError:
        return False
    of_capsule = ctypes.pythonapi.PyCapsule_GetPointer
    of_capsule.restype, of_capsule.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    try:
        start: int = of_capsule(capsule, b"dltensor_versioned")
    except ValueError:
        return False
    return not ctypes.c_uint64.from_address(start + _FLAGS).value & _READ_ONLY
