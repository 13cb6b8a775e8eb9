"""Programs of three ranks that go wrong, one fault each, and what must be said of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DIFFERENT", "FAULTS", "Fault"]

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
"""After the fault: what no rank may come through, unless the fault is ``silent``."""


@dataclass(frozen=True)
class Fault:
    """``body`` is what goes wrong, ``said`` are pieces of the report. ``seconds`` is the timeout of calls."""

    body: str
    said: tuple[str, ...]
    seconds: float = 3.0
    any_mpi: bool = True
    """Whether it is the same on all MPIs."""

    def program(self) -> str:
        lines = self.body.strip("\n").splitlines()
        return BEGIN + "".join(f"    {line}\n" for line in lines) + END + GOES_ON


DIFFERENT = "mpicoll: the ranks made different calls. The job ends (communicator of ranks 0-2):"
FIRST_IS_SILENT = "The first rank, which compares ranks, does not answer. The job ends"
HAS_LEFT = "mpicoll: a rank has come to its end, and others wait for it. The job ends (communicator of ranks 0-2):"
TIME_IS_UP = "mpicoll: a call was not complete in time. The job ends (communicator of ranks 0-2):"
STUCK = "mpicoll: ranks wait for each other, and none of them can go on. The job ends (communicator of ranks 0-2):"
IS_GONE = "mpicoll: a rank's process is gone, and others wait for it. The job ends (communicator of ranks 0-2):"

FAULTS = {
    # A rank does not come.
    "busy": Fault("if rank == 1: time.sleep(600)", (TIME_IS_UP, "rank 1", "has not come", "script.py:11 in fault")),
    "rank 0 busy": Fault(
        "if rank == 0: time.sleep(600)", (TIME_IS_UP, "rank 0", "has not come", "script.py:11 in fault")
    ),
    "stopped": Fault(
        "if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)", (TIME_IS_UP, "rank 1", "does not answer: it is stopped")
    ),
    "rank 0 stopped": Fault(
        "if rank == 0: os.kill(os.getpid(), signal.SIGSTOP)",
        (FIRST_IS_SILENT, "barrier, at script.py"),
    ),
    "the script ends": Fault(
        "if rank == 1: sys.exit()", (HAS_LEFT, "rank 1", "has not come and has ended its program"), 600
    ),
    "exit 0": Fault("if rank == 0: sys.exit(0)", (HAS_LEFT, "rank 0", "has not come and has ended its program"), 600),
    "_exit 0": Fault("if rank == 1: os._exit(0)", (), 600, any_mpi=False),
    "rank 0, _exit 0": Fault("if rank == 0: os._exit(0)", (), 600),
    "raises": Fault("if rank == 1: raise KeyError('of the program')", ("KeyError: 'of the program'",), 600),
    "killed": Fault("if rank == 1: os.kill(os.getpid(), signal.SIGKILL)", (), 600),
    "no memory": Fault(
        "if rank == 1:\n    resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))\n    np.ones(1 << 33)\n",
        ("Unable to allocate",),
        600,
    ),
    "makes no communicator": Fault(
        "if rank == 1: sys.exit()\nmpicoll.Communicator()",
        (
            " in making a communicator, at script.py:12 in fault",
            "its ranks have not all come to this call. The job ends",
        ),
    ),
    "is in no subset": Fault(
        "comm.subset([2, 0]) if rank == 2 else time.sleep(600)",
        ("mpicoll: rank 2 has waited for", " in subset([2, 0]), at script.py:11 in fault"),
    ),
    "names a subset in another order": Fault(
        "comm.subset([0, 1] if rank else [1, 0])\ntime.sleep(600)",
        ("mpicoll: rank ", " in subset([", "its ranks have not all come to this call. The job ends"),
    ),
    "makes no group of torch's": Fault(
        """
import torch.distributed as dist
dist.init_process_group("mpicoll")
if rank != 1: dist.new_group([0, 1])
time.sleep(600)
""",
        ("mpicoll: rank 0 has waited for", " in new_group, at script.py:13 in fault"),
    ),
    "gives another check": Fault(
        "mpicoll.Communicator(check='full' if rank else None)",
        ("Communicator: check: expected the same on all ranks; given 'watch' on rank 0, 'full' on ranks 1-2",),
        600,
    ),
    # Ranks wait for each other in two places.
    "two groups in different order": Fault(
        """
one, other = comm.split(0), comm.split(0)
for group in (one, other) if rank == 1 else (other, one):
    group.allreduce(long)
""",
        (STUCK, "ranks wait in another communicator, too", "allreduce sum of 131072 float64"),
        600,
    ),
    "two groups, of which a rank has only one": Fault(
        """
one, other = comm.split(0 if rank < 2 else None), comm.split(0 if rank else None)
for group in {0: (one, comm), 1: (other, one, comm), 2: (comm, other)}[rank]:
    group.allreduce(long)
""",
        (STUCK.partition(" (")[0], "ranks wait in another communicator, too", "allreduce sum of 131072 float64"),
        600,
    ),
    "nobody sends": Fault(
        "if rank == 1: comm.recv(x, 2)",
        (TIME_IS_UP, "rank 1", "recv: no message came from rank 2 (tag 0)", "script.py:11 in fault"),
    ),
    "nobody sends an object": Fault(
        "if rank == 1: comm.recv_object()", (TIME_IS_UP, "recv_object: no message came from any rank (tag 0)")
    ),
    "each receives first": Fault(
        "comm.recv(x, (rank + 1) % 3)",
        (STUCK, "rank 0  recv: no message came from rank 1 (tag 0)", "rank 2  recv: no message came from rank 0"),
        600,
    ),
    "each waits for its request first": Fault(
        """
import gc
comm.isend(x, (rank + 1) % 3)
comm.recv(np.empty(6), (rank + 2) % 3)
comm.barrier()
request = comm.irecv(x, (rank + 1) % 3)
gc.freeze()
request.wait()
""",
        (STUCK, "rank 0  irecv: no message came from rank 1 (tag 0)"),
        600,
    ),
    "each sends first": Fault(
        "comm.send(np.ones(1 << 20), (rank + 1) % 3)",
        (STUCK, "rank 1  send: no message was taken by rank 2 (tag 0)"),
        600,
    ),
    "a message that nobody sends, before a collective": Fault(
        "if rank == 1: comm.recv_object(2)",
        (STUCK, "ranks 0, 2  call 3: barrier", "recv_object: no message came from rank 2 (tag 0)"),
        600,
    ),
    "the root receives first": Fault(
        "comm.bcast(x) if rank else comm.recv(x, 1)",
        (STUCK, "rank 0     recv: no message came from rank 1 (tag 0)", "ranks 1-2  call 3: bcast of 6 float64 root 0"),
        600,
    ),
    "the root gathers first": Fault(
        "comm.recv_object(0) if rank == 1 else comm.gather_object(x) or comm.barrier()",
        (STUCK, "rank 0  call 3: gather_object root 0", "rank 1  recv_object: no message came from rank 0 (tag 0)"),
        600,
    ),
    "a message has another tag": Fault(
        "if rank == 0: comm.recv(x, 2, tag=1)\nif rank == 2: comm.send(np.ones(1 << 20), 0, tag=2)",
        (STUCK, "rank 0  recv: no message came from rank 2 (tag 1)", "send: no message was taken by rank 0 (tag 2)"),
        600,
    ),
    "who could send ends": Fault(
        "if rank: sys.exit()\ncomm.recv(x, None)",
        (HAS_LEFT, "recv: no message came from any rank (tag 0)", "ranks 1-2  have ended their program"),
        600,
    ),
    "who should receive ends": Fault(
        "if rank == 1: sys.exit()\ncomm.send(np.ones(1 << 22), 1)",
        (HAS_LEFT, "send: no message was taken by rank 1 (tag 0)", "has ended its program"),
        600,
    ),
    "nobody receives": Fault(
        "if rank == 1: comm.send(np.ones(1 << 22), 2)",
        (TIME_IS_UP, "rank 1", "send: no message was taken by rank 2 (tag 0)"),
    ),
    "one rank frees it": Fault(
        "if rank == 1:\n    comm.free()\n    time.sleep(600)",
        (
            "mpicoll: a rank has freed the communicator, and others still use it",
            "has not come and has freed the communicator",
        ),
        600,
    ),
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
        ("a rank has come to its end, and others wait for it",),
        600,
    ),
    "a device fails on one rank": Fault(
        """
from tests.devices.simulated import Simulated
from mpicoll.errors import DeviceFailure

device = Simulated()
on_device = device.array(x)
device.current().synchronize()
if rank == 1:
    device.fail("copy")
try:
    comm.allreduce(on_device)
except DeviceFailure:
    time.sleep(600)
""",
        (
            "mpicoll: a call has failed on a rank, and others wait for it. The job ends (communicator of ranks 0-2):",
            "rank 1      call 3: allreduce sum of 6 float64 on simulated",
            "cannot use the communicator any more",
        ),
        600,
    ),
    "a device has no memory on one rank": Fault(
        """
from tests.devices.simulated import Simulated

device = Simulated()
on_device = device.array(np.ones((6, 2)))[:, 0]
if rank == 1:
    device.fail("allocation")
comm.allreduce(on_device, out=on_device)
""",
        ("DeviceError: allreduce: x: expected", "for the call to work in"),
        600,
    ),
    "another sort of memory on one rank": Fault(
        """
from tests.devices.simulated import Simulated

device = Simulated()
comm.allreduce(long if rank == 1 else device.array(long))  # it may return, with wrong data
time.sleep(600)
""",
        (DIFFERENT, "131072 float64 on simulated", "rank 1"),
        600,
    ),
    "two threads": Fault(
        """
if rank == 0:
    threading.Thread(target=comm.allreduce, args=[x], daemon=True).start()
    while not comm._engine.recorder.under_way:
        time.sleep(0.01)
    comm.allreduce(x)
time.sleep(600)
""",
        ("StateError: allreduce sum of 6 float64: this communicator is in another call now",),
        600,
    ),
    # Calls that do not fit.
    "object": Fault(
        "comm.allgather_object(1) if rank else comm.bcast_object(1)",
        (DIFFERENT, "allgather_object", "bcast_object root 0"),
        600,
    ),
    "while an exception is handled": Fault(
        """
try:
    if rank == 1:
        raise ValueError("the cause")
    comm.allreduce(x)
finally:
    comm.bcast(x)
""",
        (DIFFERENT, "allreduce sum of 6", "bcast of 6", "(while it handles ValueError: the cause)"),
        600,
    ),
    "an object's operation": Fault(
        "comm.allreduce_object(rank, min if rank else 'max')\ntime.sleep(600)",
        (DIFFERENT, "allreduce_object max", "allreduce_object min"),
        600,
    ),
    "calls that do not block": Fault(
        "request = comm.iallreduce(np.ones(1000)) if rank else comm.ibarrier()\nrequest.wait()\nsys.exit()",
        (DIFFERENT, "iallreduce sum of 1000 float64", "ibarrier"),
        600,
        any_mpi=False,
    ),
    "an alltoallv's counts": Fault(
        "comm.alltoallv(np.ones(6 - (rank == 0)), [2, 2 - (rank == 0), 2], [2, 2, 2])",
        ("alltoallv: expected 2 elements from rank 0; it sends 1",),
        600,
        any_mpi=False,
    ),
    "an alltoallv's counts, in a schedule": Fault(
        "comm.alltoallv(np.ones(6 - (rank == 0)), [2, 2 - (rank == 0), 2], [2, 2, 2], algorithm='pairwise')",
        ("alltoallv: expected 2 elements from rank 0; it sends 1",),
        600,
    ),
    "without stderr": Fault("os.close(2)\ncomm.allgather_object(1) if rank else comm.bcast_object(1)", (), 600),
    "one call less": Fault(
        "for _ in range(3 if rank else 2): comm.bcast(x)", (DIFFERENT, "bcast of 6", "barrier"), 600
    ),
    "long ago": Fault(
        "for i in range(200_000):\n    comm.bcast(x, root=0 if i or rank < 2 else 1) if rank else comm.bcast(x)",
        ("mpicoll: the ranks made different calls",),
        600,
    ),
    "MPI.Finalize by the program": Fault(
        """
from mpi4py import MPI

comm.bcast(x, root=rank // 2)
MPI.Finalize()
sys.exit()
""",
        (DIFFERENT, "root 0", "root 1"),
        600,
    ),
}
