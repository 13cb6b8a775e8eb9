"""A collective stands within ``if rank == 0``.

mpicoll: a rank has finished, and others wait for it. The job ends
rank 1 has not arrived and has ended its program
"""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
x = np.ones(4)
if comm.rank == 0:
    comm.Bcast(x)
    comm.Barrier()
