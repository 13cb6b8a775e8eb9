"""One rank fails, and the others wait for it.

rank 0 on
ZeroDivisionError: division by zero
"""

from mpi4py import MPI

comm = MPI.COMM_WORLD
share = 1 / comm.rank if comm.rank < 2 else 1.0
print(comm.allreduce(share))
