"""How a program comes under watch."""

from __future__ import annotations


def watch() -> None:
    """Watch the calls that the program makes of mpi4py itself from now on. If they cannot go on, the job ends with a
    table of what each rank does, as with the calls of a :class:`Communicator`. Calling it again does nothing.

    Collective among all ranks of ``MPI.COMM_WORLD``. MPI must have begun. Raises LaunchError or StateError if this
    process cannot use MPI. The :doc:`guide </how-to/watch_a_program>` says which calls are watched."""
    from mpicoll.calls.rules import Rules
    from mpicoll.launch.mpi_init import checked_world
    from mpicoll.watching.calls import is_watched

    world = checked_world()
    if is_watched() or world.size == 1:
        return
    rules: Rules = world.bcast(Rules.of_environment(), 0)
    if rules.check != "off":
        from mpicoll.watching.mpi import install

        install(rules)


def watch_from_init() -> None:
    """Watch from where the program begins MPI, which it does mostly when it imports mpi4py.MPI."""
    from mpicoll.launch import lifecycle, mpi_init

    lifecycle.add(lifecycle.Hook.WATCH_PROGRAM, watch)
    mpi_init.watch_for_init()
