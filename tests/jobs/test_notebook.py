"""Notebooks: the example is the tutorial's page, and runs as the page says; and what a cell may do wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.jobs.jobs import DEADLINE, REPOSITORY
from tests.jobs.test_code_blocks import blocks, said

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
Config = pytest.importorskip("traitlets.config").Config
pytest.importorskip("matplotlib")

pytestmark = [pytest.mark.any_mpi, pytest.mark.xdist_group("notebook")]

EXAMPLE = nbformat.read(REPOSITORY / "examples/notebook.ipynb", as_version=4)
PAGE = blocks("docs/tutorial/notebook.md")
COLOURS = re.compile(r"\x1b\[[\d;]*m")

Run = Callable[[Any], list[Any]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a cell in a new notebook, and gives its outputs."""
    folder = tmp_path_factory.mktemp("notebook")
    # By sockets in a folder: between the choice of a port and its use, another process may take it.
    config = Config(KernelManager={"transport": "ipc", "ip": str(folder / "kernel")})
    metadata = {"metadata": {"path": str(folder)}}
    client = nbclient.NotebookClient(
        nbformat.v4.new_notebook(), timeout=int(DEADLINE), startup_timeout=int(DEADLINE), iopub_timeout=int(DEADLINE),
        resources=metadata, allow_errors=True, config=config,
    )  # fmt: skip
    with client.setup_kernel(env={**os.environ, "PYTHONPATH": str(REPOSITORY), "IPYTHONDIR": str(folder)}):

        def outputs(cell: Any) -> list[Any]:
            client.nb.cells.append(cell)
            client.execute_cell(cell, len(client.nb.cells) - 1)
            return list(cell.outputs)

        yield outputs


def text(outputs: list[Any]) -> str:
    """What is printed, errors, and results that are text."""
    found = []
    for each in outputs:
        match each.output_type:
            case "stream":
                found.append(each.text)
            case "error":
                found.append(COLOURS.sub("", "\n".join(each.traceback)) + "\n")
            case _ if {*each.data} == {"text/plain"}:
                found.append(each.data["text/plain"] + "\n")
    return "".join(found)


def test_the_example_runs_as_the_page_says(run: Run) -> None:
    cells = [cell for cell in EXAMPLE.cells if cell.cell_type == "code"]
    on_page = [(block, after) for block, after in pairwise([*PAGE, PAGE[-1]]) if "notebook" in block.marks]
    assert [cell.source for cell in cells] == [block.text.rstrip("\n") for block, _ in on_page]
    drawn, pictures = [], 0
    for cell, (block, after) in zip(cells, on_page, strict=True):
        outputs = run(nbformat.v4.new_code_cell(cell.source))
        fails = "raises-exception" in cell.metadata.get("tags", ())
        assert any(each.output_type == "error" for each in outputs) == fails, text(outputs)
        if not after.language:
            assert said(text(outputs), {}) == said(after.text, {}), f"shown by line {block.line}"
        data = [each.data for each in outputs if each.output_type == "execute_result"]
        drawn += [each for each in data if "text/html" in each]
        pictures += sum("image/png" in each for each in data)
    assert pictures == 1
    assert all({"text/html", "image/svg+xml"} <= {*each} for each in drawn)
    assert ["wrong in place" in each["text/plain"] for each in drawn] == [False, True, False]


CELLS = {
    "a size that is none": ("%%ranks two\npass", "UsageError: %%ranks: expected a number of ranks, at least 1,"),
    "a syntax error": ("%%ranks 2\nif rank\n    pass", 'File "Cell In[N]", line 2\n    if rank\n'),
    "nothing to show": ("%%ranks 2\nmine = rank", ""),
    "a result that is not wanted": ("%%ranks 2\nrank;", ""),
    "variables of a cell": ("print('mine' in globals())", "False\n"),
    "a magic in it, and stderr": (
        "%%ranks 2\nimport sys\nname = !echo of the system\nprint(*name, file=sys.stderr)",
        "rank 0: of the system\nrank 1: of the system\n",
    ),
    "the line of a schedule that fails": (
        "def fails(at):\n    yield 1 / 0\nimport mpicoll\nmpicoll.draw('allreduce', fails)",
        "raises ZeroDivisionError: division by zero\n  at Cell In[N]:2: yield 1 / 0\n",
    ),
    "bench": ("%bench allreduce -n 0", "UsageError: mpicoll bench has ended with the exit code 2\n"),
}


@pytest.mark.parametrize("name", CELLS)
def test_cells(run: Run, name: str) -> None:
    run(nbformat.v4.new_code_cell("%load_ext mpicoll"))
    source, expected = CELLS[name]
    found = re.sub(r"In\[\d+\]", "In[N]", text(run(nbformat.v4.new_code_cell(source))))
    assert expected in found if expected else found == ""


@pytest.mark.parametrize(
    "line",
    [
        "mpicoll.draw('allreduce', 'nowhere')",
        "mpicoll.register(mpicoll.Algorithm('allreduce', 'ring', print))",
        "mpicoll.Communicator().allreduce([1])",
    ],
)
def test_an_error_shows_no_frames_of_mpicoll(run: Run, line: str) -> None:
    shown = text(run(nbformat.v4.new_code_cell(f"import mpicoll\n{line}")))
    assert f"----> 2 {line}\n\nArgumentError: " in shown
    assert "File" not in shown


def test_an_exception_of_the_program(run: Run) -> None:
    """The frames of the program alone, and what was printed before."""
    run(nbformat.v4.new_code_cell("%load_ext mpicoll"))
    source = "%%ranks 2\ndef halved(n):\n    return 1 / n\nprint('before')\nhalved(rank)"
    lines = text(run(nbformat.v4.new_code_cell(source))).splitlines()
    assert lines[:2] == ["rank 0: before", "rank 1: before"]
    assert [line for line in lines if "line" in line or "/" in line] == [
        *[line for line in lines if re.fullmatch(r"Cell In\[\d+\], line 5", line)],
        "      3     return 1 / n",
        *[line for line in lines if re.fullmatch(r"Cell In\[\d+\], line 3, in halved\(n\)", line)],
        "----> 3     return 1 / n",
    ]
    assert lines[-2:] == ["ZeroDivisionError: division by zero", "on rank 0 of 2"]
