"""What there is to say of the facts of all ranks. A rule is a level, a function from a rank's facts to a text, and a
remedy. Of the rules in one group, the first one whose function gives a text counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from mpicoll.doctor.facts import SIZES, Facts, World
from mpicoll.doctor.gpu import Gpu
from mpicoll.doctor.report import Finding, Level, Report, together
from mpicoll.errors import LaunchError
from mpicoll.probe.child import NOT_TRIED
from mpicoll.units import alike, count, named, ranges

VARIABLES = {
    f"MPICOLL_{name}"
    for name in (
        "ALGORITHM", "CHECK", "TIMEOUT", "DUMP", "TRACE", "WATCH", "SHARED_MEMORY", "DDP_OVERLAP", "SHARE",
        "REPRODUCIBLE", "CORES", "ELASTIC", "COORDINATOR",
        "LAST_CALLS", "RANK", "STDIN", "ENV", "MODULES", "SLURM",
    )
}  # fmt: skip
"""mpicoll's environment variables."""
_ALIKE = 0.85  # names that are so much alike, or more, are taken for one that was misspelt
_SHM_OF_A_RANK = 8 << 20
"""Bytes that an MPI library may want in /dev/shm for each rank. The wheel of MPICH 5.0 takes 5 MiB."""
_LEAST_SHM = 1 << 20
_LOCKED = 1 << 30  # bytes that a network card with remote memory access may want to lock for a rank

Rule = tuple[Level, Callable[[Facts], object], str]

_FREE_SHM = "Delete what earlier jobs have left in /dev/shm, or give it more memory (docker run --shm-size=1g)"
_RAISE_LIMIT = "Remove the limit: `ulimit -l unlimited`, memlock in limits.conf, or LimitMEMLOCK=infinity of slurmd"
_FITTING_TORCH = "Install a torch that fits the driver: https://pytorch.org/get-started/locally"
_CHECK_DRIVER = "Check the driver with nvidia-smi"
_IN_HOST_MEMORY = "Keep arrays for MPI in host memory, or use an MPI that was built for CUDA"


def _started(f: Facts) -> str:
    by = f.start.launcher or "none"
    how = f"{by} ({f.start.pmi})" if f.start.pmi else by
    if f.world is not None:
        return f"{how}; MPI connects {count(f.world.size, 'rank')}"
    return f"{how}; this is one of {f.start.together}" if f.start.together > 1 else how


def _alone_in_allocation(f: Facts) -> object:
    alone = f.world is not None and f.world.size == 1 and f.start.launcher is None and (f.start.tasks or 1) > 1
    return alone and f"this is one process, but Slurm has allocated the job for {f.start.tasks} ranks"


def _sharing(f: Facts) -> object:
    """Whether the ranks of a node share memory, where there are several."""
    if f.world is None or f.ranks_here < 2 or not f.world.shares:
        return None
    arrays = "; collectives work on arrays of comm.empty where they lie" if f.world.shares_memory else ""
    return f"the ranks of a node share memory{arrays}"


def _of_mpi(says: Callable[[World], object]) -> Callable[[Facts], object]:
    """Where MPI has started."""
    return lambda f: f.world is not None and says(f.world)


def _shm(f: Facts) -> str | None:
    m = f.machine
    if m.shm_size is None or m.shm_free is None:
        return None
    return f"{_rounded(m.shm_size)}, of which {_rounded(m.shm_free)} are free"


def _locked(f: Facts) -> str:
    return "no limit (ulimit -l)" if f.machine.locked is None else f"at most {_rounded(f.machine.locked)} (ulimit -l)"


def _too_little_locked(f: Facts) -> object:
    little = f.machine.rdma and f.machine.locked is not None and f.machine.locked < _LOCKED
    return little and f"{_locked(f)}, too little for the node's InfiniBand or RoCE cards"


def _on_gpu(says: Callable[[Gpu], object]) -> Callable[[Facts], object]:
    """Where the driver works, and shows a GPU."""
    return lambda f: f.gpu.devices and not f.gpu.error and says(f.gpu)


def _failed(question: str, what: str) -> Callable[[Facts], object]:
    return lambda f: f.gpu.failed[0] == question and f"{what} fails in a test process: {f.gpu.failed[1]}"


RULES: tuple[tuple[str, tuple[Rule, ...]], ...] = (
    ("launcher", (("ok", _started, ""),)),
    ("launcher", (("warning", _alone_in_allocation, "To look at all ranks: `srun mpicoll doctor`"),)),
    ("MPI", (("ok", _of_mpi(lambda w: w.library), ""),)),
    ("threads", (
        ("ok", _of_mpi(lambda w: w.threads == "MULTIPLE" and "MPI_THREAD_MULTIPLE"), ""),
        ("warning", _of_mpi(lambda w: f"MPI_THREAD_{w.threads} instead of MPI_THREAD_MULTIPLE: asynchronous "
                            "collectives of torch block"),
         "Use an MPI that was built with it, and leave mpi4py.rc.thread_level as it is"),
    )),
    ("cores", (
        ("warning", lambda f: f.machine.overload and f"the machine is overloaded: {f.machine.overload}",
         "Before you measure, end the other programs, or raise the limit (docker run --cpus)"),
    )),
    ("kernel", (
        ("ok", lambda f: not f.machine.kernel
         and ("mpicoll's own collectives serve the ranks of a node" if f.machine.linux else "it is installed"), ""),
        ("warning", lambda f: f"{f.machine.kernel}: collectives of a node are the MPI library's",
         "Install a C compiler and Python's headers (Debian: gcc, python3-dev), then install mpicoll again"),
    )),
    ("shared memory", (
        ("ok", _sharing, ""),
        ("ok", lambda f: not f.machine.linux
         and "mpicoll needs Linux (memfd_create) for it: collectives are the MPI library's", ""),
        ("warning", lambda f: f.world is not None and f.ranks_here > 1
         and "the ranks of a node do not share memory: collectives are the MPI library's",
         "Run all ranks of a node in one container, and do not set MPICOLL_SHARED_MEMORY=0"),
    )),
    ("/dev/shm", (
        ("warning", lambda f: _shm(f) is None and "there is none",
         "Mount a tmpfs there: MPI libraries pass messages between ranks of a node through it"),
        ("problem", lambda f: (f.machine.shm_free or 0) < _LEAST_SHM
         and f"{_shm(f)}: an MPI library that finds no room there may crash", _FREE_SHM),
        ("warning", lambda f: (f.machine.shm_free or 0) < (wanted := f.ranks_here * _SHM_OF_A_RANK)
         and f"{_shm(f)}: expected {_rounded(wanted)} for the node's ranks", _FREE_SHM),
        ("ok", _shm, ""),
    )),
    ("locked memory", (
        ("problem", lambda f: f.nodes > 1 and _too_little_locked(f), _RAISE_LIMIT),
        ("warning", _too_little_locked, _RAISE_LIMIT),
        ("ok", _locked, ""),
    )),
    ("GPU", (("problem", _failed("driver", "The first use of CUDA"), _CHECK_DRIVER),)),
    ("GPU", (("problem", _failed("torch", "To ask torch for GPUs"), _FITTING_TORCH),)),
    # That also fails where a process may not begin an MPI world of its own. It breaks no program.
    ("GPU", (("warning", _failed("mpi", "To ask MPI whether it supports GPU memory"), _IN_HOST_MEMORY),)),
    ("GPU", (("warning", _failed("paths", "To try what MPI does with GPU memory"), _IN_HOST_MEMORY),)),
    ("GPU", (
        ("problem", lambda f: f.gpu.error and f"the driver does not work: CUDA error {f.gpu.error}", _CHECK_DRIVER),
        ("ok", _on_gpu(lambda g: f"{_names(g)}; the driver is for CUDA {g.driver}"), ""),
        ("ok", lambda f: not f.gpu.failed[0] and ("none" if f.gpu.driver else "none (no CUDA driver)"), ""),
    )),
    ("GPU", (
        ("ok", _on_gpu(lambda g: g.torch_works
                       and f"torch uses CUDA {g.torch_cuda} and NCCL {g.nccl or '(none)'}"), ""),
        ("warning", _on_gpu(lambda g: g.torch_works is False and g.torch_cuda is None
                            and "torch is a build for CPUs, and leaves the GPUs alone"), _FITTING_TORCH),
        ("problem", _on_gpu(lambda g: g.torch_works is False and "torch cannot use the GPUs: it was built for CUDA "
                            f"{g.torch_cuda}, the driver is for {g.driver}"), _FITTING_TORCH),
    )),
    ("GPU", (
        ("ok", _on_gpu(lambda g: g.mpi_takes and "the MPI library reports support for GPU memory"), ""),
        ("warning", _on_gpu(lambda g: g.mpi_takes is False and "the MPI library takes no GPU memory: arrays go through "
                            "host memory"), "For arrays on GPUs, use NCCL, or an MPI that was built for CUDA"),
    )),
)  # fmt: skip
"""The rules for each rank, in groups of one topic."""


def judge(everyone: Sequence[Facts], failure: LaunchError | None = None) -> Report:
    """The report on these ranks. ``failure`` says why MPI does not connect them."""
    on_node: dict[str, dict[int, Facts]] = {}
    for f in everyone:
        on_node.setdefault(f.machine.node, {})[f.rank] = f
    nodes = {f.rank: f.machine.node for f in everyone}
    found: list[Finding] = []
    for f in everyone:
        of_rank = _judge_rank(replace(f, ranks_here=len(on_node[f.machine.node]), nodes=len(on_node)))
        found += [replace(finding, ranks=(f.rank,)) for finding in of_rank]
    for there in on_node.values():
        found += _judge_cores(there)
        visible = [f.gpu.visible for f in there.values()]
        if any(visible):
            text = f"the ranks see GPUs {' | '.join(map(str, visible))}"
            found.append(Finding("GPU", "ok", text, ranks=tuple(there)))
    found += _differences({f.rank: f for f in everyone})
    if failure is not None:
        found.append(Finding("MPI", "problem", failure.problem, failure.remedy))
    world = everyone[0].world
    if world is not None:  # rank 0 decides for all
        if world.refused:
            found.append(Finding("settings", "problem", world.refused, "Correct the variable, or unset it"))
        for nbytes, name, why in world.chosen:
            found.append(Finding("algorithm", "ok", f"all-reduce of {SIZES[nbytes]}: {name} ({why})"))
    return Report(nodes, world.library if world else None, together(found, nodes))


def _judge_rank(f: Facts) -> Iterator[Finding]:
    """What there is to say of a rank by itself."""
    for topic, rules in (group for group in RULES if f.machine.linux or group[0] != "/dev/shm"):
        said = ((level, says(f), remedy) for level, says, remedy in rules)
        yield from [Finding(topic, level, str(text), remedy) for level, text, remedy in said if text][:1]
    for name in sorted(f.machine.variables.keys() - VARIABLES):
        if nearest := get_close_matches(name, VARIABLES, 1, _ALIKE):
            text = f"nobody reads {name} (did you mean {nearest[0]}?)"
            yield Finding("settings", "warning", text, "Correct the name, or unset it")
    untried: dict[str, list[str]] = {}
    for path, wrong in f.gpu.paths:
        if wrong.startswith(NOT_TRIED):
            untried.setdefault(wrong, []).append(path)
        elif wrong:
            again = f"To let it try again, delete {f.gpu.kept}" if f.gpu.kept else "The next process tries again"
            remedy = f"mpicoll does without it. {again}"
            yield Finding("GPU", "warning", f"MPI's {path} fail on GPU memory: {wrong}", remedy)
        else:
            yield Finding("GPU", "ok", f"MPI's {path} work on GPU memory (two processes on one GPU)")
    for why, paths in untried.items():
        remedy = "mpicoll does without it. The next process tries again"
        yield Finding("GPU", "warning", f"MPI's {', '.join(paths)} on GPU memory {why}", remedy)


def _judge_cores(there: Mapping[int, Facts]) -> Iterator[Finding]:
    """What there is to say of one node's cores. Ranks that may use no other cores than some rank's share these."""
    cores = {rank: frozenset(f.machine.cores) for rank, f in there.items()}
    threads = {rank: f.machine.omp_threads for rank, f in there.items()}
    found = False
    for room in sorted(set(cores.values()), key=sorted):
        ranks = tuple(rank for rank in there if cores[rank] <= room)
        where = f"{count(len(room), 'core')}: {_bound(cores[rank] for rank in ranks)}"
        together = sum(threads[rank] or len(cores[rank]) for rank in ranks)
        if len(ranks) > len(room):
            found = True
            remedy = "Start fewer ranks, ask for more cores, or let the launcher bind each rank to cores of its own"
            yield Finding("cores", "problem", f"{len(ranks)} ranks take turns on {where}", remedy, ranks)
        elif together > len(room):
            found = True
            remedy = f"export OMP_NUM_THREADS={len(room) // len(ranks)}, or give each rank more cores"
            is_set = any(threads[rank] is not None for rank in ranks)
            why = "OMP_NUM_THREADS" if is_set else "OMP_NUM_THREADS is not set"
            text = f"{count(len(ranks), 'rank')} with {together} threads together ({why}) on {where}"
            yield Finding("cores", "problem" if is_set else "warning", text, remedy, ranks)
    if not found:
        each = "".join(f", OMP_NUM_THREADS={n}" for n in dict.fromkeys(threads.values()) if n)
        text = f"{count(len(there), 'rank')} a node, on cores {_bound(cores.values())}{each}"
        yield Finding("cores", "ok", text, ranks=tuple(there))


def _differences(by_rank: Mapping[int, Facts]) -> Iterator[Finding]:
    """What should be the same on all ranks, and is not."""
    of_all: dict[int, dict[tuple[str, str], str | None]] = {}
    for rank, f in by_rank.items():
        of_all[rank] = {("versions", "MPI"): f.world.library if f.world else None, ("CPU", "CPU"): f.machine.cpu}
        of_all[rank] |= {("versions", name): version for name, version in f.machine.versions.items()}
        of_all[rank] |= {("settings", name): value for name, value in f.machine.variables.items()}
    for topic, name in dict.fromkeys(key for of_one in of_all.values() for key in of_one):
        values = alike({rank: of_one.get((topic, name)) for rank, of_one in of_all.items()})
        if len(values) > 1:
            each = "; ".join(f"{value or 'none'} ({named(r)})" for value, r in values.items())
            wrong = name in ("MPI", "mpicoll")
            yield Finding(topic, "problem" if wrong else "warning", f"{name} differs: {each}", _MAKE_ALIKE[topic])


_MAKE_ALIKE = {
    "versions": "Start all ranks in the same environment",
    "settings": "Set the variable alike on all ranks; otherwise rank 0's value counts",
    "CPU": "Use nodes of one kind: in a collective, all wait for the slowest one",
}


def _names(gpu: Gpu) -> str:
    return ", ".join(f"{gpu.devices.count(name)} x {name}" for name in dict.fromkeys(gpu.devices))


def _bound(cores: Iterable[frozenset[int]]) -> str:
    return " | ".join(ranges(sorted(each)) for each in cores)


def _rounded(n: int) -> str:
    if n < 1 << 20:
        return f"{n >> 10} KiB"
    return f"{n >> 20} MiB" if n < 10 << 30 else f"{n >> 30} GiB"
