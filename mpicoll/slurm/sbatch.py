"""Slurm job scripts, made from the templates of ``slurm/``. Each script is one file that needs no other. A value that
can be set is on a line of its own, with a comment: ``#SBATCH --option=value`` or ``NAME=${NAME:-default}``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from typing import Literal, NamedTuple

from mpicoll.errors import ArgumentError

TEMPLATES = {
    "single-node": "single_node.sbatch",
    "multi-node": "multi_node.sbatch",
    "gpu-multi-node": "gpu_multi_node.sbatch",
    "compare": "mpi_vs_nccl.sbatch",
    "train": "ddp_train.sbatch",
    "scaling": "scaling_array.sbatch",
    "preemptible": "preemptible.sbatch",
    "container": "container.sbatch",
}


class Option(NamedTuple):
    """An option of sbatch: the ``pattern`` of its value, the same in words (``expected``), and what it means."""

    pattern: str
    expected: str
    help: str


_COUNT = r"[1-9]\d*", "a number, at least 1"
_WORD = r"\S+", "one word"

OPTIONS = {
    "nodes": Option(*_COUNT, "number of nodes"),
    "ntasks-per-node": Option(*_COUNT, "number of ranks on each node"),
    "gpus-per-node": Option(
        r"0|([\w.-]+:)?[1-9]\d*", "a number or TYPE:NUMBER", "number of GPUs on each node; 0 asks for none"
    ),
    "gres": Option(
        r"gpu(:[\w.-]+)?:[1-9]\d*",
        "gpu:NUMBER or gpu:TYPE:NUMBER",
        "GPUs on each node, where Slurm does not know --gpus-per-node",
    ),
    "cpus-per-task": Option(*_COUNT, "number of cores for each rank"),
    "mem": Option(r"\d+[KMGT]?", "a number, with K, M, G or T", "memory on each node; 0 asks for all of it"),
    "time": Option(r"(\d+-)?\d+(:\d\d?){0,2}", "minutes, H:MM:SS or D-HH:MM:SS", "time limit of the job"),
    "partition": Option(*_WORD, "partition of the nodes"),
    "account": Option(*_WORD, "account to charge"),
    "array": Option(r"[1-9]\d*([,:%-][1-9]\d*)*", "numbers from 1 on, as 1,2,4 or 1-8", "tasks of the array"),
    "qos": Option(*_WORD, "quality of service"),
    "constraint": Option(*_WORD, "features that the nodes must have"),
    "reservation": Option(*_WORD, "reservation to run in"),
    "job-name": Option(r"[^\s/]+", "one word without a slash", "name of the job and of its log"),
}
"""The options that people set. Any other option can be passed to sbatch itself."""

_SETTING = re.compile(
    r"(#SBATCH\s+--(?P<option>[a-z-]+)(=(?P<value>\S+))?"
    r"|(?P<variable>[A-Za-z_]\w*)=\$\{(?P=variable):-.*?\}"
    r"|SITE=[\w-]+)(?P<tail>\s+#.*)?"
)
_COMMENT = re.compile(r"# (?!shellcheck\b)")
_SHELLCHECK = re.compile(r"\s*# shellcheck ")
_SOURCED = re.compile(r'\s*source "[^"]*/(common\.sh|sites/[\w$]+\.env)"')


def _part(line: str, part: Literal["option", "value", "variable", "tail"]) -> str:
    """Of a line of a script, the ``option`` of sbatch that it sets and its ``value``, the ``variable`` that it gives a
    default, or the comment behind it with the space before it (``tail``). Empty if there is none."""
    found = _SETTING.fullmatch(line)
    return found[part] or "" if found else ""


def _read(file: str) -> list[str]:
    return resources.files("mpicoll.slurm").joinpath("templates", file).read_text().splitlines()


def sites() -> list[str]:
    """The names of the site presets."""
    files = resources.files("mpicoll.slurm").joinpath("templates", "sites").iterdir()
    return sorted(file.name.removesuffix(".env") for file in files if file.name.endswith(".env"))


def about(file: str) -> str:
    """The first comment of a file in ``slurm/``, which says what the file is."""
    return next(line for line in _read(file) if _COMMENT.match(line)).removeprefix("# ")


def script(template: str, site: str, options: Mapping[str, str], variables: Mapping[str, str]) -> str:
    """The template with these values instead of its own. The files that it sources are copied into it. Raises
    ArgumentError for a value that its option cannot have, and for a variable that the template does not have."""
    shebang, *lines = _with_preset(template, site)
    lines = _with_options(lines, _checked(template, lines, options))
    lines = _with_variables(template, lines, variables)
    given = [f"--{name}={value}" for name, value in options.items()]
    given += [f"--set={name}={value}" for name, value in variables.items()]
    command = shlex.join(["mpicoll", "slurm", template, f"--site={site}", *given])
    return "\n".join([shebang, f"# Written by: {command}", *lines, ""])


def launching(site: str = "") -> str:
    """What a job runs to start ranks: slurm/launch.sh, with this preset in it."""
    if site not in sites():
        raise ArgumentError("slurm", "SITE", f"one of {', '.join(sites())}", repr(site))
    return "\n".join([*_composed("launch.sh", site), ""])


def _composed(file: str, site: str) -> Iterator[str]:
    lines = _read(file)
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if sourced := _SOURCED.fullmatch(line):
            yield from _composed(sourced[1].replace("$SITE", site), site)
        elif not (_SHELLCHECK.match(line) and (_SOURCED.fullmatch(after) or "shell=" in line)):
            yield line


def _with_preset(template: str, site: str) -> Iterator[str]:
    """The template with this preset in it. With ``auto``, the job looks at its network and takes a preset itself."""
    for line in _composed(TEMPLATES[template], site):
        if site == "auto":
            yield line
        elif _part(line, "variable") == "SITE":  # the environment cannot change what is written here
            unheeded = f"SITE=$SITE changes nothing: this script was written with --site {site}. Write it again"
            yield f'[[ ${{SITE:-{site}}} == {site} ]] || echo "mpicoll: {unheeded}" >&2'
            yield f"SITE={site}{_part(line, 'tail')}"
            yield from ("set -a", *_composed(f"sites/{site}.env", site), "set +a")
        else:
            yield line.replace('-m mpicoll.slurm "$SITE"', "-m mpicoll.slurm none")


# -- filling in -----------------------------------------------------------------------------------------------------


def _checked(template: str, lines: list[str], options: Mapping[str, str]) -> dict[str, str]:
    """The options that were given, and those that follow. Raises ArgumentError if they contradict each other."""
    for name, value in options.items():
        if not re.fullmatch(OPTIONS[name].pattern, value):
            raise _bad(template, f"--{name}", OPTIONS[name].expected, repr(value))
    own = {option: _part(line, "value") for line in lines if (option := _part(line, "option"))}
    given = dict(options)
    if "gres" in given and "gpus-per-node" in given:
        raise _bad(template, "--gres", "it or --gpus-per-node", "both")
    gpus = int((own | given).get("gres", (own | given).get("gpus-per-node", "0")).rpartition(":")[2])
    if given.keys() & {"gres", "gpus-per-node"} and gpus:
        given.setdefault("ntasks-per-node", str(gpus))
    ranks = int((own | given)["ntasks-per-node"])
    nodes = (own | given)["nodes"]
    if template == "single-node" and nodes != "1":
        raise _bad(template, "--nodes", "1, or the template multi-node", nodes)
    if template == "gpu-multi-node" and not gpus:
        raise _bad(template, "--gpus-per-node", "at least 1, since each rank has one", "0")
    if template == "gpu-multi-node" and ranks != gpus:
        raise _bad(template, "--ntasks-per-node", f"{gpus}, as --gpus-per-node says: one rank a GPU", str(ranks))
    if 0 < gpus < ranks:
        expected = f"at most {gpus}, as --gpus-per-node says, since each rank has a GPU of its own"
        raise _bad(template, "--ntasks-per-node", expected, str(ranks))
    if "array" in own:  # of numbers of nodes
        if "array" in given:
            given.setdefault("nodes", str(_most(given["array"])))
        most, nodes = _most((own | given)["array"]), (own | given)["nodes"]
        if most > int(nodes):
            raise _bad(template, "--nodes", f"at least {most}, the largest number in --array", nodes)
    return given


def _most(array: str) -> int:
    return max(int(number) for number in re.findall(r"(?<![:%])\b\d+", array))


def _with_options(lines: list[str], options: Mapping[str, str]) -> list[str]:
    """The script with these options: in their places if the template has them, else after the template's last one."""
    filled: list[str] = []
    rest, end = dict(options), 0
    if "gres" in rest:
        lines = [line for line in lines if _part(line, "option") != "gpus-per-node"]
    for line in lines:
        if (name := _part(line, "option")) in rest:
            line = _option(name, rest.pop(name)) + _part(line, "tail")
        filled.append(line)
        end = len(filled) if name else end
    filled[end:end] = [_option(name, value) for name, value in rest.items()]
    kept = [line for line in filled if not line.startswith("#SBATCH --gpus-per-node=0")]
    # Slurm may not know the option for GPUs, so a script without GPUs has a variable instead. It must say so: with
    # --exclusive the job would get all GPUs of its nodes.
    if len(kept) < len(filled):
        last = max(i for i, line in enumerate(kept) if _part(line, "option"))
        kept.insert(last + 1, "SLURM_GPUS_PER_NODE=0")
    return kept


def _option(name: str, value: str) -> str:
    return f"#SBATCH --{name}={shlex.quote(value)}"


def _with_variables(template: str, lines: list[str], variables: Mapping[str, str]) -> list[str]:
    known = _variables(lines)
    for name, value in variables.items():
        if name == "SITE":
            raise _bad(template, "--set", "--site for the preset of the network", f"SITE={value}")
        if name not in known:
            raise _bad(template, "--set", f"one of {', '.join(known)}", repr(name))
    texts = {name: f"{name}=${{{name}:-{_quoted(value)}}}" for name, value in variables.items()}
    named = [(_part(line, "variable"), line) for line in lines]
    return [texts[name] + _part(line, "tail") if name in texts else line for name, line in named]


def _variables(lines: Iterable[str]) -> dict[str, None]:
    """The variables that these lines give a default. SITE is none of them: that is --site."""
    named = (_part(line, "variable") for line in lines)
    return dict.fromkeys(name for name in named if name not in ("", "SITE"))


def _quoted(value: str) -> str:
    """The value as a word of the shell, which expands variables, as ``$SCRATCH``, and ``~/`` at its beginning."""
    if "\n" in value:
        raise ArgumentError("slurm", "--set", "a value of one line", repr(value))
    value = re.sub(r"^~/", "$HOME/", value)
    escaped = re.sub(r'["\\`]|\$(?![A-Za-z_{])', r"\\\g<0>", value)
    return f'"{escaped}"'


def _bad(template: str, argument: str, expected: str, given: str) -> ArgumentError:
    return ArgumentError(f"slurm {template}", argument, expected, given)
