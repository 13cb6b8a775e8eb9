"""The last rank is killed while the others wait for it, and they go on."""

from __future__ import annotations

import os
import signal
import socket
import sys

import numpy as np

import mpicoll
from mpicoll.errors import RankLost

comm = mpicoll.Communicator()
hosts = comm.allgather_object(socket.gethostname())
try:
    comm.barrier()  # all have the hosts now
    if comm.rank == comm.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()
except RankLost:
    comm = comm.shrink()
sum_of_ones = comm.allreduce(np.ones(1))[0]
sys.stdout.write(f"a sum of {sum_of_ones:g} ones, of a job that began on {sorted({*hosts})}\n")
