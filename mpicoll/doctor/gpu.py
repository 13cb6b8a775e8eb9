"""The GPUs of a rank: what the driver, torch and MPI say of them.

A question to them may crash the process, or never be answered. So a child process asks, one question after another."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mpicoll.errors import LaunchError
from mpicoll.jobs.launcher import of_no_rank
from mpicoll.launch.launch_env import rank_here
from mpicoll.machine.cuda import driver, supported
from mpicoll.machine.system import version_of
from mpicoll.probe.child import SECONDS, SECONDS_OF_ALL_JOBS, Child

TRIES = SECONDS_OF_ALL_JOBS + SECONDS  # how long the tries of GPU memory may take, while other ranks wait in MPI
_QUESTIONS = {"driver": SECONDS, "torch": SECONDS, "mpi": SECONDS, "paths": TRIES}
"""What is asked, in this order, and how many seconds the answer may take."""
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


@dataclass(frozen=True)
class Gpu:
    """What the driver, torch and MPI answered: None where there is no GPU, or where a question before has failed."""

    driver: str | None = None  # the newest CUDA that the driver supports
    devices: tuple[str, ...] = ()
    error: int = 0  # CUDA's error number, if the driver does not work
    torch_cuda: str | None = None  # the CUDA for which torch was built
    torch_works: bool | None = None
    nccl: str | None = None
    mpi_takes: bool | None = None  # whether the MPI library reports support for GPU memory
    paths: tuple[tuple[str, str], ...] = ()
    """What is wrong with each path on which MPI may take GPU memory, nothing if it works. A rank of each node tries."""
    kept: str = ""  # the file that keeps it
    failed: tuple[str, str] = "", ""  # the question that brought no answer, and what happened instead
    visible: str | None = None  # CUDA_VISIBLE_DEVICES


def gpu_here() -> Gpu:
    """What there is to say of this rank's GPUs."""
    gpu = Gpu(visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    # The process is no rank: the launcher's variables would make it take this rank's place in the job.
    with Child("mpicoll.doctor.gpu:answers", gpu, rank_here() == 0, environment=of_no_rank(), quiet=True) as child:
        for question, seconds in _QUESTIONS.items():
            try:
                gpu = child.answer(seconds)
            except LaunchError as error:
                return replace(gpu, failed=(question, error.problem))
    return gpu


# -- in the child -----------------------------------------------------------------------------------------------------


def answers(gpu: Gpu, tries: bool) -> Iterator[Gpu]:
    """What is known after each question. Torch and MPI are asked if the driver shows a GPU. To ask MPI, this process
    becomes an MPI world of its own."""
    yield (gpu := _ask_driver(gpu))
    yield (gpu := _ask_torch(gpu) if gpu.devices and version_of("torch") else gpu)
    if gpu.devices:
        from mpicoll.machine.mpi_library import may_take_device_memory

        gpu = replace(gpu, mpi_takes=may_take_device_memory())
    yield gpu
    yield _try_paths(gpu) if tries and gpu.mpi_takes and gpu.torch_works else gpu


def _ask_driver(gpu: Gpu) -> Gpu:
    try:
        cuda = driver()
    except OSError:
        return gpu
    number, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    error = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(number))
    devices = []
    for device in range(number.value):
        cuda.cuDeviceGetName(name, len(name), device)
        devices.append(name.value.decode(errors="replace"))
    return replace(gpu, driver=supported(), devices=tuple(devices), error=0 if error == _NO_DEVICE else error)


def _ask_torch(gpu: Gpu) -> Gpu:
    import torch

    works, nccl = torch.cuda.is_available(), None
    if works and torch.distributed.is_nccl_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return replace(gpu, torch_cuda=torch.version.cuda, torch_works=works, nccl=nccl)


def _try_paths(gpu: Gpu) -> Gpu:
    """On torch's current GPU."""
    import torch

    from mpicoll.devices.cuda import device_named
    from mpicoll.probe.device_memory import file_of, key_of, probed

    device = device_named(f"cuda:{torch.cuda.current_device()}")
    return replace(gpu, paths=tuple(probed(device).items()), kept=str(file_of(key_of(device)) or ""))
