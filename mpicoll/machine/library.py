"""The MPI library of this process."""

from __future__ import annotations

from mpi4py import MPI

__all__ = ["library"]


def library() -> str:
    """Its name and version, as ``Open MPI 5.0.11``.

    Not the whole text of Get_library_version, which holds the builder's host and paths."""
    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"
