"""A program of three ranks that goes wrong. Argument: the fault's NAME."""

from __future__ import annotations

import sys

from tests.jobs.programs import absent, different, failing, waiting
from tests.jobs.programs.begun import begun
from tests.jobs.programs.declared import Faults

FAULTS = Faults()
"""All of them. The order decides which MPI one runs on."""
for part in (absent.FAULTS, waiting.FAULTS, failing.FAULTS, different.FAULTS):
    assert FAULTS.keys().isdisjoint(part)
    FAULTS.update(part)


if __name__ == "__main__":
    comm = begun()
    FAULTS[sys.argv[1]].program(comm)
    # No rank may come through this.
    comm.barrier()
    comm.barrier()
    print("went on")
