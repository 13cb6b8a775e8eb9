"""The ranks reduce arrays of different dtypes.

mpicoll: the ranks made different calls. The job ends
rank 1 call 0: Allreduce sum of 64 bytes of float32
"""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
x = np.ones(8, "float64") if comm.rank == 0 else np.ones(16, "float32")
comm.Allreduce(MPI.IN_PLACE, x)
