"""Tensors in memory that the ranks of a node share. Their collectives are carried out where they lie.

torch can move a tensor's memory in place: ``share_memory_`` does it. All tensors of that memory move with it, and all
that C++ does with them. torch has such memory in /dev/shm, which is full at 64 MB in many containers. To write beyond
that would kill the process. So the memory moves only where all ranks of the node could move as much."""

from __future__ import annotations

import os
from math import prod
from typing import TypeVar

import torch
from torch.nn.parameter import is_lazy

from mpicoll.errors import ArgumentError
from mpicoll.machine import blocks
from mpicoll.supervise import sites
from mpicoll.torch.group import GivenGroup, ProcessGroup, member
from mpicoll.torch.private import in_shared_file

_Shared = TypeVar("_Shared", torch.Tensor, torch.nn.Module)


def empty(*size: int | tuple[int, ...], dtype: torch.dtype | None = None, group: GivenGroup = None) -> torch.Tensor:
    """A new, uninitialised tensor on the CPU, in memory that the ranks of the group share where they can.

    ``size`` and ``dtype`` are those of ``torch.empty``. Any rank may make one at any time. It is in ordinary memory
    where it is short (less than 16 KiB), where the group's ranks are on several nodes, or where the system gives no
    such memory. When the last tensor that refers to the memory is gone, the process keeps it for others of about that
    length. Raises ArgumentError for what ``torch.empty`` refuses."""
    try:
        shape = torch.empty(*size, dtype=dtype, device="meta").shape  # type: ignore[arg-type]
    except (TypeError, RuntimeError) as e:
        raise ArgumentError("empty", "size and dtype", "those that torch.empty takes", str(e).split("\n")[0]) from None
    g = member(group, "empty")
    dtype = dtype or torch.get_default_dtype()
    return torch.empty(shape, dtype=dtype, device="cpu") if g is None else new(g, shape, dtype)


def new(group: ProcessGroup, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """What ``empty`` makes for a rank of the group."""
    nbytes = prod(shape) * dtype.itemsize
    memory = blocks.allocate(nbytes) if group.engine.fabric.info.shares_memory else None
    if memory is None:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.from_numpy(memory).view(dtype).view(shape)


def share_(x: _Shared, group: GivenGroup = None) -> _Shared:
    """Move a tensor's memory, or that of all parameters and buffers of a module, to memory that the ranks share.

    Returns ``x``. It works in place, as torch's ``share_memory_`` does: all tensors of that memory move with it. NumPy
    arrays that were made of it before, by ``x.numpy()``, must not be used any more. A tensor of ``torch.from_numpy``
    leaves the array behind. Of a DTensor, this rank's part moves. Wait for asynchronous collectives of the memory
    before. The memory must not be made longer by ``resize_`` afterwards: torch crashes then.

    What cannot be shared stays where it is: tensors of a GPU, short ones (less than 16 KiB), and all where the group's
    ranks are on several nodes. A warning tells of those that /dev/shm has no room for, or that are beyond 256 of a
    process. Raises ArgumentError if ``x`` is neither a tensor nor a module."""
    if isinstance(x, torch.nn.Module):
        tensors = [*x.parameters(), *x.buffers()]
    elif isinstance(x, torch.Tensor):
        tensors = [x]
    else:
        raise ArgumentError("share_", "x", "a tensor or a module", repr(type(x)))
    g = member(group, "share_")
    if g is None:
        return x
    stay = 0
    for given in tensors:
        # A DTensor has a part of its own. To import its class takes half a second.
        tensor: torch.Tensor = given.to_local() if hasattr(given, "to_local") else given
        if tensor.layout is torch.strided and not is_lazy(tensor) and not move(tensor.untyped_storage(), g):
            stay += tensor.nbytes
    if stay:
        most = f"a process may have {blocks.MOST} such tensors"
        room = f"/dev/shm has {_room() >> 20} MiB left for all ranks (docker run --shm-size=1g gives more), and {most}"
        sites.warn(f"mpicoll: share_: {stay / 2**20:.1f} MiB stay in ordinary memory: {room}")
    return x


def move(storage: torch.UntypedStorage, group: ProcessGroup) -> bool:
    """Move this memory to where the group's ranks can share it, if they can at all. False if there is no room, or too
    much that has moved already."""
    nbytes = storage.nbytes()
    if not group.engine.fabric.info.shares_memory or storage.device.type != "cpu" or nbytes < blocks.LEAST:
        return True
    if blocks.own_at(storage.data_ptr(), nbytes) is not None:
        return True
    if not blocks.may_adopt() or (not storage.is_shared() and _room() < group.size() * nbytes):
        return False
    try:
        blocks.adopt(storage, nbytes, in_shared_file(storage))
    except (RuntimeError, OSError):  # torch could not make the file, or it is in a file that has been closed
        return False
    return True


def _room() -> int:
    """Bytes that are left in /dev/shm."""
    try:
        there = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return there.f_bavail * there.f_frsize
