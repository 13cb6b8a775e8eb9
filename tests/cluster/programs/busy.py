"""All ranks make calls, without an end."""

import sys

import numpy as np

import mpicoll

comm = mpicoll.Communicator()
x = np.ones(4)
comm.allreduce(x)
if comm.rank == 0:
    sys.stdout.write("rank 0 is busy\n")
    sys.stdout.flush()
while True:
    comm.allreduce(x)
