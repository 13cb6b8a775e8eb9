"""A rank begins to access the window of another one, which does not post it.

mpicoll: ranks wait for each other, and none of them can go on. The job ends
rank 0 Win.Start: no Post came from rank 1, at window_is_not_posted.py
rank 1 Win.Wait: no Complete came from rank 0, at window_is_not_posted.py
"""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
first, second = (MPI.Win.Create(np.zeros(1), comm=comm) for _ in range(2))
group = comm.Get_group()
if comm.rank == 0:
    first.Start(group.Incl([1]))
    first.Put(np.ones(1), 1)
    first.Complete()
elif comm.rank == 1:
    second.Post(group.Incl([0]))  # the other window
    second.Wait()
