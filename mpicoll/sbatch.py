"""Slurm job scripts: the templates of ``slurm/``, filled in, each made one file that needs no other beside it.

A template is read line by line. What may be set is a line of its own: ``#SBATCH --option=value`` or
``NAME=${NAME:-default}``. The comment behind it, or else the one above it and the lines that follow it, says why.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources

from mpicoll.errors import ArgumentError

__all__ = ["OPTIONS", "TEMPLATES", "Line", "Setting", "about", "script", "settings", "sites", "text"]

TEMPLATES = {
    "single-node": "single_node.sbatch",
    "multi-node": "multi_node.sbatch",
    "gpu-multi-node": "gpu_multi_node.sbatch",
    "compare": "mpi_vs_nccl.sbatch",
    "train": "ddp_train.sbatch",
    "scaling": "scaling_array.sbatch",
    "preemptible": "preemptible.sbatch",
    "apptainer": "apptainer.sbatch",
}


@dataclass(frozen=True)
class Option:
    """An option of sbatch: what its value looks like, as a regular expression and in words, and what it is."""

    pattern: str
    expected: str
    help: str


_COUNT = r"[1-9]\d*", "a number, at least 1"
_WORD = r"\S+", "one word"

OPTIONS = {
    "nodes": Option(*_COUNT, "nodes"),
    "ntasks-per-node": Option(*_COUNT, "ranks on each node"),
    "gpus-per-node": Option(r"([\w.-]+:)?[1-9]\d*", "a number, at least 1, or TYPE:NUMBER", "GPUs of each node"),
    "cpus-per-task": Option(*_COUNT, "cores of each rank"),
    "mem": Option(r"\d+[KMGT]?", "a number, with K, M, G or T", "memory of each node; 0 is all of it"),
    "time": Option(r"(\d+-)?\d+(:\d\d?){0,2}", "minutes, H:MM:SS or D-HH:MM:SS", "the job's limit"),
    "partition": Option(*_WORD, "the nodes' partition"),
    "account": Option(*_WORD, "whose share it is"),
    "qos": Option(*_WORD, "the quality of service"),
    "constraint": Option(*_WORD, "features that the nodes must have"),
    "reservation": Option(*_WORD, "the reservation to run in"),
    "job-name": Option(*_WORD, "the job's name"),
}
"""Those that people set; any other can be given to sbatch itself, beside the script."""

_OPTION = re.compile(r"#SBATCH\s+--(?P<name>[a-z-]+)(=(?P<value>\S+))?(?P<tail>\s+#.*)?")
_VARIABLE = re.compile(r"(?P<name>[A-Z_][A-Z_0-9]*)=\$\{(?P=name):-(?P<value>.*?)\}(?P<tail>\s+#.*)?")
_PRESET = re.compile(r"(?P<name>[A-Z_][A-Z_0-9]*)=(?P<value>\S*|'[^']*'|\"[^\"]*\")(?P<tail>\s+#.*)?")
_COMMENT = re.compile(r"#(?!!|SBATCH\b| shellcheck\b)\s*(?P<words>.*)")
_LINT = re.compile(r"\s*# shellcheck (shell|source)=.*")
_SOURCED = re.compile(r'source "[^"]*/(common\.sh|sites/\$SITE\.env)"')


@dataclass(frozen=True)
class Line:
    """A line of a script, and the file of ``slurm/`` that it comes from."""

    file: str
    text: str


@dataclass(frozen=True)
class Setting:
    """A value that the script sets, written as it stands there, and why."""

    file: str
    text: str
    why: tuple[str, ...]


def _read(file: str) -> list[str]:
    return resources.files("mpicoll").joinpath("slurm", file).read_text().splitlines()


def sites() -> list[str]:
    """The names of the site presets."""
    files = resources.files("mpicoll").joinpath("slurm", "sites").iterdir()
    return sorted(file.name.removesuffix(".env") for file in files if file.name.endswith(".env"))


def about(file: str) -> str:
    """What a file of ``slurm/`` is: its first comment."""
    return next(found["words"] for line in _read(file) if (found := _COMMENT.fullmatch(line)) and found["words"])


def script(template: str, site: str, options: Mapping[str, str], variables: Mapping[str, str]) -> list[Line]:
    """The template with what it sources in its place, and with these values in the place of its own.

    Raises ArgumentError for a value that its option cannot have, and for a variable that the template does not.
    """
    shebang, *lines = _composed(TEMPLATES[template], site)
    lines = _with_options(lines, _checked(template, lines, options))
    lines = _with_variables(template, lines, site, variables)
    given = [f"--{name}={value}" for name, value in options.items()]
    given += [f"--set={name}={value}" for name, value in variables.items()]
    command = shlex.join(["mpicoll", "slurm", template, f"--site={site}", *given])
    return [shebang, Line(shebang.file, f"# Written by: {command}"), *lines]


def text(lines: list[Line]) -> str:
    return "".join(f"{line.text}\n" for line in lines)


def _composed(file: str, site: str) -> Iterator[Line]:
    for line in _read(file):
        if sourced := _SOURCED.fullmatch(line):
            yield from _composed(sourced[1].replace("$SITE", site), site)
        elif not _LINT.fullmatch(line):
            yield Line(file, line)


# -- filling in -----------------------------------------------------------------------------------------------------


def _options_of(lines: list[Line]) -> dict[str, str]:
    found = (_OPTION.fullmatch(line.text) for line in lines)
    return {f["name"]: f["value"] or "" for f in found if f}


def _checked(template: str, lines: list[Line], options: Mapping[str, str]) -> dict[str, str]:
    """The options, with one rank a GPU where the template has GPUs and only their number was given."""
    for name, value in options.items():
        if not re.fullmatch(OPTIONS[name].pattern, value):
            raise _bad(template, f"--{name}", OPTIONS[name].expected, repr(value))
    own, given = _options_of(lines), dict(options)
    if "gpus-per-node" in own and "gpus-per-node" in given:
        given.setdefault("ntasks-per-node", given["gpus-per-node"].rpartition(":")[2])
    found = own | given
    gpus = found.get("gpus-per-node", "").rpartition(":")[2]
    ranks = found.get("ntasks-per-node", "1")
    if gpus and int(ranks) > int(gpus):
        expected = f"at most {gpus}, as --gpus-per-node says, since each rank has a GPU of its own"
        raise _bad(template, "--ntasks-per-node", expected, ranks)
    return given


def _with_options(lines: list[Line], options: Mapping[str, str]) -> list[Line]:
    """Replace the values of the options that the template has, and add the others after its last one."""
    filled: list[Line] = []
    rest, end = dict(options), 0
    for line in lines:
        found = _OPTION.fullmatch(line.text)
        if found:
            end = len(filled) + 1
            if found["name"] in rest:
                given = shlex.quote(rest.pop(found["name"]))
                line = replace(line, text=f"#SBATCH --{found['name']}={given}{found['tail'] or ''}")
        filled.append(line)
    added = [Line(lines[0].file, f"#SBATCH --{name}={shlex.quote(value)}") for name, value in rest.items()]
    return filled[:end] + added + filled[end:]


def _with_variables(template: str, lines: list[Line], site: str, variables: Mapping[str, str]) -> list[Line]:
    known = [found["name"] for line in lines if (found := _VARIABLE.fullmatch(line.text)) and found["name"] != "SITE"]
    for name in variables:
        if name not in known:
            raise _bad(template, "--set", f"one of {', '.join(known)}", repr(name))
    filled: list[Line] = []
    for line in lines:
        found = _VARIABLE.fullmatch(line.text)
        if found and found["name"] == "SITE":  # its preset stands in the script, so no environment can change it
            line = replace(line, text=f"SITE={site}{found['tail'] or ''}")
        elif found and found["name"] in variables:
            name, value = found["name"], _quoted(variables[found["name"]])
            line = replace(line, text=f"{name}=${{{name}:-{value}}}{found['tail'] or ''}")
        filled.append(line)
    return filled


def _quoted(value: str) -> str:
    """As a word of the shell in which the job's own variables (``$SCRATCH``) are expanded, and nothing else is."""
    if "\n" in value:
        raise ArgumentError("slurm", "--set", "a value of one line", repr(value))
    escaped = re.sub(r'["\\`]|\$(?![A-Za-z_{])', r"\\\g<0>", value)
    return f'"{escaped}"'


def _bad(template: str, argument: str, expected: str, given: str) -> ArgumentError:
    return ArgumentError(f"slurm {template}", argument, expected, given)


# -- explaining -----------------------------------------------------------------------------------------------------


def settings(lines: list[Line]) -> Iterator[Setting]:
    """What the script sets, in its order: sbatch's options, the template's variables, the site's."""
    above: list[str] = []
    begun: set[str] = set()  # files whose first comment, which says what the file is, lies behind
    fresh = True  # whether the comment above has met no setting yet
    for line in lines:
        comment = _COMMENT.fullmatch(line.text)
        if comment and line.file in begun:
            above = [*(above if fresh else []), comment["words"]]
            fresh = True
        elif setting := _setting(line):
            written, behind = setting
            yield Setting(line.file, written, (behind,) if behind else tuple(above))
            begun.add(line.file)
            fresh = False
        elif not comment and not line.text.startswith("#"):
            begun.add(line.file)
            above, fresh = [], True


def _setting(line: Line) -> tuple[str, str] | None:
    """A line's setting as it is written and the comment behind it; None if it sets nothing."""
    kinds = [_OPTION, _VARIABLE] + [_PRESET] * (line.file.startswith("sites/") or line.text.startswith("SITE="))
    found = next((f for kind in kinds if (f := kind.fullmatch(line.text))), None)
    if found is None:
        return None
    tail = found["tail"] or ""
    return line.text.removesuffix(tail), tail.strip().lstrip("#").strip()
