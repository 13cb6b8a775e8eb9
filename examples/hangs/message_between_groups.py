"""Two groups of ranks talk through a communicator between them, and each waits for the other's message.

mpicoll: ranks wait for each other, and none of them can go on. The job ends
rank 0 recv: no message came from rank 1 (tag 7)
"""

from mpi4py import MPI

world = MPI.COMM_WORLD
group = world.rank % 2
members = world.Get_group().Incl(range(group, world.size, 2))
between = world.Create_group(members).Create_intercomm(0, world, 1 - group)
got = between.recv(source=0, tag=7)
between.send(got, dest=0, tag=7)
