"""What torch gets of mpicoll where no launcher has started the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpicoll import registration
from tests.jobs.jobs import NEEDS_TORCH, python, script
from tests.jobs.test_registration import BEGIN, WORKS

pytestmark = [NEEDS_TORCH, pytest.mark.last_mpi]


def test_importing_torch_loads_no_mpi() -> None:
    """And registers the backend once."""
    loaded = "print([m for m in sys.modules if m.startswith('mpi4py')], dist.Backend('mpicoll'))"
    again = "import warnings; warnings.simplefilter('error'); from mpicoll import registration; registration.load()"
    assert python("-c", f"{BEGIN}{again}\n{loaded}").good().output == "[] mpicoll\n"


def test_without_mpi4py() -> None:
    """Torch is imported as ever; it is asking for a group that fails."""
    program = f"import sys; sys.modules['mpi4py'] = None{BEGIN}dist.init_process_group('mpicoll', 'mpi://')"
    python("-c", program).bad("LaunchError: no MPI library could be loaded")


def test_what_fails_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AttributeError("no such function in this torch")

    monkeypatch.setattr(registration, "register", fail)
    with pytest.warns(UserWarning, match="mpicoll could not register .*: no such function"):
        registration.load()


def test_alone(tmp_path: Path) -> None:
    """Without a launcher, a world of one, if it is asked for."""
    program = script(tmp_path, f"{BEGIN}\ndist.init_process_group('mpicoll', *sys.argv[1:])\n{WORKS}")
    assert python(program, "mpi://").output == "mpicoll 0 1 1.0\n"
    python(program).bad("environment variable RANK expected")


def test_torchrun(tmp_path: Path) -> None:
    program = script(tmp_path, f"{BEGIN}\ndist.init_process_group('mpicoll')\n{WORKS}")
    result = python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program).bad()
    assert "LaunchError: this process is alone" in result.output
    assert "torchrun starts processes that no MPI connects. Start it with `mpicoll run -n 2" in result.output
