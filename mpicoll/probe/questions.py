"""Questions about GPUs whose answer may crash the process, or never come. ``child.ask`` asks them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

from mpicoll.machine.cuda import driver, supported

_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


def of_driver() -> Iterator[dict[str, Any]]:
    """The CUDA version of the driver, and the names of the GPUs that it shows. ``version`` is None without a driver.
    ``error`` is the number of its error, 0 if there is none."""
    found: dict[str, Any] = {"version": None, "devices": [], "error": 0}
    try:
        cuda = driver()
    except OSError:
        yield found
        return
    found["version"] = supported()
    number, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    error = cuda.cuInit(0)
    if not error:
        error = cuda.cuDeviceGetCount(ctypes.byref(number))
    for device in range(number.value):
        cuda.cuDeviceGetName(name, len(name), device)
        found["devices"].append(name.value.decode(errors="replace"))
    yield {**found, "error": 0 if error == _NO_DEVICE else error}


def of_torch() -> Iterator[dict[str, Any]]:
    """The CUDA for which torch was built, whether torch can use a GPU, and its version of NCCL."""
    import torch

    nccl = None
    if torch.cuda.is_available() and torch.distributed.is_nccl_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
    yield {"cuda": torch.version.cuda, "available": torch.cuda.is_available(), "nccl": nccl}


def of_mpi() -> Iterator[dict[str, Any]]:
    """Whether the MPI library says that it takes the memory of GPUs. To ask it, this process becomes an MPI world of
    its own."""
    from mpicoll.machine.mpi_library import may_take_device_memory

    yield {"takes": may_take_device_memory()}


def of_paths() -> Iterator[dict[str, Any]]:
    """What the MPI library does with the memory of torch's current GPU, and the file that keeps it."""
    import torch

    from mpicoll.devices.registry import device_named
    from mpicoll.probe.device_memory import file_of, key_of, probed

    device = device_named(f"cuda:{torch.cuda.current_device()}")
    yield {"paths": dict(probed(device)), "file": str(file_of(key_of(device)) or "")}
