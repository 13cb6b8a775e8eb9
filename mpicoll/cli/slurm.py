"""write a job script for a cluster

Prints a job script for sbatch. The script is one file; its job uses the installed mpicoll. Without a template, this
command lists the templates and the presets of sites. What you do not give comes from
the template. You can pass any other option of sbatch to sbatch itself."""

from __future__ import annotations

import argparse
import shutil
import subprocess

from mpicoll.cli.arguments import completes, one_of, option
from mpicoll.slurm import sbatch

USAGE = "mpicoll slurm [TEMPLATE [option ...] [--check]]"


def add(p: argparse.ArgumentParser) -> None:
    templates = one_of(lambda: sbatch.TEMPLATES)
    template = p.add_argument("template", nargs="?", type=templates, help="a template's name from the list")
    completes(template, lambda: sbatch.TEMPLATES)
    for name, each in sbatch.OPTIONS.items():
        option(p, f"--{name} VALUE", each.help)
    about = "the preset for the network; auto takes the one that fits the job's first node (auto)"
    completes(option(p, "--site NAME", about, type=one_of(sbatch.sites), default="auto"), sbatch.sites)
    about = "set a variable that the script gives a default; the job expands $NAME in the value"
    option(p, "--set NAME=VALUE", about, type=_variable, action="append", default=[])
    about = "say whether Slurm would take the script, instead of printing it; the exit code is 1 if not"
    option(p, "--check", about)
    p.set_defaults(instead=". Pass other options of sbatch to sbatch itself: sbatch --mail-type=END job.sbatch")


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE; given {text!r}")
    return name, value


def handle(args: argparse.Namespace) -> int:
    options = {name: value for name in sbatch.OPTIONS if (value := getattr(args, name.replace("-", "_"))) is not None}
    if args.template is None:
        if options or args.set or args.check:
            args.parser.error("expected a template before its options")
        return _list()
    script = sbatch.script(args.template, args.site, options, dict(args.set))
    if args.check:
        return _check(args.template, script)
    print(script, end="")
    return 0


def _list() -> int:
    for name, file in sbatch.TEMPLATES.items():
        print(f"{name:16} {sbatch.about(file)}")
    print("\nsites (--site):")
    for name in sbatch.sites():
        print(f"{name:16} {sbatch.about(f'sites/{name}.env')}")
    return 0


def _check(template: str, script: str) -> int:
    """Whether bash can read the script and Slurm would take it."""
    if subprocess.run(["bash", "-n"], input=script, text=True).returncode:
        print(f"{template}: bash cannot read it")
        return 1
    absent = _why_no_slurm()
    if absent:
        print(f"{template}: its syntax is valid (bash -n). Nothing else was checked: {absent}")
        return 0
    asked = subprocess.run(["sbatch", "--test-only"], input=script, capture_output=True, text=True)
    print((asked.stdout + asked.stderr).strip())
    print(f"{template}: Slurm would {'not ' if asked.returncode else ''}take it")
    return 1 if asked.returncode else 0


def _why_no_slurm() -> str | None:
    if shutil.which("sbatch") is None:
        return "there is no sbatch on PATH"
    asked = subprocess.run(["scontrol", "ping"], capture_output=True, text=True)
    said = (asked.stdout + asked.stderr).strip().splitlines()
    return f"no Slurm answers here ({said[-1] if said else 'scontrol ping'})" if asked.returncode else None
