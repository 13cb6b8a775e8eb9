"""Two communicators of the same ranks are used in different order.

mpicoll: ranks wait for each other, and none of them can go on. The job ends
rank 0 call 0: Allreduce sum of 32 bytes of float64
"""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
fine, coarse = comm.Dup(), comm.Dup()
for each in (fine, coarse) if comm.rank == 0 else (coarse, fine):
    each.Allreduce(MPI.IN_PLACE, np.ones(4))
