"""In a ring, all ranks receive from the wrong side.

mpicoll: ranks wait for each other, and none of them can go on. The job ends
rank 0 Sendrecv: no message came from rank 1 (tag 2)
"""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
right = (comm.rank + 1) % comm.size
got = np.empty(1)
comm.Sendrecv(np.ones(1), right, sendtag=1, recvbuf=got, source=right, recvtag=2)
