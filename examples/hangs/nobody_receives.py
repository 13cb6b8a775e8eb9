"""A rank sends a message that nobody receives. It is short, so MPI takes it, and the job ends in silence.

rank 1 is at its end and has not received messages. 32 bytes from rank 0 (tag 9) came first
"""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.Send(np.ones(4), dest=1, tag=9)
comm.Barrier()
