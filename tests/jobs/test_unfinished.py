"""What a program says at its end of messages that never happened, and how it ends after a group was aborted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs.jobs import OURS, TORCH, run, script
from tests.sharing import NEEDS_SHARED, SHARED

pytestmark = pytest.mark.usefixtures("usual_end")

PROGRAM = """
    if comm.rank == 0:
        comm.irecv(x, 1, tag=3)  # dropped at once
        kept = comm.irecv(x, source=None, tag=4)
        taken = comm.isend(x, 1)
    else:
        comm.recv(x, 0)
    comm.barrier()
    print("the end", flush=True)
    if comm.rank == 1:
        late = comm.irecv(x, 0, tag=77)
    else:
        comm.send(x, 1, tag=5)
"""


def test_what_never_happened_is_named(tmp_path: Path) -> None:
    result = run(2, script(tmp_path, PROGRAM, begin=OURS)).good()
    said = [line for line in result.output.splitlines() if "is at its end" in line]
    first, second, *lying = sorted(said)
    assert "rank 0 is at its end and has calls under way" in first
    assert "irecv: no message came from rank 1 (tag 3)" in first
    assert "irecv: no message came from any rank (tag 4)" in first
    assert "isend" not in first
    assert "rank 1" in second
    assert "irecv: no message came from rank 0 (tag 77)" in second
    if SHARED:
        assert lying == ["mpicoll: rank 1 is at its end and has not received messages. 32 bytes from rank 0 (tag 5)"]


THREADS = """
    other = comm.split(0)

    def serve():
        while True:
            other.recv(x, 1, tag=3)
            other.send(2 * x, 1, tag=4)

    if comm.rank == 0:
        threads = [serve, lambda: comm.recv_object(1), lambda: comm.probe(1, 5), lambda: comm.send(np.ones(1 << 20), 1)]
        for each in threads:
            threading.Thread(target=each, daemon=True).start()
        while [len(each._engine.under_way.waits) for each in (comm, other)] != [3, 1]:
            time.sleep(0.01)
    else:
        time.sleep(1)  # a thread of rank 0 still serves when its program has come to its end
        other.send(x, 0, tag=3)
        other.recv(x, 0, tag=4)
        assert x.tolist() == [2] * 4
"""


def test_threads_that_wait_at_the_end(tmp_path: Path) -> None:
    """MPI_Finalize would crash while a thread is within MPI. What it waits for is named."""
    result = run(2, script(tmp_path, THREADS, begin=OURS)).good()
    said = [line for line in result.output.splitlines() if line.startswith("mpicoll: rank 0 ")]
    assert len(said) == 2, result.output
    assert all(line.startswith("mpicoll: rank 0 is at its end and has calls under way. ") for line in said)
    for call in (
        "recv: no message came from rank 1 (tag 3)",
        "recv_object: no message came from rank 1 (tag 0)",
        "probe: no message came from rank 1 (tag 5)",
        "send: no message was taken by rank 1 (tag 0)",
    ):
        assert result.output.count(call) == 1, result.output


NEVER_WAITED_FOR = """
    for _ in range(8):
        with comm.split(0) as part:
            part.irecv(np.ones(4), 1 - comm.rank)
    if sys.argv[1] == "by_mpi":
        comm.iallreduce(np.ones(3_000_000, np.float32))
    elif sys.argv[1] == "by_a_thread":
        comm.iallreduce(np.ones(3), algorithm="ring")
    else:
        kept = comm.iallreduce(np.ones(4))  # it is complete soon after all ranks are at their ends
    if sys.argv[2] == "finalized":
        MPI.Finalize()
"""


@pytest.mark.parametrize("end", ["at_exit", "finalized"])
@pytest.mark.parametrize("how", ["by_mpi", "by_a_thread", "by_the_kernel"])
def test_a_collective_that_nobody_waits_for(how: str, end: str, tmp_path: Path) -> None:
    """Its memory is there as long as MPI may write to it, and MPI does not end while a thread is in a call. Messages in
    many communicators are not all told."""
    lines = run(2, script(tmp_path, NEVER_WAITED_FOR, begin=OURS), how, end).good().output.splitlines()
    collectives = [line for line in lines if "has calls under way. iallreduce: iallreduce sum of" in line]
    messages = [line for line in lines if "is at its end and has calls under way. irecv: no message came" in line]
    more = [line for line in lines if re.fullmatch("mpicoll: it has calls under way in [34] more communicators", line)]
    assert how == "by_mpi" or (collectives, len(messages), len(more)) == ([], 2 * 5, 2), lines
    assert len(lines) == len(collectives) + len(messages) + len(more), lines


HOLDS_ALL = """
    def begin():
        part = comm.split(0)
        x, y = np.ones(4), np.zeros(4)
        part.allreduce(x, out=y)
        if comm.rank == 0:
            assert part._engine.calls.begin("allreduce", x, y, "sum", 0, *[None] * 4) is not None
        else:
            time.sleep(0.3)  # the other rank's program has forgotten it by now
            part.allreduce(x, out=y)
            assert (y == 2).all()

    begin()
    gc.collect()
    comm.barrier()
    time.sleep(0.3)
    print("fine", flush=True)
"""


@NEEDS_SHARED
def test_a_call_under_way_is_the_last_that_holds_its_communicator(tmp_path: Path) -> None:
    """A thread of the kernel's completes it, and the memory of the communicator goes while that thread goes on."""
    # In debug mode Python overwrites memory that is given back, so that its use would crash.
    result = run(2, script(tmp_path, HOLDS_ALL, begin=OURS), env={"PYTHONMALLOC": "debug"})
    assert (result.code, result.output.count("fine")) == (0, 2), result.output


ABORTED = """
    group, comes = dist.group.WORLD, sys.argv[1] == "comes"
    if rank == 0:
        works = [dist.all_reduce(x, async_op=True) for _ in range(2)]
        while group.progress._waiting:
            time.sleep(0.01)
        time.sleep(0.3)  # the second one is in MPI, or about to be
        group.abort()
        for call in (works[1].wait, lambda: dist.all_reduce(x)):
            try:
                call()
            except RuntimeError as e:
                print(e, flush=True)
        if comes:
            group.progress._thread.join()  # until the other rank has come
    else:
        dist.all_reduce(x)
        if comes:
            dist.all_reduce(x)
        group.abort()
    print("the end", flush=True)
"""


@pytest.mark.parametrize("other", ["comes", "stays away"])
def test_a_program_ends_after_an_abort(other: str, tmp_path: Path) -> None:
    result = run(2, script(tmp_path, ABORTED, begin=TORCH), other)
    assert result.output.count("the end") == 2, result.output
    assert "was aborted" in result.output, result.output
    said = result.output.count("was aborted in the middle of a collective, to which not all ranks have come")
    crashed = [word for word in ("Segmentation", "SIGSEGV", "signal 11", "Traceback") if word in result.output]
    assert not crashed, result.output
    assert (result.code == 0, said) == ((True, 0) if other == "comes" else (False, 1)), result.output


def test_a_rank_that_only_receives_at_its_end_gives_nothing_more(tmp_path: Path) -> None:
    """Who waits for a message from it waits for ever."""
    program = f"{OURS}request = comm.irecv(x, 1 - rank)\nif rank == 0:\n    request.wait()\n"
    said = "a rank has finished, and others wait for it", "irecv: no message came from rank 1"
    run(2, script(tmp_path, program)).bad(*said)
