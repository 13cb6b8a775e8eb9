"""A process ends without a word, as where the system runs out of memory.

has ended
"""

import os

from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Barrier()
if comm.rank == 1:
    os._exit(3)
comm.Barrier()
