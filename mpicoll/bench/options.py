"""The options of ``mpicoll bench``, read and checked before anything is launched."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from mpicoll.algorithms.collectives import COLLECTIVES, canonical
from mpicoll.arrays.dtypes import DTYPES, OPS, Dtype, reduction
from mpicoll.bench.backends import BACKENDS
from mpicoll.bench.report.style import check_drawable
from mpicoll.calls import select
from mpicoll.calls.choice import DEVICE, IPC, STAGED
from mpicoll.errors import ArgumentError, DtypeError, misspelt
from mpicoll.units import nbytes, size_text

DEVICES = ("cpu", "cuda")


def bad(option: str, expected: str, given: object) -> ArgumentError:
    return ArgumentError("bench", option, expected, str(given))


@dataclass(frozen=True)
class Options:
    """A benchmark's settings. Sizes are bytes. ``seconds`` is how long each size of each collective is measured.

    If ``backends`` is empty, the ranks take what their machine has. Each of ``algorithms`` is a line of the table; if
    there are none, mpicoll has one line and chooses the algorithm itself. ``wide`` prints the columns of nccl-tests.
    """

    collectives: tuple[str, ...]
    ranks: int
    backends: tuple[str, ...]
    low: int
    high: int
    factor: int
    dtype: Dtype
    op: str
    root: int
    device: str
    algorithms: tuple[str, ...]
    seconds: float
    json: Path | None = None
    csv: Path | None = None
    plot: Path | None = None
    wide: bool = False

    @property
    def sizes(self) -> list[int]:
        found = [self.low]
        while found[-1] * self.factor <= self.high:
            found.append(found[-1] * self.factor)
        return found

    def command(self) -> str:
        """The command that measures the same. It names no output files, because paths belong to this machine."""
        arguments = ["mpicoll bench", ",".join(self.collectives), f"-n {self.ranks}"]
        if self.backends:
            arguments.append("--backends " + ",".join(self.backends))
        arguments.append(f"--min {size_text(self.low)} --max {size_text(self.high)} --factor {self.factor}")
        arguments.append(f"--dtype {self.dtype} --op {self.op} --root {self.root} --device {self.device}")
        if self.algorithms:
            arguments.append("--algorithms " + ",".join(self.algorithms))
        return " ".join([*arguments, f"--seconds {self.seconds:g}"])


def read(given: Mapping[str, str | None]) -> Options:
    """The options from what was typed, by their names without dashes. Raises ArgumentError, which names the option."""

    def text(name: str) -> str:
        return given[name] or ""

    ranks = _number(text("n"), "-n", 1, 1 << 20, "a positive number of ranks")
    dtype = DTYPES[_names(text("dtype"), "--dtype", "dtype", tuple(DTYPES))[0]]
    low, high = _size(text("min"), "--min", dtype), _size(text("max"), "--max", dtype)
    if low > high:
        raise bad("--min", f"no more than --max ({size_text(high)})", text("min"))
    collectives = _collectives(text("collective"))
    device = _names(text("device"), "--device", "device", DEVICES)[0]
    options = Options(
        collectives=collectives,
        ranks=ranks,
        backends=_names(text("backends"), "--backends", "backend", tuple(BACKENDS)) if given["backends"] else (),
        low=low,
        high=high,
        factor=_number(text("factor"), "--factor", 2, 1 << 40, "a whole number from 2 on"),
        dtype=dtype,
        op=_op(text("op"), dtype, collectives),
        root=_number(text("root"), "--root", 0, ranks - 1, f"a rank below {ranks}"),
        device=device,
        algorithms=_algorithms(given["algorithms"], collectives, device),
        seconds=_number(text("seconds"), "--seconds", 1e-3, 3600, "seconds from 0.001 to 3600", float),
        json=output("bench", "--json", given["json"]),
        csv=output("bench", "--csv", given["csv"]),
        plot=output("bench", "--plot", given["plot"]),
        wide=given["wide"] is not None,
    )
    if options.algorithms and options.backends and "mpicoll" not in options.backends:
        raise bad("--algorithms", "mpicoll among --backends", text("backends"))
    if options.plot:
        check_drawable("bench", options.plot)
    check_apart("bench", json=options.json, csv=options.csv, plot=options.plot)
    return options


def _size(text: str, option: str, dtype: Dtype) -> int:
    """Bytes, from a number with or without a binary unit, as ``64M``."""
    n = nbytes(text)
    if n is None:
        raise bad(option, "a positive number of bytes, with K, M or G if need be (as 64M)", repr(text))
    if n % dtype.itemsize:
        raise bad(option, f"a multiple of the {dtype.itemsize} bytes of {dtype}", repr(text))
    return n


def _names(text: str, option: str, what: str, known: Sequence[str]) -> tuple[str, ...]:
    """Comma-separated names. Each must be one of ``known``, and none may come twice."""
    names = tuple(n.strip() for n in text.split(","))
    for i, name in enumerate(names):
        if name not in known:
            raise bad(option, f"one of {', '.join(known)}", misspelt(name, known))
        if name in names[:i]:
            raise bad(option, f"each {what} once", repr(text))
    return names


def _collectives(text: str) -> tuple[str, ...]:
    if text == "all":
        return tuple(COLLECTIVES)
    names = (n.strip() for n in text.split(","))
    return _names(",".join(canonical(n) or n for n in names), "collective", "collective", (*COLLECTIVES, "all"))


def _op(text: str, dtype: Dtype, collectives: Sequence[str]) -> str:
    op = _names(text, "--op", "operation", [o for o in OPS if o != "premul_sum"])[0]
    for name in collectives:
        if COLLECTIVES[name].reduces:
            try:
                reduction(op, dtype, name)
            except DtypeError as e:
                raise bad("--op", e.expected, e.given) from None
    return op


def _algorithms(text: str | None, collectives: Sequence[str], device: str) -> tuple[str, ...]:
    """Names that at least one of the collectives knows. On a GPU, routes are among them, as ``staged:ring``."""
    if text is None:
        return ()
    known = dict.fromkeys(a for c in collectives for a in select.names(c))
    if device != "cpu":
        asked = (name.strip() for name in text.split(","))
        by_route = [each for each in asked if (at := each.partition(":"))[0] in (STAGED, DEVICE) and at[2] in known]
        known |= dict.fromkeys((STAGED, DEVICE, IPC, *by_route))
    return _names(text, "--algorithms", "algorithm", tuple(known))


def _number(text: str, option: str, low: float, high: float, what: str, kind: Callable[[str], Any] = int) -> Any:
    try:
        n = kind(text)
    except ValueError:
        n = None
    if n is None or not low <= n <= high:
        raise bad(option, what, repr(text))
    return n


def check_apart(operation: str, **outputs: Path | None) -> None:
    """Raise ArgumentError if two options name one file: what one of them writes would be lost."""
    by_path: dict[Path, str] = {}
    for option, path in outputs.items():
        if path is not None and (other := by_path.setdefault(path.resolve(), option)) != option:
            raise ArgumentError(operation, f"--{option}", f"another file than --{other}", repr(str(path)))


def output(operation: str, option: str, text: str | None) -> Path | None:
    """A file to write, in a directory that exists and is writable."""
    if text is None:
        return None
    if text == "-":
        raise ArgumentError(operation, option, "a file, as /dev/stdout", repr(text))
    path = Path(text)
    try:
        if path.is_dir():
            raise IsADirectoryError
        if path.exists():
            os.close(os.open(path, os.O_WRONLY))
        else:
            TemporaryFile(dir=path.parent).close()
    except OSError:
        expected = "a file in a directory that exists and is writable"
        raise ArgumentError(operation, option, expected, repr(text)) from None
    return path
