"""One of several requests is never served.

mpicoll: ranks wait for each other, and none of them can go on. The job ends
rank 0 Irecv: no message came from rank 1 (tag 1)
"""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
x = np.empty((2, 4))
other = (comm.rank + 1) % comm.size
left = (comm.rank - 1) % comm.size
requests = [comm.Irecv(x[0], left, tag=0), comm.Irecv(x[1], left, tag=1), comm.Isend(np.ones(4), other, tag=0)]
MPI.Request.Waitall(requests)
