"""One rank reads from a window, and the others do not come to the fence after it.

mpicoll: the ranks made different calls. The job ends
rank 0 call 2: Win.Fence, at fence_on_one_rank.py
"""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
x, got = np.ones(4), np.empty(4)
window = MPI.Win.Create(x, comm=comm)
window.Fence()
if comm.rank == 0:
    window.Get(got, 1)
    window.Fence()
comm.Barrier()
