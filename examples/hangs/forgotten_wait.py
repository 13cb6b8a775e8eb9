"""A rank begins to receive, and never waits for what comes. The job ends, and the array is empty.

rank 0 is at its end and has calls under way. Irecv: no message came from rank 1 (tag 3)
"""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
x = np.empty(4)
if comm.rank == 0:
    request = comm.Irecv(x, source=1, tag=3)
comm.Barrier()
