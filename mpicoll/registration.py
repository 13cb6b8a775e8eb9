"""Registers the backend ``mpicoll`` and the rendezvous ``mpi://`` with torch.distributed.

torch calls :func:`load` when it is imported, through the entry point ``torch.backends``. So this module imports mpi4py
and ``mpicoll.torch`` only when a program makes a group, and :func:`load` raises nothing."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlparse

from mpicoll.launch.launch_env import WATCH, check_place, launched_rank


def load() -> None:
    """Register, and watch if that was asked for. A failure becomes a warning. torch calls this when it is imported."""
    what = "register its backend with torch.distributed"
    try:
        register()
        if os.environ.get(WATCH) == "1":
            what = "watch the calls of torch.distributed"
            from mpicoll.watching.torch import install

            install()
    except Exception as e:  # torch's import must work, whatever is wrong with mpicoll
        warnings.warn(f"mpicoll could not {what}: {e}", stacklevel=2)


def register() -> None:
    """Register the backend and the rendezvous, once in a process."""
    import torch.distributed as dist

    if not dist.is_available() or "mpicoll" in dist.Backend.backend_list:
        return
    dist.Backend.register_backend("mpicoll", _make_group, extended_api=True, devices=["cpu", "cuda"])
    handlers: dict[str, Callable[..., Any]] = import_module("torch.distributed.rendezvous")._rendezvous_handlers
    handlers["mpi"] = _rendezvous_by_mpi
    handlers["env"] = _env_or_mpi(handlers["env"])


def _make_group(options: Any, backend_options: Any = None) -> Any:
    from mpicoll.torch.registered_group import make

    group = make(options)
    if not options.global_ranks_in_group:
        _made_before[:] = [str(options.group_size)]
    return group


_made_before: list[str] = []  # the size of the last default group of all ranks of MPI, if there was one
_told: list[tuple[str | None, str | None]] = [(None, None)]
"""The values of MASTER_ADDR and MASTER_PORT that are not the user's: none, and those that mpicoll has set for tools."""


def _names_a_master() -> bool:
    """Whether the user's environment says where rank 0 is."""
    return (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")) not in _told


def _env_or_mpi(by_environment: Callable[..., Any]) -> Callable[..., Any]:
    """torch's ``env://``, but ``mpi://`` where only an MPI launcher says which rank this process is.

    ``env://`` takes the rank and MASTER_ADDR from the environment. Where both are there, it is torch's own."""

    def handler(url: str, timeout: timedelta = timedelta(minutes=30), **options: Any) -> Iterator[Any]:
        from mpicoll.launch.mpi_init import refuse_import

        refuse_import()
        env_is_complete = _names_a_master() and ("RANK" in os.environ or "rank=" in url)
        by_mpi = not env_is_complete and launched_rank() is not None
        if not by_mpi and _arguments(url).get("world_size", os.environ.get("WORLD_SIZE")) in _made_before:
            _all_come()
        try:
            yield from (_rendezvous_by_mpi if by_mpi else by_environment)(url, timeout=timeout, **options)
        except ValueError as e:  # torch raises it for a variable that is not set
            if launched_rank() is None:
                e.add_note("no launcher found: use `mpicoll run -n N script.py`")
            raise

    return handler


def _all_come() -> None:
    """Return when all ranks have come here, so that none of them connects to the store of the group before. Rank 0
    had that one on the same port, and has given it up now."""
    from mpicoll import Communicator

    comm = Communicator()
    comm.barrier()
    comm.free()


def _arguments(url: str) -> dict[str, str]:
    """The arguments of init_process_group, which torch passes in the URL."""
    return dict(parse_qsl(urlparse(url).query))


def _rendezvous_by_mpi(
    url: str, timeout: timedelta = timedelta(minutes=30), **_: Any
) -> Iterator[tuple[Any, int, int]]:
    """Take rank and size from MPI, and connect all ranks to a TCPStore on rank 0. All ranks call this.

    Raises LaunchError if the program or the environment gives a rank or a world size that is not MPI's."""
    from torch.distributed import TCPStore

    from mpicoll import Communicator

    comm = Communicator()
    arguments = _arguments(url)
    for argument, actual in (("world_size", comm.size), ("rank", comm.rank)):
        variable = argument.upper()
        for name, given in ((argument, arguments.get(argument)), (variable, os.environ.get(variable))):
            check_place(name, given or actual, actual)
    one_node = comm.node.size == comm.size
    host = "127.0.0.1" if one_node else socket.gethostname()
    if one_node:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # gloo would resolve the host's name, which may fail
    store = None
    if comm.rank == 0:
        store = TCPStore(host, 0, comm.size, True, timeout, wait_for_workers=False)
    host, port = comm.bcast_object((host, store.port) if store is not None else None)
    if store is None:
        store = TCPStore(host, port, comm.size, False, timeout)
    comm.barrier()  # rank 0 may give up the store at once, where torch refuses the group: not before all have connected
    if not _names_a_master():
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = host, str(port)
        _told.append((host, str(port)))
    os.environ.setdefault("LOCAL_RANK", str(comm.node.rank))  # torch.distributed.get_node_local_rank reads it
    rank, size = comm.rank, comm.size
    comm.free()
    yield store, rank, size
    raise RuntimeError("mpi:// has no second rendezvous")
