"""The extension of IPython that ``%load_ext mpicoll`` loads: ``%%ranks`` runs a cell in several ranks, and ``%bench``
measures and shows the picture."""

from __future__ import annotations

import ast
import shlex
import subprocess
import sys
import threading
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO, TextIOBase
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import format_exception_only
from typing import Any, TextIO

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, output_can_be_silenced
from IPython.display import Image

from mpicoll.communicator.communicator import Communicator
from mpicoll.communicator.threaded import threads
from mpicoll.supervise.sites import is_program


def load_ipython_extension(shell: InteractiveShell) -> None:
    """IPython calls this."""
    shell.register_magics(_Magics)


@magics_class
class _Magics(Magics):
    shell: InteractiveShell

    @cell_magic
    @output_can_be_silenced
    def ranks(self, line: str, cell: str) -> list[Any] | None:
        """Run the cell once in each of so many ranks, which are threads: %%ranks 4

        ``comm`` is the communicator, and ``rank`` the number of the rank. The cell sees the notebook's variables. What
        it assigns belongs to each rank alone, and ends with the cell. What the ranks print is shown in the order of the
        ranks. If the cell ends with an expression, its values are the result, as a list: ``_`` has it in the next cell.
        """
        if not line.strip().isdecimal() or int(line) < 1:
            raise UsageError(f"%%ranks: expected a number of ranks, at least 1, as in %%ranks 4; given {line!r}")
        text = self.shell.transform_cell(cell)
        number = len(self.shell.user_ns["In"]) - 1
        name = self.shell.compile.cache(f"%%ranks {line}\n{text}", number)  # the lines that a traceback shows
        try:
            tree = ast.parse(f"\n{text}", name)
        except SyntaxError as e:
            e.filename = f"Cell In[{number}]"
            raise UsageError(f"%%ranks:\n{''.join(format_exception_only(e))}") from None
        value: ast.expr = ast.Constant(None)
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr):
            value = last.value
            tree.body.pop()
        body = compile(tree, name, "exec")
        result = compile(ast.fix_missing_locations(ast.Expression(value)), name, "eval")
        printed = [StringIO() for _ in range(int(line))]
        here = threading.local()

        def run(comm: Communicator) -> Any:
            here.printed = printed[comm.rank]
            variables = {**self.shell.user_ns, "comm": comm, "rank": comm.rank}
            exec(body, variables)
            return eval(result, variables)

        try:
            out, err = _Apart(here, sys.stdout), _Apart(here, sys.stderr)
            with threads(len(printed)) as ranks, redirect_stdout(out), redirect_stderr(err):
                results = ranks.run(run)
        except Exception as e:
            self._show_program_alone(e)
            raise
        finally:
            for rank, its in enumerate(printed):
                for each in its.getvalue().splitlines():
                    print(f"rank {rank}: {each}")
        return None if all(each is None for each in results) else results

    def _show_program_alone(self, e: Exception) -> None:
        """Let IPython show the frames of the cell, and not those through which it came to be run."""
        tb = e.__traceback__
        while tb is not None and tb.tb_next is not None and not is_program(tb.tb_frame.f_code.co_filename):
            tb = tb.tb_next
        show = self.shell.InteractiveTB.structured_traceback
        e._render_traceback_ = lambda: show(type(e), e, tb, tb_offset=0)  # type: ignore[attr-defined]

    @line_magic
    def bench(self, line: str) -> Image | None:
        """Run ``mpicoll bench`` with these arguments, and show the picture of the times: %bench allreduce -n 2"""
        with TemporaryDirectory() as folder:
            picture = Path(folder, "bench.png")
            command = [sys.executable, "-m", "mpicoll", "bench", *shlex.split(line), "--plot", str(picture)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
                assert process.stdout is not None
                for text in process.stdout:
                    if folder not in text:  # the picture is in the notebook
                        print(text, end="")
            if process.returncode:
                raise UsageError(f"mpicoll bench has ended with the exit code {process.returncode}")
            return Image(picture.read_bytes(), width=740)


class _Apart(TextIOBase):
    """Keeps what a rank's thread prints. What other threads print goes where it went before."""

    def __init__(self, here: threading.local, before: TextIO) -> None:
        self._here, self._before = here, before

    def write(self, text: str) -> int:
        to: TextIO = getattr(self._here, "printed", self._before)
        return to.write(text)
