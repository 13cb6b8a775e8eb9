"""What the environment of this process says about the launcher that started it, and whether others were started too.

If ranks are started so that they cannot connect, each is alone in a world of size 1. A program that sums over its world
then goes on with its own numbers, and nobody notices. The checks in this module turn that into an error."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from importlib.util import find_spec

from mpicoll.errors import LaunchError
from mpicoll.machine.linux import cpus
from mpicoll.machine.vendors import RANK_VARIABLES

# Variables of the environment, by which mpicoll run tells ranks something, and a rank what it starts.
ELASTIC = "MPICOLL_ELASTIC"  # whether the job goes on when some ranks are lost: 1
COORDINATOR = "MPICOLL_COORDINATOR"  # where the coordinator listens that is in mpicoll run, and its token
WATCH = "MPICOLL_WATCH"  # whether the calls are watched that the program makes of mpi4py itself: 1
RANK = "MPICOLL_RANK"  # the rank's process, and by what its launcher knows it
STDIN = "MPICOLL_STDIN"  # where the stdin of mpicoll run is, if it is on rank 0's node
_HOW = (
    "Start it with `mpicoll run -n {n} script.py`, with the mpirun of the MPI that mpi4py loads, or under Slurm with "
    "`srun --mpi=pmix` (Open MPI) or `srun --mpi=pmi2` (MPICH); not with torchrun"
)

_is_rank = False
"""Whether a launcher has started ``mpicoll.rank`` here. No program of an interactive shell is started in that way."""


def number_in(variable: str) -> int | None:
    """The first number of a variable of the environment; None where it has none."""
    value = os.environ.get(variable, "").partition(",")[0].strip()
    return int(value) if value.isdecimal() else None


def _first_number(*variables: str) -> int | None:
    return next((n for n in map(number_in, variables) if n is not None), None)


def is_elastic() -> bool:
    """Whether this rank's job goes on when a rank is lost."""
    return os.environ.get(ELASTIC) == "1"


def cores_of_a_rank() -> float:
    """The number of cores for each rank on this node, on average; if ranks are bound to cores, of this rank's own."""
    cores = len(cpus())
    return cores if cores < (os.cpu_count() or 1) else cores / ranks_here()


def ranks_here() -> int:
    """The number of ranks that this rank's launcher has started on this node; 1 where it does not say."""
    return _first_number(*(told.local_size for told in RANK_VARIABLES)) or 1


def rank_here() -> int:
    """The number of this rank among those of its launcher on this node; 0 where the launcher does not say."""
    return _first_number(*(told.local_rank for told in RANK_VARIABLES), "SLURM_LOCALID") or 0


def launched_rank() -> int | None:
    """The number of this rank, as its launcher gave it; None if no launcher of MPI ranks started this process."""
    return _first_number(*(told.rank for told in RANK_VARIABLES), "PMIX_RANK")


def under_launcher() -> bool:
    """Whether an MPI launcher, or srun with a PMI, started this process as a rank of a job. One that is typed into an
    interactive shell under Slurm is none, but has a rank's variables: the shell is a Slurm step of one task."""
    if any(told.local_size in os.environ for told in RANK_VARIABLES):
        return True
    return launched_rank() is not None and (_is_rank or number_in("SLURM_STEP_NUM_TASKS") != 1)


def note_rank(by_launcher: bool = False) -> None:
    """Note that this process is a rank. A launcher may have started ``mpicoll.rank`` in it."""
    global _is_rank
    _is_rank = _is_rank or by_launcher
    if launched_rank() is not None and rank_above() is None:
        os.environ[RANK] = " ".join((str(os.getpid()), *_place()))


def _place() -> tuple[str, str]:
    """By what a launcher knows the rank that this process is: names, and its connection to that rank."""
    names = (os.environ.get(name, "") for name in ("PMIX_NAMESPACE", "PMIX_RANK", "PMI_PORT", "PMI_ID"))
    connection = ""
    with suppress(KeyError, ValueError, OSError):  # there is no such connection, or a rank has closed it in this child
        found = os.fstat(int(os.environ["PMI_FD"]))
        connection = str(found.st_ino) if stat.S_ISSOCK(found.st_mode) else ""
    return ",".join(names), connection


def rank_above() -> int | None:
    """The process of the rank whose place in its job this process would take, because that rank has started it. None
    if there is none: a launcher that a rank starts gives each of its ranks a place of its own."""
    process, _, place = os.environ.get(RANK, "").partition(" ")
    if process in ("", str(os.getpid())):
        return None
    its_names, _, its_connection = place.rpartition(" ")
    names, connection = _place()
    return int(process) if names == its_names and connection in ("", its_connection) else None


# By the variable that says how many processes were started together: the one with the number of each, and why they do
# not connect. Those of MPI launchers come first. Under mpirun, SLURM_* describes mpirun's own daemon, and WORLD_SIZE
# describes the processes of which one started mpirun.
_COUNTS = {
    **{told.size: (told.rank, "its launcher belongs to another MPI than the one that mpi4py loads")
       for told in RANK_VARIABLES},
    "SLURM_STEP_NUM_TASKS": ("SLURM_PROCID", "srun was given no --mpi, or one that this MPI does not speak"),
    "WORLD_SIZE": ("RANK", "{} starts processes that no MPI connects"),
}  # fmt: skip


def _counted() -> tuple[str, int]:
    """The variable that says how many processes were started together with this one, and their number."""
    own = {told.size for told in RANK_VARIABLES}
    found = ((variable, number_in(variable) or 0) for variable in _COUNTS)
    return next(((name, size) for name, size in found if size > 1 or (size == 1 and name in own)), ("", 1))


def started_as() -> tuple[int | None, int]:
    """The number of this process (None if nobody says it) among those started together, and how many they are."""
    variable, size = _counted()
    return number_in(_COUNTS[variable][0]) if variable else launched_rank(), size


def check_place(name: str, given: int | str, actual: int, who: str = "MPI") -> None:
    """Raise LaunchError if the rank or world size that the program or the environment gives is not ``who``'s."""
    if str(given) != str(actual):
        raise LaunchError(
            f"init_process_group: {name}={given} was given, but {who} says {actual}",
            "Start the ranks with `mpicoll run -n N script.py`, mpicoll.spawn(fn, nprocs=N), mpirun or srun, not with "
            "torchrun or torch.multiprocessing",
        )


def check_not_alone(world_size: int) -> None:
    """Raise LaunchError if this process is alone in its MPI world although others were started with it."""
    variable, size = _counted()
    if world_size == 1 < size:
        starter = "torchrun" if "TORCHELASTIC_RUN_ID" in os.environ else "what set WORLD_SIZE"
        raise LaunchError(
            f"this process is alone in its MPI world although it was started as one of {size} ({variable}={size}): "
            f"{_COUNTS[variable][1].format(starter)}",
            _HOW.format(n=size),
        )


def check_may_initialise() -> None:
    """Raise LaunchError where initialising MPI would hang, crash, or end the job without saying how to start it."""
    from multiprocessing.process import parent_process

    if parent_process() is not None and launched_rank() is not None:
        raise LaunchError(
            "a multiprocessing child of an MPI rank cannot use MPI: it would take its parent's place in the job",
            "Use MPI in the rank itself; to start ranks from Python, call mpicoll.spawn in a script without launcher",
        )
    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        # mpi4py's wheel has one extension module for each ABI. This finds the one that it will load.
        mpi = find_spec("mpi4py.MPI")
        if mpi is not None and mpi.origin is not None and os.path.basename(mpi.origin).startswith("MPI.mpich."):
            raise LaunchError(
                "this process was started by Open MPI's mpirun (OMPI_COMM_WORLD_SIZE is set), but mpi4py loads MPICH, "
                "which mpirun cannot connect",
                _HOW.format(n=number_in("OMPI_COMM_WORLD_SIZE")),
            )


def check_has_own_place() -> None:
    """Raise LaunchError in a process that a rank has started, and that no launcher has given a place in a job."""
    if (rank := rank_above()) is not None:
        raise LaunchError(
            f"this process was started by an MPI rank (process {rank}) and cannot use MPI: it would take that rank's "
            "place in the job",
            "Use MPI in the rank itself, or start a job of its own with `mpicoll run`",
        )
