"""The ranks reduce by different operations.

mpicoll: the ranks made different calls. The job ends
rank 1 call 0: allreduce max
"""

from mpi4py import MPI

comm = MPI.COMM_WORLD
op = MPI.SUM if comm.rank == 0 else MPI.MAX
print(comm.allreduce(comm.rank, op=op))
