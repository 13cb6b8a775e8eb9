"""Rank 1 is ended by a signal, or raises, while the others wait for it in a collective."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

import mpicoll

comm = mpicoll.Communicator()
comm.allreduce(np.ones(1))
if comm.rank == 1:
    sys.stdout.write(f"fails at {time.time():.3f}\n")
    sys.stdout.flush()
    if sys.argv[1] != "raises":
        os.kill(os.getpid(), signal.Signals[sys.argv[1]])
    raise ValueError("of rank 1")
comm.allreduce(np.ones(1))
sys.stdout.write("went on\n")
