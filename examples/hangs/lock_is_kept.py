"""A rank forgets to unlock the window of another one.

mpicoll: ranks wait for each other, and none of them can go on. The job ends
rank 0 call 1: Barrier, at lock_is_kept.py:21 in <module> (while it holds locks of windows): waiting
rank 1 Win.Lock: no lock of the window of rank 1 was granted, at lock_is_kept.py:15
"""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
window = MPI.Win.Create(np.zeros(1), comm=comm)
if comm.rank == 1:
    comm.Recv(np.empty(1), 0)
    window.Lock(1)
    window.Unlock(1)
elif comm.rank == 0:
    window.Lock(1)
    window.Put(np.ones(1), 1)
    comm.Send(np.ones(1), 1)
comm.Barrier()
