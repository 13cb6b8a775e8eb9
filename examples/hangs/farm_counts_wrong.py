"""The root of a task farm waits for more results than there are.

mpicoll: a rank has finished, and others wait for it. The job ends
rank 0 recv: no message came from any rank (any tag)
"""

from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    print([comm.recv(source=MPI.ANY_SOURCE) for _ in range(comm.size)])
else:
    comm.send(comm.rank**2, dest=0)
