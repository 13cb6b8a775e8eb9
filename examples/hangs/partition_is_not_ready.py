"""Threads should fill the partitions of a message, and one of them is forgotten.

mpicoll: ranks wait for each other, and none of them can go on. The job ends
rank 0 Psend_init: no message was taken by rank 1 (tag 5): not all of its partitions are ready
rank 1 Precv_init: no message came from rank 0 (tag 5)
"""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
x = np.ones((4, 100))
request = comm.Psend_init(x, len(x), 1, tag=5) if comm.rank == 0 else comm.Precv_init(x, len(x), 0, tag=5)
request.Start()
if comm.rank == 0:
    for part in range(1, len(x)):
        request.Pready(part)
request.Wait()
