"""A Slurm cluster of emulated nodes on one machine, for a command or for tests.

    python tests/cluster/cluster.py [--nodes N] -- bash -c 'sbatch -W slurm/single_node.sbatch'

Each node has a host name, processes, shared memory and, where that is permitted, a network of its own: ranks on two
nodes can meet only through the network, as on real machines. Files are shared, as on a cluster.

Needs Linux, root and Slurm, and nothing else but the standard library. The whole cluster lives in namespaces: it is
gone with its first process, which ends when its standard input does, so however this process ends. Nothing outside
sees its mounts, daemons, ports or names, so several clusters can run at once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

GPUS = 2
"""What each node claims to have; they are files. The cores are the machine's, which all nodes share."""
STATE = Path("/run/slurm")
"""On a file system that only the cluster sees."""
ENVIRONMENT = {
    "SLURM_CONF": f"{STATE}/slurm.conf",
    "TMPDIR": f"{STATE}/tmp",  # of each node its own
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",  # the nodes share a few cores: a rank that spins keeps others from running
}
"""Of what runs on the login node; sbatch hands it on to jobs."""
PMIX = Path("/usr/lib/x86_64-linux-gnu/pmix2/lib")
SECONDS_TO_START = 300.0
NEEDED = ("unshare", "nsenter", "ip", "munged", "slurmctld", "slurmd", "srun")


class ClusterError(Exception):
    """No cluster here, and why."""


def missing() -> str:
    """Why there can be no cluster on this machine; empty if nothing is known to be in the way."""
    if os.geteuid() != 0:
        return "emulated nodes need root"
    absent = [program for program in NEEDED if not shutil.which(program)]
    if absent:
        return f"not installed: {', '.join(absent)}"
    asked = subprocess.run(["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "true"], capture_output=True)
    return f"namespaces are not permitted: {asked.stderr.decode().strip()}" if asked.returncode else ""


def network_permitted() -> bool:
    return not subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "probe", "type", "veth"], capture_output=True
    ).returncode


class Cluster:
    """A running cluster, as a context manager. ``own_networks`` says whether each node has a network of its own.
    Slurm takes a node for lost that has not answered for ``patience`` seconds, by default as long as it does itself."""

    def __init__(self, nodes: int = 2, patience: int = 300) -> None:
        self.nodes, self._patience = [f"node{i + 1}" for i in range(nodes)], patience
        self.own_networks = False

    def __enter__(self) -> Cluster:
        reason = missing()
        if reason:
            raise ClusterError(reason)
        self.own_networks = network_permitted()
        spaces = ["--mount", "--uts", "--ipc", "--pid", *["--net"] * self.own_networks]
        inside = [sys.executable, __file__, "--inside", json.dumps([self.nodes, self.own_networks, self._patience])]
        # In a session of its own: a terminal's Ctrl-C must not end it before those who use it.
        self._first = subprocess.Popen(
            ["unshare", *spaces, "--fork", *inside],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert self._first.stdout
        try:
            answer = self._first.stdout.readline()  # the first process's number, as it is called out here
            if not answer:
                raise ClusterError(f"the cluster's first process ended with {self._first.wait()}")
        except BaseException:
            self.__exit__()
            raise
        self._enter = ["nsenter", "--all", "--target", answer.strip(), "env"]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        assert self._first.stdin
        assert self._first.stdout
        self._first.stdin.close()
        self._first.stdout.close()
        self._first.wait()  # the kernel has ended all other processes of the cluster by then

    def command(self, *argv: str | Path, cwd: Path | None = None) -> list[str]:
        """What to execute so that ``argv`` runs on the cluster's login node."""
        return [
            *self._enter,
            f"--chdir={cwd or Path.cwd()}",
            *(f"{k}={v}" for k, v in ENVIRONMENT.items()),
            *map(str, argv),
        ]

    def lose(self, node: str) -> None:
        """Pull a node's cable, and end all that runs on it: its slurmd, its steps and their ranks."""
        self.run(sys.executable, "-c", LOSE, node, "own" if self.own_networks else "shared", check=True)

    def run(self, *argv: str | Path, cwd: Path | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*argv, cwd=cwd), stdin=subprocess.DEVNULL, text=True, **options)


def _sh(*argv: str | Path) -> None:
    subprocess.run([str(word) for word in argv], check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)


def _inside(nodes: list[str], own_networks: bool, patience: int) -> None:
    """The cluster's first process: start everything, say so, and stay until standard input ends."""
    number = os.readlink("/proc/self")  # in the /proc that is still the one outside
    _sh("mount", "--no-mtab", "-t", "proc", "proc", "/proc")
    _sh("mount", "--no-mtab", "-t", "tmpfs", "tmpfs", "/run")
    (STATE / "tmp").mkdir(parents=True)
    socket.sethostname("login")
    addresses = _network(nodes, own_networks)
    _names(addresses)
    _pmix()
    _configure(nodes, patience)
    os.environ["SLURM_CONF"] = str(STATE / "slurm.conf")
    with ExitStack() as logs:
        for program in _programs(nodes, own_networks):
            log = logs.enter_context(open(STATE / "started.log", "a"))
            subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    _wait_until_idle(len(nodes))
    # From here on nobody waits for a child; what daemons leave behind must not stay as zombies.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print(number, flush=True)
    sys.stdin.read()


def _network(nodes: list[str], own: bool) -> dict[str, str]:
    """The address of each host; with ``own``, a bridge with a cable to each node."""
    if not own:
        return {name: f"127.0.0.{i + 1}" for i, name in enumerate(["login", *nodes])}
    addresses = {name: f"10.0.0.{i + 1}" for i, name in enumerate(["login", *nodes])}
    _sh("ip", "link", "set", "lo", "up")
    _sh("ip", "link", "add", "switch", "type", "bridge")
    _sh("ip", "address", "add", f"{addresses['login']}/24", "dev", "switch")
    _sh("ip", "link", "set", "switch", "up")
    for node in nodes:
        _sh("ip", "netns", "add", node)
        _sh("ip", "link", "add", node, "type", "veth", "peer", "name", "eth0", "netns", node)
        _sh("ip", "link", "set", node, "master", "switch", "up")
        _sh("ip", "-netns", node, "address", "add", f"{addresses[node]}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _sh("ip", "-netns", node, "link", "set", device, "up")
    return addresses


def _names(addresses: dict[str, str]) -> None:
    hosts = STATE / "hosts"
    hosts.write_text("".join(f"{a} {n}\n" for n, a in {"localhost": "127.0.0.1", **addresses}.items()))
    _sh("mount", "--bind", hosts, "/etc/hosts")


def _pmix() -> None:
    """Slurm loads libpmix.so, a name that only Debian's development package has."""
    ours = STATE / "pmix"
    _sh("cp", "-a", PMIX, ours)
    (ours / "libpmix.so").unlink(missing_ok=True)
    (ours / "libpmix.so").symlink_to("libpmix.so.2")
    _sh("mount", "--bind", ours, PMIX)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("", 0))
        return int(s.getsockname()[1])


def _configure(nodes: list[str], patience: int) -> None:
    asked = subprocess.run(["slurmd", "-C"], check=True, capture_output=True, text=True)
    hardware = " ".join(asked.stdout.splitlines()[0].split()[1:])  # NodeName=... CPUs=... ...
    gpus = f"{STATE}/nvidia[0-{GPUS - 1}]"
    machines = "\n".join(
        f"NodeName={node} Port={_free_port()} {hardware} Feature=gpu Gres=gpu:h100:{GPUS}" for node in nodes
    )
    for i in range(GPUS):
        _sh("mknod", STATE / f"nvidia{i}", "c", "1", "3")
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
TmpFS={STATE}/tmp
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


def _programs(nodes: list[str], own_networks: bool) -> list[list[str]]:
    """The daemons, each in the foreground."""
    munge = Path("/run/munge")
    munge.mkdir(mode=0o755)
    key = munge / "key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    files = [f"--{name}-file={munge / name}" for name in ("key", "log", "pid", "seed")]
    munged = ["munged", "--foreground", "--force", *files]
    daemons = [munged, ["slurmctld", "-D"]]
    for node in nodes:
        network = ["nsenter", f"--net=/run/netns/{node}"] if own_networks else []
        own = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "bash", "-euc", NODE, node]
        daemons.append([*network, *own, node, "own" if own_networks else "shared"])
    return daemons


NODE = f"""
hostname "$1"
mount -t proc proc /proc
if [ "$2" = own ]; then mount -t sysfs sysfs /sys; fi  # /sys/class/net is that of whoever mounts it
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs {STATE}/tmp
# Libraries compare this to tell machines apart.
cat /proc/sys/kernel/random/uuid >{STATE}/tmp/boot_id
mount --bind {STATE}/tmp/boot_id /proc/sys/kernel/random/boot_id
slurmd -D -N "$1" &
wait
"""
"""A node: bash stays as its first process, because orphans need one that buries them."""


LOSE = """
import contextlib, os, pathlib, subprocess, sys
node, network = sys.argv[1:]
if network == "own":
    subprocess.run(["ip", "link", "set", node, "down"], check=True)
for process in pathlib.Path("/proc").glob("[0-9]*"):
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # others end meanwhile
        words = (process / "cmdline").read_text().split("\\0")
        if words[0] == "bash" and words[-3:-1] == [node, network]:
            os.kill(int(process.name), 9)
"""
"""Ends a node's first process, with which the kernel ends all others of the node."""


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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with Cluster(args.nodes) as cluster:
            if not cluster.own_networks:
                print("cluster: networks are not permitted here; all nodes share this machine's", file=sys.stderr)
            # Not subprocess.run, which would kill nsenter first: then nobody buries what nsenter started.
            return subprocess.Popen(cluster.command(*args.command)).wait()
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        _inside(*json.loads(sys.argv[2]))
    else:
        sys.exit(main())
