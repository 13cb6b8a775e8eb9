"""The device of a name. CUDA's are made when they are asked for, and others list themselves."""

from __future__ import annotations

from mpicoll.arrays import owners
from mpicoll.devices.device import Device

_cuda: dict[str, Device] = {}


def device_named(name: str) -> Device:
    """The device that a Buffer calls by this name."""
    listed = owners.owners.get(name)
    if isinstance(listed, Device):
        return listed
    if name not in _cuda:
        from mpicoll.devices.cuda import Cuda  # needs torch, and a GPU that it sees

        _cuda[name] = Cuda(name)
    return _cuda[name]


def forget() -> None:
    """In a forked child: a GPU that its parent has used cannot be reached from there."""
    _cuda.clear()
