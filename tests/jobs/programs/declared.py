"""How a fault is declared: a function that goes wrong, and what must be said of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import mpicoll

__all__ = ["HERE", "Fault", "Faults"]

Program: TypeAlias = "Callable[[mpicoll.Communicator], None]"
HERE = "<here>"
"""In what must be said: the place of the function's line that ends with ``MARK``."""
MARK = "# here"


@dataclass(frozen=True)
class Fault:
    """``program`` goes wrong, ``pieces`` are those of the report. ``seconds`` is the timeout of calls."""

    program: Program
    pieces: tuple[str, ...]
    seconds: float
    any_mpi: bool
    """Whether it is the same on all MPIs."""

    def said(self) -> list[str]:
        """What must be said of it."""
        return [piece.replace(HERE, self._place()) if HERE in piece else piece for piece in self.pieces]

    def _place(self) -> str:
        lines, first = inspect.getsourcelines(self.program)
        [marked] = [number for number, line in enumerate(lines, first) if line.rstrip().endswith(MARK)]
        code = self.program.__code__
        return f"{Path(code.co_filename).name}:{marked} in {code.co_name}"


class Faults(dict[str, Fault]):
    """Faults by name."""

    def declare(
        self, name: str, *said: str, seconds: float = 3.0, any_mpi: bool = True
    ) -> Callable[[Program], Program]:
        """A decorator of the function that goes wrong."""

        def declared(program: Program) -> Program:
            assert name not in self, name
            self[name] = Fault(program, said, seconds, any_mpi)
            return program

        return declared
