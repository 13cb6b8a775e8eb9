"""What README and docs/ show is run as it stands, page by page.

The language of a block says what becomes of it:

- ``python`` is a program. All ranks of a launch run it, and a block without a language that follows shows what they
  print together, in any order of the lines;
- ``sh`` are commands, ``console`` are commands after ``$`` with what they print;
- any other is text.

An HTML comment in the line before says what is different about a block, here with the reason or the value:

- ``not run: needs a cluster``;
- ``ranks: 4`` of a program, in the place of 2; ``ranks: none`` runs it without a launcher;
- ``file: star.py`` saves the block under this name, for the commands that follow;
- ``part of: examples/own_reduce.py`` looks for the block in this file;
- ``notebook`` is a cell of a notebook, which test_notebook.py runs;
- ``figures vary`` compares what is printed with its numbers left out."""

from __future__ import annotations

import re
import shlex
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.jobs.jobs import NEEDS_TORCH, REPOSITORY, Done, done, python, run

pytestmark = [NEEDS_TORCH, pytest.mark.any_mpi]

PAGES = ["README.md", *sorted(str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?:^<!-- (.*?) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARKS = {"not run", "ranks", "file", "part of", "figures vary", "notebook"}
COMMAND = re.compile(r"^(\$|mpicoll|python3?|pip|make|sbatch|srun|mpirun) ", re.MULTILINE)
NUMBER = re.compile(r"[\d.,]*\d\*?")
LATE = re.compile(r"^mpicoll: a call has been under way for long.*\n(?: +rank .*\n)*", re.MULTILINE)
"""What mpicoll says on a slow machine, too."""
SHORTER = (
    (re.compile(r"\bbench [^#\n]*"), "--max 1K --seconds 0.01"),
    (re.compile(r"\bsimulate allreduce -n 4096 [^#\n]*"), "--sizes 512K:1M --algorithms ring,binomial_tree"),
)
"""Commands that would take minutes, and the options that are added to them."""


@dataclass(frozen=True)
class Block:
    line: int
    marks: dict[str, str]
    language: str
    text: str

    def program(self) -> bool:
        return self.language == "python" and not self.marks.keys() & {"not run", "file", "part of", "notebook"}


def blocks(page: str) -> list[Block]:
    text = (REPOSITORY / page).read_text()
    found = []
    for match in BLOCK.finditer(text):
        marks = dict(part.partition(": ")[::2] for part in (match[1] or "").split("; ") if part)
        found.append(Block(text.count("\n", 0, match.start()) + 1, marks, match[2], match[3]))
    return found


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """Each command of a block, and what it is said to print; the commands of ``sh`` all at once."""
    if block.language == "sh":
        yield block.text, ""
    elif block.language == "console":
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def said(text: str, marks: dict[str, str]) -> list[str]:
    """The lines of a text, sorted, and with the number of blanks between words left out."""
    text = NUMBER.sub("0", text) if "figures vary" in marks else text
    return sorted(" ".join(line.split()) for line in text.splitlines() if line.strip())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as a reader's checkout is, for what the blocks read and write."""
    for name in ("benchmarks", "examples", "slurm"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    (tmp_path / "docs/explanation").mkdir(parents=True)
    return tmp_path


def in_folder(folder: Path, command: str) -> Done:
    path = f"{sysconfig.get_path('scripts')}:$PATH"
    return done("bash", "-c", f"cd {shlex.quote(str(folder))} && export PATH={path} && set -e\n{command}")


def run_programs(ranks: str, programs: list[tuple[Block, Block | None]], folder: Path) -> None:
    """Run the programs of a page in one launch, and compare what they print to the text after each."""
    files = [folder / f"line_{block.line}.py" for block, _ in programs]
    for file, (block, _) in zip(files, programs, strict=True):
        file.write_text(block.text)
    argv = [str(Path(__file__).with_name("one_after_another.py")), str(folder), *map(str, files)]
    (python(*argv) if ranks == "none" else run(int(ranks), *argv)).good()
    for file, (block, output) in zip(files, programs, strict=True):
        if output is not None:
            compare("".join(path.read_text() for path in folder.glob(f"{file.name}.*")), output.text, block)


def run_commands(block: Block, folder: Path) -> None:
    for command, output in commands(block):
        for pattern, options in SHORTER:
            command = pattern.sub(rf"\g<0> {options} ", command)
        result = in_folder(folder, command)
        assert result.code == 0, f"line {block.line}: {command}\n{result.output}"
        if output:
            compare(LATE.sub("", result.output), output, block)


def compare(printed: str, expected: str, block: Block) -> None:
    assert said(printed, block.marks) == said(expected, block.marks), f"printed by line {block.line}"


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows(page: str, folder: Path) -> None:
    found = blocks(page)
    launches: dict[str, list[tuple[Block, Block | None]]] = {}
    for block, after in zip(found, [*found[1:], None], strict=False):
        assert block.marks.keys() <= MARKS, f"line {block.line}: expected {MARKS}; given {set(block.marks)}"
        if block.program():
            output = after if after is not None and not after.language else None
            launches.setdefault(block.marks.get("ranks", "2"), []).append((block, output))
    for ranks, programs in launches.items():
        run_programs(ranks, programs, folder)
    for block in found:
        if "file" in block.marks:
            (folder / block.marks["file"]).write_text(block.text)
        elif "part of" in block.marks:
            assert block.text in (REPOSITORY / block.marks["part of"]).read_text(), f"line {block.line}"
        elif "not run" not in block.marks:
            run_commands(block, folder)


def test_no_command_hides_in_a_text() -> None:
    """A block of commands says that it is one, and each block has its fence at the beginning of a line."""
    for page in PAGES:
        assert (REPOSITORY / page).read_text().count("```") == 2 * len(blocks(page)), page
        hidden = [block.line for block in blocks(page) if not block.language and COMMAND.search(block.text)]
        assert not hidden, f"{page}: lines {hidden} hold commands: call them sh or console"


WATCH = "mpicoll run --watch -n"
TORCHRUN = "torch.distributed.run --standalone --nproc-per-node 2"


@pytest.mark.parametrize(
    ("page", "file", "started"),
    [
        ("README.md", "wrong.py", f"{WATCH} 3"),
        ("docs/how-to/my_mpi4py_program_hangs.md", "halo.py", f"{WATCH} 2"),
        ("docs/how-to/my_torchrun_job_hangs.md", "train.py", TORCHRUN),
    ],
)
def test_what_a_page_says_of_a_mistake(page: str, file: str, started: str, tmp_path: Path) -> None:
    found = blocks(page)
    (at,) = (i for i, block in enumerate(found) if block.marks.get("file") == file)
    table = next(block for block in found[at:] if block.language == "text")
    (tmp_path / file).write_text(found[at].text)
    env = {"MPICOLL_WATCH": "1", "PYTHONPATH": str(REPOSITORY)}
    # A rank may begin to wait at that moment.
    lines = [re.split(r" for \d|(?<=: waiting)", line)[0] for line in table.text.splitlines()]
    python("-m", *started.split(), str(tmp_path / file), env=env).bad(*lines, code=1)
