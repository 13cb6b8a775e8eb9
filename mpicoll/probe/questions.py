"""Questions about GPUs whose answer may crash the process, or never come. So a process of its own answers each.

``python -m mpicoll.probe.questions QUESTION`` prints the answer as JSON, in its last line.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

from mpicoll.machine.cuda import driver, supported

_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


def _driver() -> dict[str, Any]:
    """The CUDA version of the driver, and the names of the GPUs that it shows. ``version`` is None without a driver.
    ``error`` is the number of its error, 0 if there is none."""
    found: dict[str, Any] = {"version": None, "devices": [], "error": 0}
    try:
        cuda = driver()
    except OSError:
        return found
    found["version"] = supported()
    number, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    error = cuda.cuInit(0)
    if error == _NO_DEVICE:
        return found
    if error or (error := cuda.cuDeviceGetCount(ctypes.byref(number))):
        return {**found, "error": error}
    for device in range(number.value):
        cuda.cuDeviceGetName(name, len(name), device)
        found["devices"].append(name.value.decode(errors="replace"))
    return found


def _torch() -> dict[str, Any]:
    """The CUDA for which torch was built, whether torch can use a GPU, and its version of NCCL."""
    import torch

    nccl = None
    if torch.cuda.is_available() and torch.distributed.is_nccl_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return {"cuda": torch.version.cuda, "available": torch.cuda.is_available(), "nccl": nccl}


def _mpi() -> dict[str, Any]:
    """Whether the MPI library says that it takes the memory of GPUs. To ask it, this process becomes an MPI world of
    its own."""
    from mpicoll.machine.gpu import may_take_device_memory

    return {"takes": may_take_device_memory()}


def _paths() -> dict[str, Any]:
    """What the MPI library does with the memory of torch's current GPU, and the file that keeps it."""
    import torch

    from mpicoll.devices.registry import device_named
    from mpicoll.probe.kept import file
    from mpicoll.probe.seen import key_of, seen

    device = device_named(f"cuda:{torch.cuda.current_device()}")
    return {"paths": dict(seen(device)), "file": str(file(key_of(device)) or "")}


QUESTIONS = {"driver": _driver, "torch": _torch, "mpi": _mpi, "paths": _paths}

if __name__ == "__main__":
    print("\n" + json.dumps(QUESTIONS[sys.argv[1]]()), flush=True)
