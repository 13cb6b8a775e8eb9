"""The MPI library of this process."""

from __future__ import annotations

from mpi4py import MPI


def library() -> str:
    """The MPI library's name and version, such as ``Open MPI 5.0.11``.

    MPI's own text, Get_library_version, also names the host and the paths of whoever built the library."""
    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"
