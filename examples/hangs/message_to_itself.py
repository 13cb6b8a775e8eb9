"""A rank waits for a message that it sends to itself afterwards.

mpicoll: ranks wait for each other, and none of them can go on. The job ends
rank 0 recv: no message came from rank 0 (any tag)
"""

from mpi4py import MPI

comm = MPI.COMM_WORLD
got = comm.recv(source=comm.rank)
comm.send(got, dest=comm.rank)
