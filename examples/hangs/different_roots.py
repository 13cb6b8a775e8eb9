"""Each rank takes itself for the root.

mpicoll: the ranks made different calls. The job ends
rank 1 call 0: Bcast of 32 bytes root 1
"""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
x = np.ones(4)
comm.Bcast(x, root=comm.rank)
comm.Barrier()
