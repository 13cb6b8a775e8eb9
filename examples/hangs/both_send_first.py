"""Both ranks send before they receive. Short messages hide it: MPI keeps those until they are received.

mpicoll: ranks wait for each other, and none of them can go on. The job ends
rank 0 Send: no message was taken by rank 1 (tag 0)
"""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
x, y = np.ones(1 << 20), np.empty(1 << 20)
other = comm.rank ^ 1
if other < comm.size:
    comm.Send(x, dest=other)
    comm.Recv(y, source=other)
