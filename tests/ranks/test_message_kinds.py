"""check="full": a message of another dtype than the receive's, or of an object, is an error, and not wrong data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import mpicoll
from mpicoll.errors import ArgumentError, MessageError

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.processes]


@pytest.fixture
def comm() -> Iterator[mpicoll.Communicator]:
    with mpicoll.Communicator(check="full", timeout=60) as made:
        yield made


ARRAYS: dict[str, Any] = {
    "float32": lambda: np.arange(6, dtype=np.float32),
    "int32": lambda: np.arange(6, dtype=np.int32),
    "bfloat16": lambda: torch.arange(12).bfloat16(),
    "float16": lambda: torch.arange(12).half(),
    "complex64": lambda: np.arange(3, dtype=np.complex64),
}
"""Arrays of as many bytes."""


@pytest.mark.parametrize("operation", ["recv", "irecv"])
@pytest.mark.parametrize(("sent", "taken"), [*itertools.pairwise([*ARRAYS, "float32"])])
def test_another_dtype(comm: mpicoll.Communicator, operation: str, sent: str, taken: str) -> None:
    """Rank 1 receives an array of another dtype than rank 0 sends, and then once more, of the same."""
    if comm.rank == 0:
        comm.send(ARRAYS[sent](), 1, tag=7)
        comm.send(ARRAYS[sent](), 1, tag=8)
    elif comm.rank == 1:
        y, before = ARRAYS[taken](), ARRAYS[taken]()
        says = f"^{operation}: expected {taken} from rank 0 .tag 7.; it has sent {sent}, which waits to be received$"
        request = comm.irecv(y, 0, tag=7) if operation == "irecv" else None
        with pytest.raises(MessageError, match=says):
            comm.recv(y, tag=7) if request is None else request.wait()
        assert bool((y == before).all())
        z = ARRAYS[sent]() * 0
        found = comm.probe(0, tag=7)
        assert (found.source, found.tag, found.nbytes) == (0, 7, 24)
        comm.recv(z, 0, tag=7)
        assert bool((z == ARRAYS[sent]()).all())
        request = comm.irecv(z, tag=8)
        request.wait()
        assert (request.source, request.tag) == (0, 8)
    comm.barrier()


def test_any_tag(comm: mpicoll.Communicator) -> None:
    """MPI hands such a message over before anybody can see what it is."""
    if comm.rank == 0:
        comm.send(ARRAYS["int32"](), 1, tag=3)
        comm.send(ARRAYS["int32"](), 1, tag=4)
    elif comm.rank == 1:
        with pytest.raises(MessageError, match=r"^recv: expected float32 from rank 0 \(tag 3\); int32 arrived$"):
            comm.recv(ARRAYS["float32"](), 0, tag=None)
        x = ARRAYS["int32"]() * 0
        request = comm.irecv(x, tag=None)
        request.wait()
        assert (request.source, request.tag) == (0, 4)
        assert x.tolist() == [*range(6)]
    comm.barrier()


def test_objects_and_arrays(comm: mpicoll.Communicator) -> None:
    if comm.rank == 0:
        comm.send_object("a", 1, tag=1)
    elif comm.rank == 1:
        x = ARRAYS["int32"]() * 0
        assert comm.probe(0, 1).source == 0
        with pytest.raises(MessageError, match=r"^recv: expected int32 from rank 0 \(tag 1\); it has sent object"):
            comm.recv(x, 0, tag=1)
        assert comm.recv_object(tag=1) == "a"
    comm.barrier()
    if comm.rank == 0:
        comm.send(ARRAYS["int32"](), 1, tag=1)
    elif comm.rank == 1:
        with pytest.raises(
            MessageError, match=r"^recv_object: expected object from rank 0 \(tag 1\); it has sent int32"
        ):
            comm.recv_object(0, tag=1)
        comm.recv(x, 0, tag=1)
    comm.barrier()


def test_an_object_and_then_an_array(comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both come when the rank that receives has seen no object, and is about to look for other kinds."""
    if comm.rank == 0:
        comm._engine.fabric.allgather(None)
        comm.send_object("a", 1, tag=1)
        comm.send(ARRAYS["int32"](), 1, tag=1)
        comm._engine.fabric.allgather(None)
    else:
        fabric = comm._engine.fabric
        probe = fabric.messages.probe
        are_there: list[Any] = []

        def probe_late(source: int | None, tag: int | None) -> Any:
            if not are_there:
                are_there.extend([fabric.allgather(None), fabric.allgather(None)])
            return probe(source, tag)

        monkeypatch.setattr(fabric.messages, "probe", probe_late)
        if comm.rank == 1:
            assert comm.recv_object(0, tag=1) == "a"
            assert comm.recv(ARRAYS["int32"]() * 0, 0, tag=1)[1] == 1
        else:
            probe_late(None, 1)
    comm.barrier()


def test_a_probe_finds_what_came_first(comm: mpicoll.Communicator) -> None:
    if comm.rank == 0:
        comm.send(np.zeros(5, np.float32), 1, tag=2)
        comm.send(np.zeros(9, np.int32), 1, tag=2)
        comm.send(np.zeros(2), 1, tag=3)
    comm.barrier()
    if comm.rank == 1:
        assert comm.probe(0, tag=3).nbytes == 16
        assert comm.probe(0, tag=2).nbytes == 20
        comm.recv(np.zeros(5, np.float32), 0, tag=2)
        assert comm.probe(tag=None).nbytes == 36
        comm.recv(np.zeros(9, np.int32), 0, tag=2)
        comm.recv(np.zeros(2), 0, tag=3)
    comm.barrier()


def test_tags(comm: mpicoll.Communicator) -> None:
    most = mpicoll.Communicator(check="watch")._engine.most_tag
    with pytest.raises(ArgumentError, match="isend: tag: expected an int from 0 to"):
        comm.isend(np.ones(1), 0, tag=most)
    tag, x, y = comm._engine.most_tag, np.ones(1), np.zeros(1)
    comm.sendrecv(x, comm.rank, y, comm.rank, tag, tag)
    assert y[0] == 1
