"""``mpicoll slurm``: what it prints is the template with the given values in it, and nothing beside it is needed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from mpicoll.cli import main
from mpicoll.errors import ArgumentError
from mpicoll.slurm import sbatch

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

ROOT = Path(__file__).parents[3]
SLURM = ROOT / "slurm"
TEMPLATES = list(sbatch.TEMPLATES)
NASTY = ["a b", 'say "x"', "it's", "a}b", "`id`", "$(id)", "100$", "C:\\x", "~/x", "#x", "*", "a;b", "", "ü"]


def rendered(capsys: Capture, *arguments: str) -> str:
    assert main(["slurm", *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: Capture, *arguments: str) -> str:
    """The one line that a command is refused with."""
    try:
        code = main(["slurm", *arguments])
    except SystemExit as end:
        code = int(str(end.code))
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1), (code, out, err)
    return err


def in_bash(lines: str, **environment: str) -> str:
    """What bash prints, which finds no fault."""
    run = subprocess.run(["bash", "-euo", "pipefail", "-c", lines], capture_output=True, text=True, env=environment)
    assert (run.returncode, run.stderr) == (0, ""), run.stderr
    return run.stdout


def test_every_template_and_every_site_is_known(capsys: Capture) -> None:
    assert sorted(sbatch.TEMPLATES.values()) == sorted(file.name for file in SLURM.glob("*.sbatch"))
    assert sbatch.sites() == sorted(file.stem for file in SLURM.glob("sites/*.env"))
    listed = [line.split() for line in rendered(capsys).splitlines() if line]
    assert [name for name, *_ in listed if name in {*TEMPLATES, *sbatch.sites()}] == [*TEMPLATES, *sbatch.sites()]


@pytest.mark.slow
def test_a_script_needs_no_file_beside_it_and_is_clean(capsys: Capture, tmp_path: Path) -> None:
    for template, preset in product(TEMPLATES, sbatch.sites()):
        script = rendered(capsys, template, "--site", preset)
        (tmp_path / f"{template}-{preset}").write_text(script)
        assert script.startswith("#!/usr/bin/env bash\n# Written by: mpicoll slurm ")
        assert not re.search(r"^\s*source .*(common\.sh|\.env\")", script, re.MULTILINE)
        assert len(script.splitlines()) < (130 if preset == "auto" else 160)
        assert ("\nSITE=${SITE:-auto} " if preset == "auto" else f"\nSITE={preset} ") in script
        if preset != "auto":
            lines = (SLURM / "sites" / f"{preset}.env").read_text().splitlines()
            own = [line for line in lines if line[:1] not in ("", "#") and "source" not in line]
            assert all(f"\n{line}\n" in script for line in own)
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")
    if shellcheck is not None:
        scripts = [f"{template}-auto" for template in TEMPLATES]
        assert subprocess.run([shellcheck, *scripts], cwd=tmp_path, capture_output=True, text=True).stdout == ""
    for file in tmp_path.glob("*-*"):
        assert subprocess.run(["bash", "-n", file], text=True, capture_output=True).stderr == ""


WRITTEN = [
    (
        "single-node --mem 4G --set 'PROGRAM=train.py --lr 1'",
        ["# Written by: mpicoll slurm single-node --site=auto --mem=4G '--set=PROGRAM=train.py --lr 1'"],
    ),
    ("compare --gpus-per-node 4", ["#SBATCH --gpus-per-node=4", "#SBATCH --ntasks-per-node=4"]),  # one rank a GPU
    ("compare --gpus-per-node a100:8", ["#SBATCH --gpus-per-node=a100:8", "#SBATCH --ntasks-per-node=8"]),
    ("compare --gpus-per-node 4 --ntasks-per-node 3", ["#SBATCH --gpus-per-node=4", "#SBATCH --ntasks-per-node=3"]),
    # Slurm grants an exclusive job the GPUs of its nodes, and may not know the option.
    ("compare --gpus-per-node 0", ["SLURM_GPUS_PER_NODE=0"]),
    ("compare --gpus-per-node 0 --ntasks-per-node 64", ["SLURM_GPUS_PER_NODE=0", "#SBATCH --ntasks-per-node=64"]),
    ("gpu-multi-node --gres gpu:a100:4", ["#SBATCH --gres=gpu:a100:4", "#SBATCH --ntasks-per-node=4"]),
    *((f"scaling --array {a}", [f"#SBATCH --array={a}", "#SBATCH --nodes=8"]) for a in ("1,2,8", "1-8", "2-8:2%4")),
]


@pytest.mark.parametrize(("words", "expected"), WRITTEN, ids=[words for words, _ in WRITTEN])
def test_what_is_written(capsys: Capture, words: str, expected: list[str]) -> None:
    lines = rendered(capsys, *shlex.split(words)).splitlines()
    assert {*expected} <= {line.partition(" #")[0].rstrip() for line in lines} | {lines[1]}
    options = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    gpus = [i for i in options if lines[i].startswith("#SBATCH --gpus-per-node")]
    assert len(gpus) == any(line.startswith("#SBATCH --gpus-per-node") for line in expected)
    if "SLURM_GPUS_PER_NODE=0" in lines:
        used = next(i for i, line in enumerate(lines) if "mpicoll.slurm" in line)
        assert options[-1] < lines.index("SLURM_GPUS_PER_NODE=0") < used


@pytest.mark.parametrize("template", TEMPLATES)
def test_given_values_take_the_place_of_the_templates(capsys: Capture, template: str) -> None:
    plain = rendered(capsys, template).splitlines()[2:]
    given = {"time": "1-02:03:04", "partition": "fast", "constraint": "a100&nvlink", "mem": "0"}
    given["nodes"] = "1" if template == "single-node" else "7"
    filled = rendered(capsys, template, *(f"--{name}={value}" for name, value in given.items())).splitlines()[2:]
    options = [line.partition(" #")[0].strip().removeprefix("#SBATCH --") for line in filled if line[:7] == "#SBATCH"]
    assert len({option.partition("=")[0] for option in options}) == len(options)
    quoted = given | {"constraint": "'a100&nvlink'"}
    assert {f"{name}={value}" for name, value in quoted.items()} <= set(options)
    # Nothing else has changed, and comments have stayed.
    names = tuple(f"#SBATCH --{name}=" for name in given)
    assert [line for line in filled if not line.startswith(names)] == [x for x in plain if not x.startswith(names)]
    for line in plain:
        if line.startswith(names) and " #" in line:
            assert any(x.startswith(line.partition("=")[0]) and x.endswith(line.partition(" #")[2]) for x in filled)


def setting(capsys: Capture, name: str, value: str) -> str:
    script = rendered(capsys, "single-node", "--set", f"{name}={value}")
    (line,) = re.findall(rf"^{name}=.*", script, re.MULTILINE)
    return f'{line}\nprintf %s "${name}"'


@pytest.mark.parametrize("value", NASTY)
def test_variables_have_the_value_that_was_given(capsys: Capture, value: str) -> None:
    assert in_bash(setting(capsys, "MPICOLL_ENV", value), HOME="/me") == ("/me/x" if value == "~/x" else value)
    shown = setting(capsys, "RESULTS", "$SCRATCH/${SLURM_JOB_ID}")
    job = {"SCRATCH": "/big one", "SLURM_JOB_ID": "7"}
    assert in_bash(shown, **job) == "/big one/7"
    assert in_bash(shown, **job, RESULTS=value or "x") == (value or "x")


NETWORKS = {
    "none": ({}, "ethernet"),
    "InfiniBand": ({"infiniband/mlx5_0/ports/1": ("InfiniBand", "4: ACTIVE")}, "infiniband"),
    "InfiniBand on the second card": (
        {f"infiniband/mlx5_{i}/ports/1": (kind, "4: ACTIVE") for i, kind in enumerate(("Ethernet", "InfiniBand"))},
        "infiniband",
    ),
    "InfiniBand without a cable": ({"infiniband/mlx5_0/ports/1": ("InfiniBand", "1: DOWN")}, "ethernet"),
    "RoCE": ({"infiniband/mlx5_0/ports/1": ("Ethernet", "4: ACTIVE")}, "ethernet"),
    "Omni-Path": ({"infiniband/hfi1_0/ports/1": ("InfiniBand", "4: ACTIVE")}, "ethernet"),
    "EFA": ({"infiniband/rdmap0s6/ports/1": ("Unspecified", "4: ACTIVE")}, "efa"),
    "Slingshot": ({"cxi/cxi0": ("", "")}, "slingshot"),
}


@pytest.mark.parametrize("network", NETWORKS)
def test_without_a_site_the_job_looks_at_its_network(capsys: Capture, tmp_path: Path, network: str) -> None:
    """What is set must be what the preset of that network sets, and nothing else."""
    ports, expected = NETWORKS[network]
    for port, (layer, state) in ports.items():
        folder = tmp_path / port
        folder.mkdir(parents=True)
        (folder / "link_layer").write_text(f"{layer}\n")
        (folder / "state").write_text(f"{state}\n")

    def set_by(script: str, site: str) -> str:
        script = script.replace("/sys/class/", f"{tmp_path}/")
        presets = script[script.index("\nset -a\n") : script.index("\nset +a\n")]
        shown = in_bash(f"SITE={site}\n{presets}\nunset BASH_EXECUTION_STRING; set -o posix; set")
        return "\n".join(re.findall(r"^(?:SITE|NCCL|OMPI|FI|I_MPI|MPIR)\w*=.*", shown, re.MULTILINE))

    found = set_by(sbatch.launching("auto"), "auto")
    assert found == set_by(rendered(capsys, "compare", "--site", expected), expected)
    assert found == set_by(sbatch.launching(expected), expected)
    assert f"SITE={expected}" in found


def test_what_a_written_preset_lacks_is_not_set_by_the_package(capsys: Capture) -> None:
    assert '-m mpicoll.slurm "$SITE")' in rendered(capsys, "multi-node")
    assert "-m mpicoll.slurm none)" in rendered(capsys, "multi-node", "--site", "infiniband")
    assert "NCCL_NET" not in sbatch.launching("none")
    with pytest.raises(ArgumentError, match=r"SITE: expected one of auto, efa, .*; given 'eth'"):
        sbatch.launching("eth")


CONTAINERS = {
    "apptainer": ("image.sif", "", "apptainer exec --bind /here,/results image.sif python3"),
    "singularity": ("image.sif", "4", "singularity exec --nv --bind /here,/results image.sif python3"),
    "srun": ("image.sqsh", "4", "srun --nodes=1 --ntasks=1 --overlap --container-image=image.sqsh"),
}


@pytest.mark.parametrize("runtime", CONTAINERS)
def test_containers(capsys: Capture, tmp_path: Path, runtime: str) -> None:
    """Of what is there: the programs are stubs."""
    image, gpus, expected = CONTAINERS[runtime]
    (tmp_path / "bash").symlink_to(shutil.which("bash") or "")
    for name in {runtime, "srun"}:
        (tmp_path / name).write_text("#!/bin/bash\necho --container-image\n")
        (tmp_path / name).chmod(0o755)
    script = rendered(capsys, "container")
    part = script[script.index("python=(python3)") : script.index("# The rest comes")]
    job = {"CONTAINER": image, "SLURM_SUBMIT_DIR": "/here", "RESULTS": "/results", "SLURM_GPUS_ON_NODE": gpus}
    env = {"PATH": str(tmp_path), **{name: value for name, value in job.items() if value}}
    shown = in_bash(f'die() {{ echo "$*"; exit 0; }}\n{part}\necho "${{python[*]}}"; echo "${{in_ranks[*]}}"', **env)
    here, ranks = shown.splitlines()
    assert here.removeprefix(f"{tmp_path}/").startswith(expected)
    assert ranks == ("python3" if runtime == "srun" else here)


@pytest.mark.parametrize(("cray", "loaded"), [({}, "purge\n"), ({"CRAYPE_VERSION": "2.7"}, "")])
def test_modules_replace_those_of_the_shell_that_submits(
    capsys: Capture, tmp_path: Path, cray: dict[str, str], loaded: str
) -> None:
    """Also where a command fails in the system's profile."""
    (tmp_path / "profile").write_text('false\nmodule() { echo "$@"; }\n')
    script = rendered(capsys, "multi-node").replace("/etc/profile", str(tmp_path / "profile"))
    loads = script[script.index("set +u ") : script.index("if [[ -n $MPICOLL_ENV")]
    assert in_bash(f"set -e; MPICOLL_MODULES='a b'\n{loads}", **cray) == f"{loaded}load a b\n"


def test_the_manuals_commands(capsys: Capture) -> None:
    """Those of docs/how-to/clusters.md are taken as they stand there."""
    page = (SLURM.parent / "docs/how-to/clusters.md").read_text().replace("\\\n", "")
    commands = re.findall(r"^mpicoll (slurm\b[^>|\n]*)", page, re.MULTILINE)
    assert len(commands) > 4
    for command in commands:
        assert main(shlex.split(command, comments=True)) == 0
        assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("backends", "device", "expected"),
    [
        ("mpi,mpicoll,nccl", "cuda", ["1 mpi,mpicoll", "0 nccl"]),
        ("nccl,mpi", "cuda", ["1 mpi", "0 nccl"]),
        ("mpi,mpicoll", "cuda", ["1 mpi,mpicoll"]),
        ("mpi,nccl,gloo", "cpu", [" mpi,gloo"]),
    ],
)
def test_compare_measures_nccl_in_a_launch_of_its_own(
    capsys: Capture, tmp_path: Path, backends: str, device: str, expected: list[str]
) -> None:
    """So that the MPI can take GPU memory in the other one."""
    script = rendered(capsys, "compare", "--set", f"RESULTS={tmp_path}")
    before = script[script.index("others=,") : script.index("# What all templates share")]
    after = script[script.index("[[ $DEVICE != cpu ]] || nccl=") :]
    stubs = f"""
        COLLECTIVES=allreduce DTYPES=float32 SIZES= SECONDS_A_SIZE=1
        RESULTS={tmp_path} DEVICE={device} tasks=2 python=(true)
        [[ ,$BACKENDS, == *,nccl,* || $DEVICE == cpu ]] || export MPICH_GPU_SUPPORT_ENABLED=1
        launch() {{ while [[ $1 != --backends ]]; do shift; done; echo "${{MPICH_GPU_SUPPORT_ENABLED:-}} $2"; }}
    """
    shown = in_bash(before + stubs + after, PATH=os.environ["PATH"], BACKENDS=backends)
    assert shown.splitlines() == expected


def test_each_task_of_an_array_has_a_folder_of_its_own(capsys: Capture) -> None:
    script = rendered(capsys, "preemptible", "--array", "1-3")
    (line,) = [line for line in script.splitlines() if line.startswith("RESULTS=")]
    job = {"SLURM_JOB_NAME": "train", "SLURM_JOB_ID": "8", "SLURM_SUBMIT_DIR": "/home"}
    assert in_bash(f"{line}\necho $RESULTS", **job) == "/home/train-8\n"
    task = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    assert in_bash(f"{line}\necho $RESULTS", **job, **task) == "/home/train-7-2\n"


def test_compare_stops_where_no_preset_fits(capsys: Capture) -> None:
    script = rendered(capsys, "compare")
    start = script.index("[[ -z ${unfit:-} ]]")
    stop = script[start : script.index("# Measures these backends", start)]
    shown = in_bash(f'die() {{ echo "$*"; exit 0; }}; unfit=RoCE; {stop}; echo goes on')
    assert "no preset fits RoCE for certain" in shown
    assert "goes on" not in shown
