"""Programs of three ranks that go wrong, one fault each, and what must be said of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FAULTS", "GOES_ON", "Fault"]

BEGIN = """\
import os, random, resource, signal, sys, threading, time
import numpy as np
import mpicoll

comm = mpicoll.Communicator()
rank, x, long = comm.rank, np.ones(6), np.ones(1 << 17)
for _ in range(3):
    comm.allreduce(x)

def fault():
"""
END = "\nfault()\n"
GOES_ON = "comm.barrier()\ncomm.barrier()\nprint('went on')\n"
"""After the fault: what no rank may come through."""


@dataclass(frozen=True)
class Fault:
    """``body`` is what goes wrong, ``said`` are pieces of the report. ``seconds`` is the timeout of calls."""

    body: str
    said: tuple[str, ...]
    seconds: float = 3.0

    def program(self) -> str:
        lines = self.body.strip("\n").splitlines()
        return BEGIN + "".join(f"    {line}\n" for line in lines) + END + GOES_ON


DIFFERENT = "mpicoll: the ranks made different calls. The job ends (communicator of ranks 0-2):"
HAS_LEFT = "mpicoll: a rank has come to its end, and others wait for it. The job ends (communicator of ranks 0-2):"
TIME_IS_UP = "mpicoll: a call was not complete in time. The job ends (communicator of ranks 0-2):"
IS_GONE = "mpicoll: a rank's process is gone, and others wait for it. The job ends (communicator of ranks 0-2):"

FAULTS = {
    # A rank does not come.
    "busy": Fault("if rank == 1: time.sleep(600)", (TIME_IS_UP, "rank 1", "has not come", "script.py:12 in fault")),
    "rank 0 busy": Fault("if rank == 0: time.sleep(600)", (TIME_IS_UP, "rank 0", "has not come", "script.py:12 in fault")),
    "stopped": Fault("if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)", (TIME_IS_UP, "rank 1", "does not answer: it is stopped")),
    "rank 0 stopped": Fault(
        "if rank == 0: os.kill(os.getpid(), signal.SIGSTOP)",
        ("The first rank, which compares ranks, does not answer. The job ends", "barrier, at script.py"),
    ),
    "the script ends": Fault("if rank == 1: sys.exit()", (HAS_LEFT, "rank 1", "has not come and has ended its program"), 600),
    "exit 0": Fault("if rank == 0: sys.exit(0)", (HAS_LEFT, "rank 0", "has not come and has ended its program"), 600),
    "_exit 0": Fault("if rank == 1: os._exit(0)", (), 600),
    "rank 0, _exit 0": Fault("if rank == 0: os._exit(0)", (), 600),
    "raises": Fault("if rank == 1: raise KeyError('of the program')", ("KeyError: 'of the program'",), 600),
    "killed": Fault("if rank == 1: os.kill(os.getpid(), signal.SIGKILL)", (), 600),
    "no memory": Fault(
        "if rank == 1:\n    resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))\n    np.ones(1 << 33)\n",
        ("Unable to allocate",), 600,
    ),
    # Ranks wait for each other in two places.
    "two groups in different order": Fault(
        """
one, other = comm.split(0), comm.split(0)
for group in (one, other) if rank == 1 else (other, one):
    group.allreduce(long)
""",
        (TIME_IS_UP, "ranks wait in another communicator, too", "allreduce sum of 131072 float64"),
    ),
    "nobody sends": Fault("if rank == 1: comm.recv(x, 2)", (TIME_IS_UP, "rank 1", "recv: no message came from rank 2 (tag 0)", "script.py:12 in fault")),
    "nobody sends an object": Fault("if rank == 1: comm.recv_object()", (TIME_IS_UP, "recv_object: no message came from any rank (tag 0)")),
    "nobody receives": Fault("if rank == 1: comm.send(np.ones(1 << 22), 2)", (TIME_IS_UP, "rank 1", "send: no message was taken by rank 2 (tag 0)")),
    "one rank frees it": Fault("if rank == 1:\n    comm.free()\n    time.sleep(600)", ("mpicoll: a rank has freed the communicator, and others still use it", "has not come and has freed the communicator"), 600),
    "a handler ends a call midway": Fault(
        """
def handler(number, frame):
    raise InterruptedError("of a handler")

if rank == 1:
    signal.signal(signal.SIGALRM, handler)
    threading.Timer(1.0, lambda: signal.raise_signal(signal.SIGALRM)).start()
    try:
        # A schedule's steps return to Python, and a handler can run between them.
        for _ in range(1 << 20):
            comm.allreduce(long, algorithm="ring")
    except InterruptedError:
        sys.exit()
else:
    for _ in range(1 << 20):
        comm.allreduce(long, algorithm="ring")
""",
        ("a rank has come to its end, and others wait for it",), 600,
    ),
    "two threads": Fault(
        """
def work(op):
    for _ in range(1 << 16):
        comm.allreduce(x, op=op)

threads = [threading.Thread(target=work, args=[op]) for op in ("max", "min")]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
""",
        (),
    ),
    # Calls that do not fit.
    "collective": Fault("comm.bcast(x) if rank == 2 else comm.allreduce(x)", (DIFFERENT, "bcast of 6 float64 root 0", "allreduce sum of 6 float64"), 600),
    "op": Fault("comm.allreduce(x, op='max' if rank == 1 else 'sum')", (DIFFERENT, "allreduce max", "allreduce sum"), 600),
    "dtype": Fault("comm.allreduce(x.astype('f4') if rank == 1 else x)", (DIFFERENT, "6 float32", "6 float64"), 600),
    "dtype of the same size": Fault("comm.allreduce(x.astype('i8') if rank == 1 else x)", (DIFFERENT, "6 int64", "6 float64"), 600),
    "count": Fault("comm.allreduce(x[rank // 2:])", (DIFFERENT, "sum of 5 float64", "sum of 6 float64"), 600),
    "bcast's count": Fault("comm.bcast(x[:3] if rank == 0 else x)", (DIFFERENT, "bcast of 3", "bcast of 6"), 600),
    "root": Fault("comm.bcast(x, root=rank // 2)", (DIFFERENT, "root 0", "root 1"), 600),
    "algorithm": Fault("comm.allreduce(x, algorithm='ring' if rank else 'recursive_doubling')", (DIFFERENT, "algorithm ring", "algorithm recursive_doubling"), 600),
    "counts": Fault("comm.allgatherv(x[:2] if rank != 1 else x[:3], [2, 2, 2] if rank != 1 else [2, 3, 2])", (DIFFERENT, "counts [2, 2, 2]", "counts [2, 3, 2]"), 600),
    "long and short": Fault("comm.allreduce(long if rank else x)", (DIFFERENT, "sum of 131072", "sum of 6"), 600),
    "MPI's own error": Fault("comm.bcast(x[:2] if rank else x, algorithm='native')", (DIFFERENT, "bcast of 2", "bcast of 6"), 600),
    "object": Fault("comm.allgather_object(1) if rank else comm.bcast_object(1)", (DIFFERENT, "allgather_object", "bcast_object root 0"), 600),
    "one call less": Fault("for _ in range(3 if rank else 2): comm.bcast(x)", (DIFFERENT, "bcast of 6", "barrier"), 600),
    "long ago": Fault(
        "for i in range(200_000):\n    comm.bcast(x, root=0 if i or rank < 2 else 1) if rank else comm.bcast(x)",
        (DIFFERENT,), 600,
    ),
}
