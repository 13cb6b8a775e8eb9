"""A destructor has a barrier, and only one rank runs it before the end.

mpicoll: the ranks made different calls. The job ends
rank 0 call 0: Barrier, at barrier_in_destructor.py
"""

from mpi4py import MPI

comm = MPI.COMM_WORLD


class Mesh:
    def __del__(self) -> None:
        comm.Barrier()


mesh = Mesh()
if comm.rank == 0:
    del mesh
comm.allreduce(1)
