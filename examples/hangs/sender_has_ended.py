"""A rank waits for a message of a rank that has come to its end.

mpicoll: a rank has finished, and others wait for it. The job ends
rank 0 recv: no message came from rank 1 (any tag)
"""

from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    print(comm.recv(source=1))
