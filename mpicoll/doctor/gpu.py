"""The GPUs of a rank, and what can use them: the driver, torch, NCCL and the MPI library."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpicoll.doctor.finding import Finding, Level
from mpicoll.errors import LaunchError
from mpicoll.launch.cores import numa_nodes
from mpicoll.launch.launch_env import rank_here
from mpicoll.machine.cpu import cpus
from mpicoll.machine.system import version_of
from mpicoll.probe.asking import SECONDS, SECONDS_OF_ALL_JOBS, ask
from mpicoll.probe.kept import NOT_TRIED

_GPUS, _BUS = Path("/proc/driver/nvidia/gpus"), Path("/sys/bus/pci/devices")
TRIES = SECONDS_OF_ALL_JOBS + SECONDS
"""How many seconds it may take to find out what MPI does with GPU memory. The other ranks wait for that in MPI."""


@dataclass(frozen=True)
class Gpu:
    """What the driver, torch and MPI answered. ``failed`` has the questions that brought no answer, and what happened
    instead. What depends on such an answer, or was not asked because there is no GPU, is None."""

    driver: str | None = None
    """The newest CUDA that the driver supports."""
    devices: tuple[str, ...] = ()
    error: int = 0
    """CUDA's error number, if the driver does not work."""
    torch_cuda: str | None = None
    """The CUDA for which torch was built."""
    torch_works: bool | None = None
    """Whether torch can use a GPU."""
    nccl: str | None = None
    mpi_takes: bool | None = None
    """Whether the MPI library says that it takes GPU memory."""
    paths: tuple[tuple[str, str], ...] = ()
    """What is wrong with each path on which MPI may take GPU memory, nothing if it works. Empty where it was not tried:
    one rank of each node tries it."""
    kept: str = ""
    """The file that keeps it."""
    failed: tuple[tuple[str, str], ...] = ()
    segments: str = ""
    """The variable that lets torch allocate expandable segments, empty if none does."""
    visible: str | None = None
    """CUDA_VISIBLE_DEVICES."""
    numa: int | None = None
    """The NUMA node of the GPU that the rank takes."""
    far: bool = False
    """Whether the rank has no core on that NUMA node."""


def look() -> Gpu:
    """Ask the driver, and if it shows a GPU, the others."""
    failed: list[tuple[str, str]] = []
    driver = _answer("driver", failed)
    torch: dict[str, Any] = {}
    mpi: dict[str, Any] = {}
    if driver.get("devices"):
        torch = _answer("torch", failed) if version_of("torch") else {}
        mpi = _answer("mpi", failed)
    tries = _answer("paths", failed, TRIES) if mpi.get("takes") and torch.get("available") and not rank_here() else {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    numa = numa_of(visible, rank_here())
    return Gpu(
        driver=driver.get("version"),
        devices=tuple(driver.get("devices", ())),
        error=driver.get("error", 0),
        torch_cuda=torch.get("cuda"),
        segments=_expandable_segments(),
        torch_works=torch.get("available"),
        nccl=torch.get("nccl"),
        mpi_takes=mpi.get("takes"),
        paths=tuple(tries.get("paths", {}).items()),
        kept=tries.get("file", ""),
        failed=tuple(failed),
        visible=visible,
        numa=numa,
        far=numa is not None and numa not in numa_nodes(cpus()),
    )


def numa_of(visible: str | None, rank: int) -> int | None:
    """The NUMA node of the GPU that this rank of the node takes: the one with its number among those that it sees.
    None if it has none, or the system does not say it."""
    there = sorted(folder.name for folder in _GPUS.glob("*"))  # by their places on the bus, as CUDA_VISIBLE_DEVICES
    numbers = [*range(len(there))] if visible is None else [int(n) for n in visible.split(",") if n.isdecimal()]
    if not numbers or max(numbers) >= len(there):
        return None
    try:
        node = int((_BUS / there[numbers[rank % len(numbers)]].lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None  # -1: the machine has one, or does not tell


def _answer(question: str, failed: list[tuple[str, str]], seconds: float = SECONDS) -> dict[str, Any]:
    """What a child process answers. If there is no answer, nothing, and ``failed`` gets the reason."""
    try:
        return ask(question, seconds)
    except LaunchError as e:
        failed.append((question, e.problem))
        return {}


_DOES = {
    "driver": "The first use of CUDA",
    "torch": "To ask torch for GPUs",
    "mpi": "To ask MPI whether it takes GPU memory",
    "paths": "To try what MPI does with GPU memory",
}
_CHECK = {
    "driver": "Check the driver with nvidia-smi",
    "torch": "Install a torch that fits the driver: https://pytorch.org/get-started/locally",
    "mpi": "Keep arrays for MPI in host memory, or use an MPI that was built for CUDA",
    "paths": "Keep arrays for MPI in host memory, or use an MPI that was built for CUDA",
}


def judge(gpu: Gpu) -> Iterator[Finding]:
    """What there is to say of a rank's GPUs."""
    for question, how in gpu.failed:
        # The question to MPI also fails where a process may not begin an MPI world of its own. That breaks no program.
        level: Level = "warning" if question in ("mpi", "paths") else "problem"
        yield Finding("GPU", level, f"{_DOES[question]} fails in a test process: {how}", _CHECK[question])
    if gpu.error:
        yield Finding("GPU", "problem", f"the driver does not work: CUDA error {gpu.error}", _CHECK["driver"])
        return
    if not gpu.devices:
        if not gpu.failed:
            yield Finding("GPU", "ok", "none" if gpu.driver else "none (no CUDA driver)")
        return
    yield Finding("GPU", "ok", f"{_names(gpu)}; the driver is for CUDA {gpu.driver}")
    yield from _judge_torch(gpu)
    if gpu.mpi_takes:
        yield Finding("GPU", "ok", "the MPI library says that it takes GPU memory")
        yield from _judge_paths(gpu)
    elif gpu.mpi_takes is False:
        remedy = "For arrays on GPUs, use NCCL, or an MPI that was built for CUDA"
        yield Finding("GPU", "warning", "the MPI library takes no GPU memory: arrays go through host memory", remedy)


def judge_places(gpus: Mapping[int, Gpu]) -> Iterator[Finding]:
    """What there is to say of the GPUs that the ranks of one node see."""
    ranks, of_all = tuple(gpus), gpus.values()
    if any(gpu.visible for gpu in of_all):
        each = " | ".join(str(gpu.visible) for gpu in of_all)
        yield Finding("GPU", "ok", f"the ranks see GPUs {each}", ranks=ranks)
    if any(gpu.numa is not None for gpu in of_all):
        each = " | ".join(str(gpu.numa) for gpu in of_all)
        yield Finding("GPU", "ok", f"the NUMA nodes of their GPUs are {each}", ranks=ranks)
    far = tuple(rank for rank, gpu in gpus.items() if gpu.far)
    if far:
        remedy = "Bind each rank to cores beside its GPU: BIND=numa in job scripts"
        yield Finding("GPU", "warning", "no core on the NUMA node of the GPU", remedy, far)


def _judge_torch(gpu: Gpu) -> Iterator[Finding]:
    if gpu.torch_works:
        yield Finding("GPU", "ok", f"torch uses CUDA {gpu.torch_cuda} and NCCL {gpu.nccl or '(none)'}")
    elif gpu.torch_works is False and gpu.torch_cuda is None:
        yield Finding("GPU", "warning", "torch is a build for CPUs, and leaves the GPUs alone", _CHECK["torch"])
    elif gpu.torch_works is False:
        text = f"torch cannot use the GPUs: it was built for CUDA {gpu.torch_cuda}, the driver is for {gpu.driver}"
        yield Finding("GPU", "problem", text, _CHECK["torch"])
    if gpu.segments:
        text = f"{gpu.segments} lets torch allocate expandable segments, which other processes cannot open: "
        remedy = "Unset it to use the algorithm ipc. An MPI that takes GPU memory may be faster without it, too"
        yield Finding("GPU", "warning", text + "the algorithm ipc goes through host memory", remedy)


def _expandable_segments() -> str:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if "expandable_segments:true" in os.environ.get(name, "").replace(" ", "").lower():
            return name
    return ""


def _judge_paths(gpu: Gpu) -> Iterator[Finding]:
    untried: dict[str, list[str]] = {}
    for path, wrong in gpu.paths:
        if wrong.startswith(NOT_TRIED):
            untried.setdefault(wrong, []).append(path)
        elif wrong:
            again = f"To let it try again, delete {gpu.kept}" if gpu.kept else "The next process tries again"
            remedy = f"mpicoll does without it. {again}"
            yield Finding("GPU", "warning", f"MPI's {path} fail on GPU memory: {wrong}", remedy)
        else:
            yield Finding("GPU", "ok", f"MPI's {path} work on GPU memory (two processes on one GPU)")
    for why, paths in untried.items():
        remedy = "mpicoll does without it. The next process tries again"
        yield Finding("GPU", "warning", f"MPI's {', '.join(paths)} on GPU memory {why}", remedy)


def _names(gpu: Gpu) -> str:
    names = dict.fromkeys(gpu.devices)
    return ", ".join(f"{gpu.devices.count(name)} x {name}" for name in names)
