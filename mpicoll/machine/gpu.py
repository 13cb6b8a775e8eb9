"""Whether the MPI library of this process takes the memory of a GPU."""

from __future__ import annotations

import ctypes
from functools import lru_cache

from mpi4py import MPI

__all__ = ["takes_device_memory"]

_MPICH_CUDA = 0  # MPIX_GPU_SUPPORT_CUDA


@lru_cache(maxsize=1)
def takes_device_memory() -> bool:
    """True only where the MPI library says of itself that it takes CUDA memory: a wrong yes is a crash.

    Open MPI and its kin answer through ``MPIX_Query_cuda_support``, MPICH and its kin (Cray's, Intel's) through
    ``MPIX_GPU_query_support``. A library with neither question is taken to mean no.
    """
    library = ctypes.CDLL(MPI.__file__)  # a look-up in the extension module finds the library it was linked to
    if hasattr(library, "MPIX_Query_cuda_support"):
        return bool(library.MPIX_Query_cuda_support())
    if hasattr(library, "MPIX_GPU_query_support"):
        answer = ctypes.c_int(0)
        code = library.MPIX_GPU_query_support(_MPICH_CUDA, ctypes.byref(answer))
        return code == MPI.SUCCESS and bool(answer.value)
    return False
