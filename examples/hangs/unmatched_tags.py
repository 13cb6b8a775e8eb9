"""One end of a message has another tag than the other.

mpicoll: ranks wait for each other, and none of them can go on. The job ends
rank 1 Recv: no message came from rank 0 (tag 2)
"""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
x = np.zeros(1 << 20)
if comm.rank == 0:
    comm.Send(x, dest=1, tag=1)
elif comm.rank == 1:
    comm.Recv(x, source=0, tag=2)
