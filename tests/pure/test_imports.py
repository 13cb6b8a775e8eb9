"""Who may import whom, read from the source. docs/explanation/architecture.md has the same table, for people."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "mpicoll"
PAGE = REPOSITORY / "docs/explanation/architecture.md"
ROOM = re.compile(r"^\| `([\w.]+)`[^|]*\|[^|]*\| ([^|]*) \|", re.MULTILINE)

# Who may know mpi4py: what talks to MPI, and what mpicoll is measured against.
MPI4PY = (
    "machine.mpi_library",
    "launch.lifecycle", "launch.mpi_init", "launch.program",  # program: mpi4py.rc alone, which loads no MPI
    "fabrics.transports.memory", "fabrics.transports.mpi_requests",
    "fabrics.routes.devices.scheduled", "fabrics.routes.exchange", "fabrics.routes.native",
    "fabrics.bounded_allgather", "fabrics.messages", "fabrics.mpi", "fabrics.mpi_communicators", "fabrics.mpi_objects",
    "bench.backends", "bench.session", "bench.sweep", "bench.timing", "cli.bench",
    "doctor.rank", "probe.tries", "watching.arguments", "watching.communicators", "watching.mpi", "watching.windows",
)  # fmt: skip
# Who may import torch. Others look for it among the modules that the program has loaded.
TORCH = ("torch", "bench", "registration", "watching.torch", "doctor.gpu", "probe.tries")
# Modules of the room torch that torch must be able to import without mpicoll.torch.
AT_THE_DOOR = ("registration", "torch_versions")


class Import(NamedTuple):
    """``module`` of mpicoll imports ``target``, both relative to mpicoll where they lie in it."""

    module: str
    target: str
    own: bool
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


def imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """What a statement imports: ``from mpicoll.a import b`` is ``mpicoll.a.b`` if that is a module."""
    for alias in node.names:
        if isinstance(node, ast.Import):
            yield alias.name
        else:
            assert node.level == 0, "imports are absolute here"
            whole = f"{node.module}.{alias.name}"
            yield whole if whole.removeprefix("mpicoll.") in MODULES else str(node.module)


def imports(module: str, file: Path) -> Iterator[Import]:
    """Lazy ones too, but not those for type checkers."""
    left: list[ast.AST] = [ast.parse(file.read_text(), str(file))]
    for node in left:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in imported(node):
                own = name == "mpicoll" or name.startswith("mpicoll.")
                target = name.removeprefix("mpicoll").removeprefix(".") if own else name
                yield Import(module, target, own, node.lineno)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            left += node.orelse
        else:
            left += ast.iter_child_nodes(node)


IMPORTS = [each for module, file in MODULES.items() for each in imports(module, file)]
OURS = [i for i in IMPORTS if i.own]


def under(module: str, *rooms: str) -> bool:
    return any(module == room or module.startswith(room + ".") for room in rooms)


def room(module: str) -> str:
    """The room of a module, which may lie in another one: ``fabrics.routes``."""
    if module in AT_THE_DOOR:
        return "torch"
    return max((each for each in permitted() if under(module, each)), key=len, default=module)


def storey(module: str) -> str:
    """The folder below ``mpicoll/``, or the file, in which a module lies."""
    return "torch" if module in AT_THE_DOOR else module.partition(".")[0]


def assert_none(broken: list[Import]) -> None:
    assert not broken, "\n".join(map(str, broken))


@cache
def permitted() -> dict[str, set[str]]:
    """By room, the rooms that it may import, as the page has them."""
    rows = ROOM.findall(PAGE.read_text())
    return {name: set(re.findall(r"`([\w.]+)`", others)) for name, others in rows}


def test_there_is_something_to_read() -> None:
    assert len(MODULES) > 10
    assert {"errors", "jobs.launcher"} <= {i.target for i in OURS if i.module == "jobs.spawn"}
    assert "torch" in {i.target for i in IMPORTS if under(i.module, "torch")}


def test_every_room_is_on_the_page() -> None:
    rooms = {storey(module) for module in MODULES} - {"", "__main__", "rank", "watch"}
    assert {storey(name) for name in permitted()} == rooms
    assert set(permitted()) <= {room(module) for module in MODULES}


def test_rooms_import_what_the_page_says_and_nothing_else() -> None:
    found: dict[str, set[str]] = {name: set() for name in permitted()}
    for i in OURS:
        mine, theirs = room(i.module), room(i.target)
        if mine in found and theirs not in (mine, ""):
            found[mine].add(theirs)
    assert found == permitted()


def test_there_is_no_circle() -> None:
    """Neither among modules, lazy imports included, nor among rooms, nor among what lies directly in mpicoll/."""
    for name in (str, room, storey):
        edges: dict[str, set[str]] = {}
        for i in OURS:
            if i.module and i.target and name(i.module) != name(i.target):
                edges.setdefault(name(i.module), set()).add(name(i.target))
        left = set(edges)
        while free := {each for each in left if not edges[each] & left}:
            left -= free
        assert not left, f"a circle is among {sorted(left)}"


@pytest.mark.parametrize(("library", "permits"), [("mpi4py", MPI4PY), ("torch", TORCH)])
def test_who_knows_a_library(library: str, permits: tuple[str, ...]) -> None:
    held = [i for i in IMPORTS if not i.own and under(i.target, library)]
    assert_none([i for i in held if not under(i.module, *permits)])
    unused = [each for each in permits if not any(under(i.module, each) for i in held)]
    assert not unused, f"{unused} import no {library}, and need no permit"


def test_private_names_of_torch_have_one_place() -> None:
    """``mpicoll/torch/private.py`` says for each why there is no public one. What lies below the room for torch cannot
    ask it."""
    private = re.compile(r"\btorch\.(?:\w+\.)*_[a-z_]\w*|\bprofiler\._|\bimport _C\b|\btorch\._C\b", re.IGNORECASE)
    of_profiler = "profiler._is_profiler_enabled"
    found = {
        (name, each)
        for name, path in MODULES.items()
        for each in private.findall(path.read_text().replace(of_profiler, ""))
        if name != "torch.private" and "__" not in each
    }
    assert found == {
        *((below, "torch.cuda._is_in_bad_fork") for below in ("arrays.buffers", "devices.cuda")),
        ("watching.torch", "torch.ops._c10d_functional"),
    }


def test_what_runs_without_mpi_and_torch() -> None:
    pure = ("errors", "arrays", "algorithms", "analysis", "calls", "slurm", "units")
    assert_none([i for i in IMPORTS if under(i.module, *pure) and under(i.target, "mpi4py", "torch")])


def test_supervision_knows_neither_mpi_nor_arrays() -> None:
    """It can watch over any program that says how its ranks meet."""
    unknown = ("mpi4py", "numpy", "torch", "arrays", "calls", "communicator", "devices", "fabrics")
    assert_none([i for i in IMPORTS if under(i.module, "supervise") and under(i.target, *unknown)])


def test_arithmetic_is_in_kernels_alone() -> None:
    """No other module that moves data calls a function of NumPy's that computes."""
    computes = re.compile(r"\bnp\.(add|subtract|multiply|divide|minimum|maximum|sum|prod|logical_\w+|bitwise_\w+)\(")
    rooms = ("arrays", "calls", "fabrics", "communicator", "torch")
    found = [m for m, file in MODULES.items() if under(m, *rooms) and computes.search(file.read_text())]
    assert found == ["arrays.kernels"]


def test_one_file_says_what_is_done_when_a_process_ends() -> None:
    """Everything else hands its functions to ``launch/lifecycle.py``, which has them in order."""
    registers = re.compile(
        r"\batexit\.(un)?register\(|\bimport atexit\b|\bregister_at_fork\(|\bexcepthook\s*=[^=]|\bos\._exit\s*=[^=]"
        r"|\bCreate_keyval\("
    )
    found = [m for m, file in MODULES.items() if registers.search(file.read_text())]
    assert found == ["launch.lifecycle"]


def test_what_is_done_at_the_end_is_in_the_order_of_the_list() -> None:
    """However it was handed in, and though one function fails."""
    program = """if True:
        from mpicoll.launch.lifecycle import Hook, add
        for hook in reversed(Hook):
            add(hook, lambda name=hook.name: print(name))
        add(Hook.COMPLETE_COLLECTIVES, lambda: 1 / 0)
        print(*[hook.name for hook in Hook if "END" in hook.event.name])
        """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    in_order, *found = done.stdout.splitlines()
    assert found == in_order.split()
    assert "ZeroDivisionError" in done.stderr


def test_the_verifier_needs_only_meanings() -> None:
    verifier = ("analysis.proof.verify", "analysis.proof.rules")
    allowed = ("algorithms.steps", "algorithms.collectives", "errors", *verifier)
    assert_none([i for i in OURS if under(i.module, *verifier) and not under(i.target, *allowed)])


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import mpicoll", ["numpy", "torch", "mpi4py", "asyncio", "importlib.metadata"]),
        ("from mpicoll import *", ["torch", "mpi4py.MPI", "asyncio", "importlib.metadata"]),
        ("from mpicoll.cli import parser; parser()", ["numpy", "torch", "mpi4py", "asyncio"]),
        (
            "import contextlib, io; from mpicoll.cli import main\n"
            "with contextlib.redirect_stdout(io.StringIO()): main(['run', '--dry-run', '-n', '1', '-c', '1'])\n",
            ["mpicoll.cli.bench", "mpicoll.slurm"],
        ),
        ("import mpicoll.doctor", ["torch", "mpi4py.MPI"]),  # MPI may end the process that starts it
        ("import mpicoll.torch", ["mpi4py.MPI"]),
    ],
)
def test_importing_loads_little_and_initialises_nothing(statement: str, absent: list[str]) -> None:
    if "mpicoll.torch" in statement:
        pytest.importorskip("torch")
    code = f"import sys; {statement}\nprint([name for name in {absent} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("[]\n", "")
