"""The receivers of a broadcast have another length than the root.

mpicoll: the ranks made different calls. The job ends
rank 0 call 0: Bcast of 808 bytes root 0
"""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
x = np.ones(101 if comm.rank == 0 else 100)
comm.Bcast(x, root=0)
comm.Barrier()
