"""Rank 1 does not come to the barrier in which the others wait."""

import sys
import time

import mpicoll

comm = mpicoll.Communicator()
if comm.rank == 1:
    sys.stdout.write("rank 1 sleeps\n")
    sys.stdout.flush()
    time.sleep(3600)
comm.barrier()
