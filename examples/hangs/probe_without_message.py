"""Ranks look for messages that nobody sends.

mpicoll: ranks wait for each other, and none of them can go on. The job ends
rank 0 Probe: no message came from any rank (any tag)
rank 1 Mprobe: no message came from rank 0 (tag 3)
"""

from mpi4py import MPI

comm = MPI.COMM_WORLD
status = MPI.Status()
if comm.rank == 0:
    comm.Probe(status=status)
else:
    message = MPI.Message.Probe(comm, 0, tag=3)
comm.Barrier()
