"""What the ranks of a test job do: they hand device memory to the MPI library, and look at what arrives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.arrays.buffers import Buffer, host_buffer
from mpicoll.arrays.dtypes import DTYPES
from mpicoll.devices.device import Device
from mpicoll.errors import LaunchError
from mpicoll.launch.mpi_init import checked_world

RANKS = 2  # a message from a rank to itself takes another way than one to another rank
BEGUN, RIGHT, WRONG = "begun", "right", "wrong"  # what a rank notes: that it has begun, and then a word for each path
LENGTHS = (2, 1 << 18)
"""Elements of a short and of a long message. MPI libraries send them in different ways."""
_FLOAT = DTYPES["float32"]
Array = np.ndarray[Any, Any]


def attempt(rank: int, make: Callable[[], Device], cuda: str, paths: tuple[str, ...], folder: str) -> None:
    """Try the paths one after another, on the device that ``make`` makes; ``cuda`` is its name if it is a GPU. This
    rank's file in ``folder`` says how far it came: a process that crashes can say nothing any more."""
    if cuda:
        import torch  # through which mpicoll reaches GPUs

        torch.cuda.set_device(cuda)
    device, world = make(), checked_world()
    if world.size != RANKS:
        raise LaunchError(f"expected {RANKS} ranks that find each other; found {world.size}")
    with open(Path(folder, str(rank)), "w", buffering=1) as notes:
        print(BEGUN, file=notes)
        for path in paths:
            right = [TRIES[path](world, device, _rows(n)) for n in LENGTHS]  # also after a wrong one, as the other rank
            print(RIGHT if all(right) else WRONG, file=notes)
            world.Barrier()  # so that a rank that crashes is at the same path as the other


class _Vector:
    """Values in the memory of a device."""

    def __init__(self, device: Device, values: Array) -> None:
        self._device, self._shape = device, values.shape
        self._memory = device.allocate(values.nbytes, device.current())
        host = _described(values)
        self._buffer = replace(host, array=None, address=self._memory.address, device=device.name)
        self._copy(host, to_device=True)

    def _copy(self, host: Buffer, to_device: bool) -> None:
        stream, here, there = self._device.current(), self._device.view(host), self._device.view(self._buffer)
        stream.copy(*((there, here) if to_device else (here, there)))
        stream.record().wait()

    def for_mpi(self, count: int) -> list[Any]:
        nbytes = self._buffer.nbytes
        address = self._device.for_mpi(self._buffer.address, nbytes)
        return [MPI.buffer.fromaddress(address, nbytes), count, MPI.FLOAT]

    def holds(self, expected: Array) -> bool:
        host = np.empty(self._shape, np.float32)
        self._copy(_described(host), to_device=False)
        return np.array_equal(host, expected)


def _described(values: Array) -> Buffer:
    return host_buffer(values.reshape(-1).view(np.uint8), values.shape, _FLOAT)


def _rows(length: int) -> Array:
    """Values for each rank that no other one has. Sums of them are exact."""
    return np.stack([np.arange(length, dtype=np.float32) % 251 + 1000 * (rank + 1) for rank in range(RANKS)])


def _messages(world: MPI.Intracomm, device: Device, rows: Array) -> bool:
    """In both directions at once."""
    rank, peer, n = world.rank, 1 - world.rank, rows.shape[1]
    sent, got = _Vector(device, rows[rank]), _Vector(device, 0 * rows[rank])
    MPI.Request.Waitall([world.Irecv(got.for_mpi(n), peer), world.Isend(sent.for_mpi(n), peer)])
    return got.holds(rows[peer]) and sent.holds(rows[rank])


def _collectives(world: MPI.Intracomm, device: Device, rows: Array) -> bool:
    rank, n = world.rank, rows.shape[1]
    mine, told, both = (_Vector(device, values) for values in (rows[rank], rows[rank], rows + 5000 * rank))
    gathered, collected, exchanged = (_Vector(device, 0 * rows) for _ in range(3))
    scattered = _Vector(device, 0 * rows[0])
    world.Bcast(told.for_mpi(n), 0)
    world.Gather(mine.for_mpi(n), gathered.for_mpi(n), 0)
    world.Scatter(both.for_mpi(n), scattered.for_mpi(n), 0)
    world.Allgather(mine.for_mpi(n), collected.for_mpi(n))
    world.Alltoall(both.for_mpi(n), exchanged.for_mpi(n))
    right = told.holds(rows[0]) and gathered.holds(rows if rank == 0 else 0 * rows)
    right = right and scattered.holds(rows[rank]) and collected.holds(rows)
    return right and exchanged.holds(np.stack([rows[rank] + 5000 * r for r in range(RANKS)]))


def _reductions(world: MPI.Intracomm, device: Device, rows: Array) -> bool:
    rank, n = world.rank, rows.shape[1]
    given, in_place, part = _Vector(device, rows[rank]), _Vector(device, rows[rank]), n // RANKS
    total, at_root, prefix, own = (_Vector(device, np.zeros(m, np.float32)) for m in (n, n, n, part))
    world.Allreduce(given.for_mpi(n), total.for_mpi(n))
    world.Allreduce(MPI.IN_PLACE, in_place.for_mpi(n))
    world.Reduce(given.for_mpi(n), at_root.for_mpi(n), root=0)
    world.Scan(given.for_mpi(n), prefix.for_mpi(n))
    world.Reduce_scatter_block(given.for_mpi(part), own.for_mpi(part))
    sums = rows.sum(axis=0)
    right = total.holds(sums) and in_place.holds(sums) and at_root.holds(sums if rank == 0 else 0 * sums)
    return right and prefix.holds(rows[: rank + 1].sum(axis=0)) and own.holds(np.split(sums, RANKS)[rank])


Try = Callable[[MPI.Intracomm, Device, Array], bool]
TRIES: dict[str, Try] = {"messages": _messages, "collectives": _collectives, "reductions": _reductions}
"""What is done for each of ``PATHS``, with a row of values for each rank. True if all data was right."""
