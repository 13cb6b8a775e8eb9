"""write a job script for a cluster

Prints a job script for sbatch. The script is one file; its job uses the installed mpicoll. Without a template, this
command lists the templates and the presets of sites. What you do not give comes from
the template. You can pass any other option of sbatch to sbatch itself."""

from __future__ import annotations

import argparse

from mpicoll.cli.arguments import one_of, option
from mpicoll.slurm import sbatch

USAGE = "mpicoll slurm [TEMPLATE [option ...]]"


def add(p: argparse.ArgumentParser) -> None:
    p.add_argument("template", nargs="?", type=one_of(sbatch.TEMPLATES), help="a template's name from the list")
    for name, each in sbatch.OPTIONS.items():
        option(p, f"--{name} VALUE", each.help)
    about = "the preset for the network; auto takes the one that fits the job's first node (auto)"
    option(p, "--site NAME", about, type=one_of(sbatch.sites()), default="auto")
    about = "set a variable that the script gives a default; the job expands $NAME in the value"
    option(p, "--set NAME=VALUE", about, type=_variable, action="append", default=[])
    p.set_defaults(instead=". Pass other options of sbatch to sbatch itself: sbatch --mail-type=END job.sbatch")


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE; given {text!r}")
    return name, value


def handle(args: argparse.Namespace) -> int:
    options = {name: value for name in sbatch.OPTIONS if (value := getattr(args, name.replace("-", "_"))) is not None}
    if args.template is None:
        if options or args.set:
            args.parser.error("expected a template before its options")
        return _list()
    print(sbatch.script(args.template, args.site, options, dict(args.set)), end="")
    return 0


def _list() -> int:
    for name, file in sbatch.TEMPLATES.items():
        print(f"{name:16} {sbatch.about(file)}")
    print("\nsites (--site):")
    for name in sbatch.sites():
        print(f"{name:16} {sbatch.about(f'sites/{name}.env')}")
    return 0
