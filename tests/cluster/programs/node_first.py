"""A communicator of each node's ranks is made before the one of all. Then the nodes' calls differ."""

import time

import numpy as np
from mpi4py import MPI

import mpicoll

node = mpicoll.Communicator(MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED))
node.allreduce(np.ones(3))
comm = mpicoll.Communicator()
comm.allreduce(np.ones(5), op="sum" if comm.rank < node.size else "max")
time.sleep(60)
