"""docs/reference/torch_table.md has a row for each function of this torch, and each row names a test that there is."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of names that torch gives up

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"\| `([\w.]+)` \| (works|not)\b[^|]* \| `([\w/.]+)::(\w+)` \|")
NO_GROUP = {
    "get_default_backend_for_device", "is_available", "is_backend_available", "is_gloo_available", "is_mpi_available",
    "is_nccl_available", "is_torchelastic_launched", "is_ucc_available", "is_xccl_available",
    "register_rendezvous_handler", "supports_complex", "allow_inflight_collective_as_graph_input_ctx",
}  # fmt: skip
"""Functions that touch none."""
MESH = ["from_group", "get_all_groups", "get_coordinate", "get_group", "get_local_rank", "get_rank"]


def table() -> dict[str, list[tuple[str, str, str]]]:
    """By module: (function, file, test) of each row."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for line in (ROOT / "docs/reference/torch_table.md").read_text().splitlines():
        if line.startswith("## "):
            rows = found.setdefault(line[3:].replace("`", "").partition(":")[0], [])
        elif line.startswith("| `"):
            row = ROW.fullmatch(line)
            assert row, line
            rows.append((row[1], row[3], row[4]))
    return found


def functions(module: str, *others: str) -> set[str]:
    """The public functions that ``module`` has of itself and of the ``others``, without what serves only gradients."""
    found = vars(import_module(module)).items()
    names = {name for name, f in found if inspect.isfunction(f) and f.__module__ in (module, *others)}
    return {n for n in names if not n.startswith("_") and not n.endswith(("_backward", "_setup_context"))} - NO_GROUP


def of_torch() -> dict[str, set[str]]:
    """By module: what the table must have."""
    mesh = import_module("torch.distributed.device_mesh").DeviceMesh
    assert all(hasattr(mesh, name) for name in MESH)
    whole = "torch.distributed"
    functional, nn = f"{whole}._functional_collectives", f"{whole}.nn.functional"
    return {
        whole: functions(whole, f"{whole}.distributed_c10d", f"{whole}.rendezvous") | {"P2POp"},
        functional: functions(functional),
        f"{whole}.device_mesh": {"init_device_mesh", *(f"DeviceMesh.{name}" for name in MESH)},
        nn: functions(nn),
    }


@pytest.mark.skipif(torch.__version__.split("+")[0] != "2.13.0", reason="the table is of torch 2.13")
@pytest.mark.parametrize("module", of_torch())
def test_every_function_has_a_row(module: str) -> None:
    names = [name for name, _, _ in table()[module]]
    assert len(names) == len(set(names))
    assert set(names) == of_torch()[module]


def test_every_row_names_a_test() -> None:
    folder = ROOT / "tests/ranks/torch"
    rows = [row for rows in table().values() for row in rows]
    assert set(table()) == set(of_torch())
    assert [row for row in rows if f"\ndef {row[2]}(" not in (folder / row[1]).read_text()] == []


@pytest.mark.slow
@pytest.mark.parametrize(("version", "code", "said"), [("2.4.1", 1, "needs torch"), ("9.0.0", 0, "was tested with")])
def test_as_it_is_imported(version: str, code: int, said: str) -> None:
    pytest.importorskip("torch")
    program = f"import torch; torch.__version__ = '{version}'; import mpicoll.torch"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == code, done.stderr
    assert [said in line for line in done.stderr.splitlines()][-1 if code else 0]
    assert done.stderr.count(f"this is torch {version}") == 1
