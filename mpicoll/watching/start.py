"""How a program comes under watch."""

from __future__ import annotations

import sys

_UNWATCHED = "mpicoll: the program's calls of mpi4py are not watched"
_INSTALLED = "mpicoll.watching.mpi"  # who imports this begins to watch


def watch() -> None:
    """Watch the calls that the program makes of mpi4py, and of torch.distributed over gloo, from now on. If they cannot
    go on, the job ends with a table of what each rank does, as with the calls of a :class:`Communicator`. Calling it
    again does nothing.

    It is collective among all ranks of ``MPI.COMM_WORLD`` where MPI has begun, or torch is not imported. Otherwise only
    those groups of torch's are watched that the process makes afterwards. Raises LaunchError or StateError if this
    process cannot use MPI. The :doc:`guide </how-to/watch_a_program>` says which calls are watched."""
    if "torch" in sys.modules:
        from mpicoll.watching import torch

        torch.install()
    mpi = sys.modules.get("mpi4py.MPI")
    if "torch" not in sys.modules or (mpi is not None and mpi.Is_initialized()):
        watch_mpi()


def watch_mpi() -> None:
    """Watch the calls of mpi4py. Collective."""
    from mpicoll.calls.settings import Settings
    from mpicoll.launch.mpi_init import checked_world

    world = checked_world()
    if _INSTALLED in sys.modules or world.size == 1:
        return
    settings: Settings = world.bcast(Settings.of_environment(), 0)
    if settings.check != "off":
        from mpicoll.watching.mpi import install

        install(settings)


def watch_from_init() -> None:
    """Watch from where the program begins MPI. If that is not possible, the program is told, and goes on."""
    from mpicoll.errors import MpicollError
    from mpicoll.launch import lifecycle, mpi_init
    from mpicoll.supervise.report import show

    tried = []

    def watch_or_say() -> None:
        tried.append(True)
        try:
            watch_mpi()
        except MpicollError as e:
            show(f"{_UNWATCHED}: {e}")

    def say_if_unwatched() -> None:
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is not None and mpi.Is_initialized() and not tried and _INSTALLED not in sys.modules:
            show(f"{_UNWATCHED}: mpi4py did not begin MPI. Call mpicoll.watch() on all ranks when MPI has begun")

    lifecycle.add(lifecycle.Hook.WATCH_PROGRAM, watch_or_say)
    lifecycle.add(lifecycle.Hook.NAME_UNFINISHED, say_if_unwatched)
    mpi_init.watch_for_init()
    if lifecycle.lives():  # what Python imports as it begins has begun MPI
        watch_or_say()
