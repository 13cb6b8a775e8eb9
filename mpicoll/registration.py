"""Tells torch.distributed of the backend ``mpicoll`` and of the rendezvous ``mpi://``.

torch calls :func:`load` by itself when it is imported, through the entry point ``torch.backends``: nothing here may
import mpi4py or ``mpicoll.torch`` before a group is asked for, and nothing may raise.
"""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlparse

from mpicoll.errors import LaunchError
from mpicoll.launch.alone import launched_rank

__all__ = ["load", "register"]


def load() -> None:
    """What torch calls at its import; a warning is the most that comes of a failure."""
    try:
        register()
    except Exception as e:  # importing torch must work whatever is wrong with us
        warnings.warn(f"mpicoll could not register its backend with torch.distributed: {e}", stacklevel=2)


def register() -> None:
    """Register the backend and the rendezvous, once a process."""
    import torch.distributed as dist

    if not dist.is_available() or "mpicoll" in dist.Backend.backend_list:
        return
    dist.Backend.register_backend("mpicoll", _make, extended_api=True, devices=["cpu", "cuda"])
    handlers: dict[str, Callable[..., Any]] = import_module("torch.distributed.rendezvous")._rendezvous_handlers
    handlers["mpi"] = _by_mpi
    handlers["env"] = _or_by_mpi(handlers["env"])


def _make(options: Any, backend_options: Any = None) -> Any:
    from mpicoll.torch.backend import make

    return make(options, backend_options)


def _or_by_mpi(by_environment: Callable[..., Any]) -> Callable[..., Any]:
    """torch's env://, which demands a rank and MASTER_ADDR; under an MPI launcher that is alone in saying so, mpi://."""

    def handler(url: str, timeout: timedelta = timedelta(minutes=30), **options: Any) -> Iterator[Any]:
        elsewhere = "MASTER_ADDR" in os.environ and ("RANK" in os.environ or "rank=" in url)
        started_by_mpi = not elsewhere and launched_rank() is not None
        try:
            yield from (_by_mpi if started_by_mpi else by_environment)(url, timeout=timeout, **options)
        except ValueError as e:  # of a variable that is not set
            if launched_rank() is None:
                e.add_note("no launcher found: use `mpicoll run -n N script.py`")
            raise

    return handler


def _by_mpi(url: str, timeout: timedelta = timedelta(minutes=30), **_: Any) -> Iterator[tuple[Any, int, int]]:
    """Rank, size and store from MPI: a TCPStore on rank 0, whose address MPI hands round. Collective."""
    from torch._C._distributed_c10d import TCPStore

    from mpicoll import Communicator
    from mpicoll.launch.lifetime import checked_world

    world = checked_world()
    asked = dict(parse_qsl(urlparse(url).query))  # where torch puts its arguments
    for argument, actual in (("world_size", world.size), ("rank", world.rank)):
        variable = argument.upper()
        for name, given in ((argument, asked.get(argument)), (variable, os.environ.get(variable))):
            if given not in (None, "", str(actual)):
                raise LaunchError(f"init_process_group: {name}={given} was given, but MPI says {actual}")
    comm = Communicator()
    host = "127.0.0.1" if comm.traits.one_node else socket.gethostname()
    if comm.traits.one_node:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the host's name need not resolve
    store = None
    if comm.rank == 0:
        store = TCPStore(host, 0, comm.size, True, timeout, wait_for_workers=False)
    host, port = comm.bcast_object((host, store.port) if store is not None else None)
    if store is None:
        store = TCPStore(host, port, comm.size, False, timeout)
    os.environ.setdefault("LOCAL_RANK", str(comm.node.rank))  # where torch.distributed.get_node_local_rank looks
    comm.free()
    yield store, world.rank, world.size
    raise RuntimeError("mpi:// has no second rendezvous")
