"""One rank broadcasts an object, the others an array.

mpicoll: the ranks made different calls. The job ends
rank 1 call 0: Bcast of 32 bytes root 0
"""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
x = np.ones(4)
if comm.rank == 0:
    comm.bcast(x)
else:
    comm.Bcast(x)
comm.Barrier()
