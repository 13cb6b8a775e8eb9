"""Who may import whom, read from the source: the lines that keep a change in one room."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "mpicoll"

# Each may import from its own layer and from those before it.
LAYERS = (
    ("errors", "dtypes"),
    ("schedule", "collectives"),
    ("algorithms",),
    ("select",),
    ("communicator",),
    ("threaded",),
    ("torch", "bench"),
    ("cli",),
)

# Who may know mpi4py: what talks to MPI, and what it is measured against.
MPI4PY = (
    "communicator", "lifetime", "fabrics.mpi", "routes", "guard", "machine", "bench",
    "rank",  # python -m mpi4py's own runner, which loads no MPI
    "torch.group", "cli.bench",
)  # fmt: skip


@dataclass(frozen=True)
class Import:
    """``module`` of mpicoll imports ``target``, both relative to mpicoll where they lie in it."""

    module: str
    target: str
    own: bool
    lazy: bool
    line: int

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def modules() -> dict[str, Path]:
    """Each module's name below mpicoll ("" for the package itself) and its file."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


MODULES = modules()


class Reader(ast.NodeVisitor):
    """Collects a module's imports, lazy ones too, but not those for type checkers."""

    def __init__(self, module: str) -> None:
        self.module, self.depth = module, 0
        self.found: list[Import] = []

    def add(self, node: ast.Import | ast.ImportFrom, name: str) -> None:
        own = name == "mpicoll" or name.startswith("mpicoll.")
        target = name.removeprefix("mpicoll").removeprefix(".") if own else name
        self.found.append(Import(self.module, target, own, self.depth > 0, node.lineno))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.add(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.level == 0, f"{self.module}:{node.lineno}: imports are absolute here"
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            is_module = whole.startswith("mpicoll.") and whole.removeprefix("mpicoll.") in MODULES
            self.add(node, whole if is_module else str(node.module))

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test).rpartition(".")[2] != "TYPE_CHECKING":
            self.generic_visit(node)
        else:
            for each in node.orelse:
                self.visit(each)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1


def imports() -> Iterator[Import]:
    for module, file in MODULES.items():
        reader = Reader(module)
        reader.visit(ast.parse(file.read_text(), str(file)))
        yield from reader.found


IMPORTS = list(imports())
OURS = [i for i in IMPORTS if i.own]


def under(module: str, *rooms: str) -> bool:
    return any(module == room or module.startswith(room + ".") for room in rooms)


def layer(module: str) -> int | None:
    return next((n for n, rooms in enumerate(LAYERS) if under(module, *rooms)), None)


def assert_none(broken: list[Import]) -> None:
    assert not broken, "\n".join(map(str, broken))


def test_there_is_something_to_read() -> None:
    assert len(MODULES) > 10
    assert {"errors", "spawned"} <= {i.target for i in OURS if i.module == "launch"}
    assert "torch" in {i.target for i in IMPORTS if i.lazy or under(i.module, "torch")}


def test_layers() -> None:
    def upwards(i: Import) -> bool:
        mine, theirs = layer(i.module), layer(i.target)
        return mine is not None and theirs is not None and theirs > mine

    assert_none([i for i in OURS if upwards(i)])


def test_what_runs_without_mpi_and_torch() -> None:
    pure = ("errors", "dtypes", "schedule", "collectives", "algorithms", "analysis", "sbatch")
    assert_none([i for i in IMPORTS if under(i.module, *pure) and under(i.target, "mpi4py", "torch")])


def test_mpi4py() -> None:
    held = [i for i in IMPORTS if not i.own and under(i.target, "mpi4py")]
    assert_none([i for i in held if not under(i.module, *MPI4PY)])


def test_torch() -> None:
    held = [i for i in IMPORTS if not i.own and under(i.target, "torch")]
    at_home = ("torch", "bench", "machine.gpu")
    at_the_door = ("registration",)  # torch itself calls it
    if_loaded = ("buffers", "kernels")  # these look in sys.modules first
    assert_none(
        [
            i
            for i in held
            if not under(i.module, *at_home) and not (i.lazy and under(i.module, *if_loaded, *at_the_door))
        ]
    )


def test_routes_take_what_they_are_given() -> None:
    assert_none([i for i in OURS if under(i.module, "routes") and under(i.target, "algorithms", "select")])


def test_the_verifier_needs_only_meanings() -> None:
    verifier = ("analysis.verify", "analysis.rules", "analysis.symbols")
    allowed = ("schedule", "collectives", "errors", *verifier)
    assert_none([i for i in OURS if under(i.module, *verifier) and not under(i.target, *allowed)])


def test_the_adapter_and_the_benchmark_are_leaves() -> None:
    assert_none(
        [i for i in OURS if under(i.target, "torch") and not under(i.module, "torch", "registration", "bench", "cli")]
    )
    assert_none([i for i in OURS if under(i.target, "bench") and not under(i.module, "bench", "cli")])
    assert_none([i for i in OURS if under(i.target, "cli") and not under(i.module, "cli", "__main__")])


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import mpicoll", ["torch", "mpi4py.MPI"]),
        ("import mpicoll.cli", ["torch", "mpi4py.MPI"]),
        ("import mpicoll.torch", ["mpi4py.MPI"]),
    ],
)
def test_importing_initialises_nothing(statement: str, absent: list[str]) -> None:
    if "mpicoll.torch" in statement:
        pytest.importorskip("torch")
    code = f"import sys; {statement}; print([name for name in {absent} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("[]\n", "")
