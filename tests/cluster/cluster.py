"""A Slurm cluster of emulated nodes on one machine, for a command or for tests.

    python -m tests.cluster.cluster [--nodes N] -- bash -c 'sbatch -W slurm/single_node.sbatch'

The nodes are those of tests/nodes/nodes.py, which says what each has of its own. Needs Slurm besides what they need.
Commands run on the login node."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from tests.nodes import nodes as emulated
from tests.nodes.nodes import Nodes, NodesError, sh

GPUS = 2
"""What each node claims to have; they are files. The cores are the machine's, which all nodes share."""
STATE = Path("/run/slurm")
"""On a file system that only the cluster sees."""
PMIX = Path("/usr/lib/x86_64-linux-gnu/pmix2/lib")
SECONDS_TO_START = 300.0
NEEDED = ("munged", "slurmctld", "slurmd", "srun")
REPOSITORY = Path(__file__).parents[2]


def missing() -> str:
    """Why there can be no cluster on this machine; empty if nothing is known to be in the way."""
    return emulated.missing((*emulated.NEEDED, *NEEDED))


class Cluster(Nodes):
    """A running cluster, as a context manager.

    Slurm takes a node for lost that has not answered for ``patience`` seconds, by default as long as it does itself."""

    # sbatch hands them on to jobs. Launchers learn of the nodes from Slurm.
    variables = emulated.ENVIRONMENT | {"SLURM_CONF": f"{STATE}/slurm.conf"}

    def __init__(self, nodes: int = 2, patience: int = 300) -> None:
        super().__init__(nodes)
        self._patience = patience

    def __enter__(self) -> Cluster:
        if reason := missing():
            raise NodesError(reason)
        super().__enter__()
        told = json.dumps([self.nodes, self._patience])
        try:
            self.run(sys.executable, "-m", "tests.cluster.cluster", "--inside", told, cwd=REPOSITORY, check=True)
        except subprocess.CalledProcessError as e:
            self.__exit__()
            raise NodesError(f"Slurm did not start: {e}") from None
        except BaseException:
            self.__exit__()
            raise
        return self


def _inside(names: list[str], patience: int) -> None:
    """On the login node: start Slurm on all nodes. What is started stays when this process ends."""
    STATE.mkdir()
    _pmix(names)
    _configure(names, patience)
    with ExitStack() as logs:
        for program in _programs(names):
            log = logs.enter_context(open(STATE / "started.log", "a"))
            subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    _wait_until_idle(len(names))


def _pmix(names: list[str]) -> None:
    """Slurm loads libpmix.so, a name that only Debian's development package has."""
    ours = STATE / "pmix"
    sh("cp", "-a", PMIX, ours)
    (ours / "libpmix.so").unlink(missing_ok=True)
    (ours / "libpmix.so").symlink_to("libpmix.so.2")
    sh("mount", "--bind", ours, PMIX)
    for name in names:
        sh(emulated.ENTER, name, "mount", "--bind", ours, PMIX)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("", 0))
        return int(s.getsockname()[1])


def _configure(names: list[str], patience: int) -> None:
    asked = subprocess.run(["slurmd", "-C"], check=True, capture_output=True, text=True)
    hardware = " ".join(asked.stdout.splitlines()[0].split()[1:])  # NodeName=... CPUs=... ...
    gpus = f"{STATE}/nvidia[0-{GPUS - 1}]"
    machines = "\n".join(
        f"NodeName={node} Port={_free_port()} {hardware} Feature=gpu Gres=gpu:h100:{GPUS}" for node in names
    )
    for i in range(GPUS):
        sh("mknod", STATE / f"nvidia{i}", "c", "1", "3")
    (STATE / "gres.conf").write_text(f"Name=gpu Type=h100 File={gpus}\n")
    (STATE / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # unused, but slurmd ends if it finds none itself
    (STATE / "slurm.conf").write_text(
        f"""
ClusterName=emulated
SlurmctldHost=login
SlurmctldPort={_free_port()}
SlurmUser=root
SlurmdUser=root
SlurmctldPidFile={STATE}/slurmctld.pid
SlurmctldLogFile={STATE}/slurmctld.log
StateSaveLocation={STATE}/state
SlurmdPidFile={STATE}/%n.pid
SlurmdLogFile={STATE}/%n.log
SlurmdSpoolDir={STATE}/spool.%n
TmpFS={emulated.STATE}/tmp
# What needs cgroups or a data base is left out.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
# Jobs are started and ended at once, and remembered until a test has looked at them.
AuthInfo=cred_expire=5
KillWait=2
SlurmdTimeout={patience}
MinJobAge=3600
SchedulerParameters=sched_interval=2,bf_interval=2,sched_min_interval=100000
# Jobs of the partition "urgent" take the place of others, which have some seconds to leave a checkpoint.
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{machines}
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP PriorityTier=1 GraceTime=120
PartitionName=urgent Nodes=ALL MaxTime=60 State=UP PriorityTier=2 PreemptMode=OFF
"""
    )


def _programs(names: list[str]) -> list[list[str]]:
    """The daemons, each in the foreground."""
    munge = Path("/run/munge")
    munge.mkdir(mode=0o755)
    key = munge / "key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    files = [f"--{name}-file={munge / name}" for name in ("key", "log", "pid", "seed")]
    munged = ["munged", "--foreground", "--force", *files]
    daemons = [[str(emulated.ENTER), name, "slurmd", "-D", "-N", name] for name in names]
    return [munged, ["slurmctld", "-D"], *daemons]


def _wait_until_idle(nodes: int) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    states: list[str] = []
    while states.count("idle") < nodes:
        if time.monotonic() > deadline:
            for log in sorted(STATE.glob("*.log")):
                print(f"{log.name}:\n{log.read_text(errors='replace')[-3000:]}", file=sys.stderr)
            sys.exit(f"the nodes are not idle within {SECONDS_TO_START:.0f} s: {' '.join(states) or 'no answer'}")
        time.sleep(0.1)
        states = subprocess.run(["sinfo", "-hNp", "main", "-o", "%T"], capture_output=True, text=True).stdout.split()


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a command on the login node of an emulated Slurm cluster.")
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help="emulated nodes (2)")
    parser.add_argument("command", nargs="+", help="what to run, after --")
    args = parser.parse_args()
    return emulated.run_on(Cluster(args.nodes), args.command)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        _inside(*json.loads(sys.argv[2]))
    else:
        sys.exit(main())
