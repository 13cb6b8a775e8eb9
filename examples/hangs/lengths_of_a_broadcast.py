"""The receivers of a broadcast have another length than the root.

mpicoll: the ranks made different calls. The job ends
rank 0 call 0: Bcast of 8000 bytes root 0
"""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
whole = np.ones(1000)  # MPI may write all of it before it says that it is too much
x = whole if comm.rank == 0 else whole[:100]
comm.Bcast(x, root=0)
comm.Barrier()
