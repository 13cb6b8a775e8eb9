"""Whether the MPI library of this process can send and receive memory of a GPU."""

from __future__ import annotations

import ctypes
from functools import lru_cache

from mpi4py import MPI

__all__ = ["takes_device_memory"]

_MPICH_CUDA = 0  # MPIX_GPU_SUPPORT_CUDA


@lru_cache(maxsize=1)
def takes_device_memory() -> bool:
    """Whether the MPI library itself says that it takes CUDA memory. If mpicoll took a no for a yes, the program would
    crash.

    Open MPI and its derivatives answer through ``MPIX_Query_cuda_support``. MPICH and its derivatives, such as Cray's
    and Intel's, answer through ``MPIX_GPU_query_support``. For a library that has neither function the answer is no.
    """
    library = ctypes.CDLL(MPI.__file__)  # symbols of this extension module include those of the MPI library
    if hasattr(library, "MPIX_Query_cuda_support"):
        return bool(library.MPIX_Query_cuda_support())
    if hasattr(library, "MPIX_GPU_query_support"):
        answer = ctypes.c_int(0)
        code = library.MPIX_GPU_query_support(_MPICH_CUDA, ctypes.byref(answer))
        return code == MPI.SUCCESS and bool(answer.value)
    return False
