"""What a program says at its end of messages that never happened."""

from __future__ import annotations

from pathlib import Path

from tests.launch.jobs import run, script

PROGRAM = """
    import numpy as np
    import mpicoll

    comm = mpicoll.Communicator()
    x = np.ones(4)
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
"""


def test_what_never_happened_is_named(tmp_path: Path) -> None:
    result = run(2, script(tmp_path, PROGRAM))
    said = [line for line in result.output.splitlines() if "is at its end" in line]
    assert result.code == 0, result.output
    assert len(said) == 2, result.output
    first, second = sorted(said)
    assert "rank 0 is at its end and has messages under way" in first
    assert "irecv: no message came from rank 1 (tag 3)" in first
    assert "irecv: no message came from any rank (tag 4)" in first
    assert "isend" not in first
    assert "rank 1" in second
    assert "irecv: no message came from rank 0 (tag 77)" in second
