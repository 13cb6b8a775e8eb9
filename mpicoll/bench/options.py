"""The options of ``mpicoll bench``, read and checked before anything is launched."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpicoll.algorithms.collectives import COLLECTIVES, Collective, canonical
from mpicoll.errors import ArgumentError, DtypeError
from mpicoll.units import nbytes, size_text

if TYPE_CHECKING:
    from mpicoll.arrays.dtypes import Dtype

BACKENDS = {
    "mpicoll": "ArrayLevel", "mpicoll:shared": "open_shared", "mpi": "Bare", "mpicoll.torch": "open_mpicoll_torch",
    "torch": "open_torch", "gloo": "open_gloo", "nccl": "open_nccl",
}  # fmt: skip
"""By the name that ``--backends`` takes: what opens the backend in ``backends``, which loads MPI."""
DEVICES = ("cpu", "cuda")
OUTPUTS = ("json", "plot")
PICTURES = (".png", ".pdf", ".svg")


def bad(option: str, expected: str, given: object) -> ArgumentError:
    return ArgumentError("bench", option, expected, str(given))


OPTIONS: tuple[tuple[str, str, str | None], ...] = (
    (
        "--backends NAMES",
        f"some of {', '.join(BACKENDS)}; ratios are to the first (mpicoll,mpi, and gloo if torch is installed)",
        None,
    ),
    ("-b --min BYTES", "the smallest size (8); K, M and G are binary", "8"),
    ("-e --max BYTES", "the largest size (64M)", "64M"),
    ("-f --factor N", "the factor from one size to the next (2)", "2"),
    ("-d --dtype NAME", "the dtype, as torch names it (float32)", "float32"),
    ("-o --op NAME", "the operation of reductions (sum)", "sum"),
    ("-r --root RANK", "the root of bcast, reduce, gather and scatter (0)", "0"),
    ("--device NAME", "where the buffers are: cpu or cuda (cpu)", "cpu"),
    ("--algorithms NAMES", "algorithms of mpicoll to measure, each on its own line", None),
    ("--seconds S", "time to measure one size of one collective (1.5)", "1.5"),
    ("--json FILE", "write everything that was measured to this file", None),
    ("--plot FILE", "draw latency and bandwidth; the file's name chooses PNG, PDF or SVG", None),
)
"""How the command line's options are typed, what they are, and their defaults."""


@dataclass(frozen=True)
class Options:
    """A benchmark's settings, which are the options of the command line. Sizes are bytes. If ``backends`` is empty, the
    ranks take what their machine has. Each of ``algorithms`` is a line of the table; if there are none, mpicoll has one
    line and chooses the algorithm itself."""

    collectives: tuple[str, ...]
    ranks: int
    backends: tuple[str, ...]
    min: int
    max: int
    factor: int
    dtype: Dtype
    op: str
    root: int
    device: str
    algorithms: tuple[str, ...]
    seconds: float
    json: Path | None
    plot: Path | None

    @property
    def sizes(self) -> list[int]:
        found = [self.min]
        while found[-1] * self.factor <= self.max:
            found.append(found[-1] * self.factor)
        return found

    def sizes_of(self, collective: Collective) -> list[int]:
        """Bytes of the largest buffer."""
        return self.sizes if collective.moves else [0]

    def measures(self) -> dict[str, Any]:
        """The fields that say what is measured, and not where it is shown: paths belong to this machine."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in OUTPUTS}

    def command(self) -> str:
        given = self.measures() | {"min": size_text(self.min), "max": size_text(self.max)}
        words = ["mpicoll bench", ",".join(given.pop("collectives")), f"-n {given.pop('ranks')}"]
        for name, value in given.items():
            if value != ():
                words.append(f"--{name} {','.join(value) if isinstance(value, tuple) else value}")
        return " ".join(words)


def read(given: Mapping[str, Any]) -> Options:
    """The options from what was typed, by their names without dashes. Raises ArgumentError, which names the option."""
    from mpicoll.arrays.dtypes import (  # this imports NumPy, which the command line can do without
        DTYPES,
        OPS,
        reduction,
    )

    typed = {name: text or "" for name, text in given.items()}

    def number(name: str, low: float, high: float, what: str, kind: Callable[[str], Any] = int) -> Any:
        with suppress(ValueError):
            if low <= (n := kind(typed[name])) <= high:
                return n
        raise bad(f"-{name}" if name == "n" else f"--{name}", what, repr(typed[name]))

    def one(name: str, known: Iterable[str]) -> str:
        return _checked(typed[name].strip(), f"--{name}", [*known])

    ranks = number("n", 1, 1 << 20, "a positive number of ranks")
    dtype = DTYPES[one("dtype", DTYPES)]
    low, high = _size(typed["min"], "--min", dtype), _size(typed["max"], "--max", dtype)
    if low > high:
        raise bad("--min", f"no more than --max ({size_text(high)})", typed["min"])
    canonic = ",".join(canonical(each.strip()) or each for each in typed["collective"].split(","))
    collectives = _names(canonic, "collective", "collective", (*COLLECTIVES, "all"))
    if "all" in collectives:
        collectives = tuple(COLLECTIVES)
    op = one("op", (each for each in OPS if each != "premul_sum"))
    try:
        for name in (name for name in collectives if COLLECTIVES[name].reduces):
            reduction(op, dtype, name)
    except DtypeError as e:
        raise bad("--op", e.expected, e.given) from None
    device = one("device", DEVICES)
    backends = _names(typed["backends"], "--backends", "backend", BACKENDS) if typed["backends"] else ()
    options = Options(
        collectives=collectives, ranks=ranks, backends=backends, min=low, max=high, dtype=dtype, device=device,
        factor=number("factor", 2, 1 << 40, "a whole number from 2 on"),
        op=op,
        root=number("root", 0, ranks - 1, f"a rank below {ranks}"),
        algorithms=() if given["algorithms"] is None else _algorithms(typed["algorithms"], collectives, device),
        seconds=number("seconds", 1e-3, 3600, "seconds from 0.001 to 3600", float),
        **outputs("bench", **{name: given[name] for name in OUTPUTS}),
    )  # fmt: skip
    if options.algorithms and options.backends and "mpicoll" not in options.backends:
        raise bad("--algorithms", "mpicoll among --backends", typed["backends"])
    return options


def _size(text: str, option: str, dtype: Dtype) -> int:
    """Bytes, from a number with or without a binary unit, as ``64M``."""
    n = nbytes(text)
    if n is None:
        raise bad(option, "a positive number of bytes, with K, M or G if need be (as 64M)", repr(text))
    if n % dtype.itemsize:
        raise bad(option, f"a multiple of the {dtype.itemsize} bytes of {dtype}", repr(text))
    return n


def _names(text: str, option: str, what: str, known: Iterable[str]) -> tuple[str, ...]:
    """Comma-separated names. Each must be one of ``known``, and none may come twice."""
    names = tuple(_checked(name.strip(), option, [*known]) for name in text.split(","))
    if len({*names}) < len(names):
        raise bad(option, f"each {what} once", repr(text))
    return names


def _checked(name: str, option: str, known: Sequence[str]) -> str:
    if name not in known:
        raise bad(option, f"one of {', '.join(known)}", repr(name))
    return name


def _algorithms(text: str, collectives: Sequence[str], device: str) -> tuple[str, ...]:
    """Names that at least one of the collectives knows. On a GPU, routes are among them, as ``staged:ring``."""
    from mpicoll.calls import choose
    from mpicoll.calls.choose import DEVICE, IPC, STAGED

    known = dict.fromkeys(a for c in collectives for a in choose.names(c))
    if device != "cpu":
        asked = (name.strip() for name in text.split(","))
        by_route = [each for each in asked if (at := each.partition(":"))[0] in (STAGED, DEVICE) and at[2] in known]
        known |= dict.fromkeys((STAGED, DEVICE, IPC, *by_route))
    return _names(text, "--algorithms", "algorithm", known)


def outputs(operation: str, **typed: str | None) -> dict[str, Path | None]:
    """The files that options of these names give. The file of ``plot`` must be one that Matplotlib can draw."""
    files = {name: None if text is None else writable(operation, f"--{name}", text) for name, text in typed.items()}
    plot = files.get("plot")
    if plot and find_spec("matplotlib") is None:
        expected = "matplotlib to be installed (pip install matplotlib)"
        raise ArgumentError(operation, "--plot", expected, "an environment without it")
    if plot and plot.suffix.lower() not in PICTURES:
        raise ArgumentError(operation, "--plot", f"a name that ends in {', '.join(PICTURES)}", repr(str(plot)))
    paths = [path.resolve() for path in files.values() if path]
    if len({*paths}) < len(paths):
        raise ArgumentError(operation, f"--{', --'.join(files)}", "different files", ", ".join(map(str, paths)))
    return files


def writable(operation: str, option: str, text: str) -> Path:
    """The file that an option gives. Raises ArgumentError if it cannot be written."""
    if text == "-":
        raise ArgumentError(operation, option, "a file, as /dev/stdout", repr(text))
    path = Path(text)
    there = text if path.exists() else f"{path.parent}/."  # a parent that is a file has none
    if path.is_dir() or not os.access(there, os.W_OK):
        raise ArgumentError(operation, option, "a file in a directory that exists and is writable", repr(text))
    return path
