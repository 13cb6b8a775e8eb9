"""One rank has a batch more than the others.

mpicoll: a rank has finished, and others wait for it. The job ends
rank 0 call 10: Allreduce sum of 64 bytes of float64
"""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
mean = np.zeros(8)
for _ in range(10 + (comm.rank == 0)):
    comm.Allreduce(np.ones(8), mean)
