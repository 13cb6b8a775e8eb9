"""A rank looks for a message that nobody sends.

mpicoll: ranks wait for each other, and none of them can go on. The job ends
rank 0 Probe: no message came from any rank (any tag)
"""

from mpi4py import MPI

comm = MPI.COMM_WORLD
status = MPI.Status()
if comm.rank == 0:
    comm.Probe(status=status)
comm.Barrier()
