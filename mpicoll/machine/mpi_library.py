"""The MPI library of this process: what it is, and what it says of GPU memory. Only a try shows if that is true."""

from __future__ import annotations

import ctypes
import re
from functools import lru_cache

from mpi4py import MPI

from mpicoll.machine.linux import loaded_files

_MPICH_CUDA = 0  # MPIX_GPU_SUPPORT_CUDA


def library() -> str:
    """The MPI library's name and version, such as ``Open MPI 5.0.11``. MPI's own text, Get_library_version, also names
    the host and the paths of whoever built the library."""
    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"


@lru_cache(maxsize=1)
def takes_device_memory() -> bool:
    """Whether the MPI library itself says that it takes CUDA memory. If mpicoll took a no for a yes, the program would
    crash.

    Open MPI and its derivatives answer through ``MPIX_Query_cuda_support``. MPICH and its derivatives, such as Cray's
    and Intel's, answer through ``MPIX_GPU_query_support``. For a library that has neither function the answer is no."""
    library = ctypes.CDLL(MPI.__file__)  # symbols of this extension module include those of the MPI library
    if hasattr(library, "MPIX_Query_cuda_support"):
        return bool(library.MPIX_Query_cuda_support())
    if hasattr(library, "MPIX_GPU_query_support"):
        answer = ctypes.c_int(0)
        code = library.MPIX_GPU_query_support(_MPICH_CUDA, ctypes.byref(answer))
        return code == MPI.SUCCESS and bool(answer.value)
    return False


def may_take_device_memory() -> bool:
    """Whether the library says yes, or goes through a UCX that has loaded its part for CUDA. Of such a UCX the library
    itself need not know: then it passes messages of GPU memory, and crashes in its own collectives."""
    return takes_device_memory() or _mapped("libuct_cuda") is not None


def ucx_version() -> str:
    """The version of the UCX through which the MPI library goes, empty where it goes through none."""
    file = _mapped("libucp")
    if file is None:
        return ""
    ask = ctypes.CDLL(file).ucp_get_version_string
    ask.restype = ctypes.c_char_p
    answer: bytes = ask()
    return answer.decode()


def _mapped(library: str) -> str | None:
    """The file of a library that this process has loaded; None if the system does not say it."""
    name = re.compile(rf"/.*/{library}[.\d-]*so[^ /]*")
    return next(filter(name.fullmatch, loaded_files()), None)
