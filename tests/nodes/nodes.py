"""Several nodes emulated on one machine, for a command, for tests or for studies.

    python -m tests.nodes.nodes --nodes 4 --rate 200 --delay 50 -- .venv/openmpi/bin/mpicoll run -n 8 script.py

Each node has a host name, processes, shared memory and a network of its own: ranks on two nodes can meet only through
the network, as on real machines. Files are shared, as on a cluster. A node's link may have a rate and a delay. The
launchers of Open MPI and MPICH find the nodes, and a way to start processes there, in their environment. They start on
a host of their own, ``login``.

Needs Linux, root and iproute2, and nothing else but the standard library. All lives in namespaces: it is gone with its
first process, which ends when its standard input does, so however this process ends. Nothing outside sees its mounts,
processes, ports or names, so there can be several sets of nodes at once."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.nodes.wire import TUN, Cable, Link, carry, plug

REPOSITORY = Path(__file__).parents[2]
STATE = Path("/run/nodes")
"""On a file system that only the nodes see."""
ENTER = STATE / "enter"
"""``enter NODE COMMAND`` runs a command on a node, as ssh does."""
HOSTS = STATE / "hosts"
"""The nodes of the ranks: a line for each rank."""
RUNS = STATE / "runs"
"""The same for MPICH, which takes a host for another node in each line that names it: its lines are runs of ranks on
one node, and it begins again after the last line."""
ENVIRONMENT = {
    "TMPDIR": f"{STATE}/tmp",  # of each node its own
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # The nodes share a few cores: a rank that spins keeps others from running.
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
}
LAUNCHERS = {
    "PRTE_MCA_plm_ssh_agent": f"{ENTER}",
    "PRTE_MCA_prte_default_hostfile": f"{HOSTS}",
    "PRTE_MCA_rmaps_default_mapping_policy": "seq",  # else it joins the lines of a node
    "PRTE_MCA_hwloc_default_binding_policy": "none",  # else a node has no more ranks than cores
    "HYDRA_LAUNCHER": "ssh",
    "HYDRA_LAUNCHER_EXEC": f"{ENTER}",
    "HYDRA_HOST_FILE": f"{RUNS}",
}
"""What tells launchers of the nodes."""
JUMBO = ("mtu", "9000")
"""The largest frames, as networks of clusters have them: their headers hardly count."""
CONGESTION = "/proc/sys/net/ipv4/tcp_congestion_control"
"""Reno: each kernel permits it. With BBR, which some have by default, messages that crossed each other took up to 1.5
times as long."""
NEEDED = ("unshare", "nsenter", "ip")


class NodesError(Exception):
    """No nodes here, and why."""


def missing(programs: Sequence[str] = NEEDED) -> str:
    """Why there can be no nodes on this machine; empty if nothing is known to be in the way."""
    if os.geteuid() != 0:
        return "emulated nodes need root"
    absent = [program for program in programs if not shutil.which(program)]
    if absent:
        return f"not installed: {', '.join(absent)}"
    spaces = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--net", "--fork"]
    asked = subprocess.run([*spaces, "ip", "link", "add", "probe", "type", "veth"], capture_output=True, text=True)
    return f"namespaces are not permitted: {asked.stderr.strip()}" if asked.returncode else ""


class Nodes:
    """Some nodes that run, as a context manager.

    ``ranks`` says where the ranks of a job are: the number of the node of each rank, from 0. By default each node has
    one rank. MPICH takes a node for several if its ranks are in several runs that do not repeat, as in 0, 1, 1, 0."""

    variables = ENVIRONMENT | LAUNCHERS
    """Of what runs on the login node."""

    def __init__(self, nodes: int = 2, ranks: Sequence[int] | None = None, link: Link | None = None) -> None:
        self.nodes, self.link = [f"node{i + 1}" for i in range(nodes)], link
        self._ranks = range(nodes) if ranks is None else ranks

    def __enter__(self) -> Nodes:
        reason = missing()
        if reason:
            raise NodesError(reason)
        if self.link is not None and not os.access(TUN, os.R_OK | os.W_OK):
            raise NodesError(f"{TUN} cannot be opened: no link can have a rate or a delay")
        spaces = ["--mount", "--uts", "--ipc", "--pid", "--net"]
        link = None if self.link is None else asdict(self.link)
        told = [self.nodes, [self.nodes[node] for node in self._ranks], link]
        # In a session of its own: a terminal's Ctrl-C must not end it before those who use it.
        self._first = subprocess.Popen(
            ["unshare", *spaces, "--fork", sys.executable, "-m", "tests.nodes.nodes", "--inside", json.dumps(told)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=REPOSITORY,
        )  # fmt: skip
        assert self._first.stdout
        try:
            answer = self._first.stdout.readline()  # the first process's number, as it is called out here
            if not answer:
                raise NodesError(f"the nodes' first process ended with {self._first.wait()}")
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
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
        code = self._first.wait()  # the kernel has ended all other processes of the nodes by then
        if code and error is None:
            raise NodesError(f"the nodes' first process ended with {code}")

    def command(self, *argv: str | Path, cwd: Path | None = None, node: str | None = None) -> list[str]:
        """What to execute so that ``argv`` runs on a node, by default on the login node."""
        enters = [] if node is None else [str(ENTER), node]
        return [
            *self._enter,
            f"--chdir={cwd or Path.cwd()}",
            *(f"{k}={v}" for k, v in self.variables.items()),
            *enters,
            *map(str, argv),
        ]

    def lose(self, node: str) -> None:
        """Pull a node's cable, and end all that runs there."""
        self.run("sh", "-ec", f"ip link set {node} down; kill -9 $(cat {STATE}/{node})", check=True)

    def run(
        self, *argv: str | Path, cwd: Path | None = None, node: str | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*argv, cwd=cwd, node=node), stdin=subprocess.DEVNULL, text=True, **options)


def sh(*argv: str | Path) -> None:
    """Run a program, which must succeed. What it says goes to standard error."""
    subprocess.run([str(word) for word in argv], check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)


def _inside(nodes: list[str], ranks: list[str], link: dict[str, float] | None) -> None:
    """The first process: start everything, say so, and carry frames until standard input ends."""
    number = os.readlink("/proc/self")  # in the /proc that is still the one outside
    sh("mount", "--no-mtab", "-t", "proc", "proc", "/proc")
    sh("mount", "--no-mtab", "-t", "tmpfs", "tmpfs", "/run")
    (STATE / "tmp").mkdir(parents=True)
    socket.sethostname("login")
    addresses, cables = _network(nodes, shaped=link is not None)
    _names(addresses)
    HOSTS.write_text("".join(f"{node}\n" for node in ranks))
    RUNS.write_text("".join(f"{node}:{sum(1 for _ in run)}\n" for node, run in groupby(_repeated(ranks))))
    ENTER.write_text(AS_SSH_DOES)
    ENTER.chmod(0o755)
    for node in nodes:
        _begin(node)
    # From here on nobody waits for a child; what others leave behind must not stay as zombies.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print(number, flush=True)
    carry(cables, Link(**link or {}), sys.stdin.fileno())


def _repeated(ranks: list[str]) -> list[str]:
    """The shortest beginning of the list of which the list is some repetitions."""
    return next(ranks[:n] for n in range(1, len(ranks) + 1) if ranks == ranks[:n] * (len(ranks) // n))


def _network(nodes: list[str], shaped: bool) -> tuple[dict[str, str], list[Cable]]:
    """The address of each host, and the cables that somebody must carry frames through. There is a bridge with a cable
    to each node, and where these are not ``shaped``, the kernel carries the frames."""
    addresses = {name: f"10.0.0.{i + 1}" for i, name in enumerate(["login", *nodes])}
    cables: list[Cable] = []
    sh("ip", "link", "set", "lo", "up")
    sh("ip", "link", "add", "switch", "type", "bridge")
    sh("ip", "address", "add", f"{addresses['login']}/24", "dev", "switch")
    sh("ip", "link", "set", "switch", "up")
    for node in nodes:
        sh("ip", "netns", "add", node)
        if shaped:
            cables.append((plug(node), plug("eth0")))
            sh("ip", "link", "set", "eth0", "netns", node)
            sh("ip", "netns", "exec", node, "sh", "-c", f"echo reno >{CONGESTION}")
        else:
            sh("ip", "link", "add", node, "type", "veth", "peer", "name", "eth0", "netns", node)
        sh("ip", "link", "set", node, *JUMBO, "master", "switch", "up")
        sh("ip", "-netns", node, "address", "add", f"{addresses[node]}/24", "dev", "eth0")
        sh("ip", "-netns", node, "link", "set", "eth0", *JUMBO, "up")
        sh("ip", "-netns", node, "link", "set", "lo", "up")
    return addresses, cables


def _names(addresses: dict[str, str]) -> None:
    names = STATE / "names"
    names.write_text("".join(f"{a} {n}\n" for n, a in {"localhost": "127.0.0.1", **addresses}.items()))
    sh("mount", "--bind", names, "/etc/hosts")


def _begin(node: str) -> None:
    """Start a node, and wait until it runs."""
    own = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "bash", "-euc", NODE, node, node]
    program = ["nsenter", f"--net=/run/netns/{node}", *own]
    begun = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert begun.stdout
    if not begun.stdout.readline():
        sys.exit(f"{node} ended with {begun.wait()}")


NODE = f"""
read -r number _ </proc/self/stat  # in the /proc that is still that of the login node
hostname "$1"
mount -t proc proc /proc
mount -t sysfs sysfs /sys  # /sys/class/net is that of whoever mounts it
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs {STATE}/tmp
# Libraries compare this to tell machines apart.
cat /proc/sys/kernel/random/uuid >{STATE}/tmp/boot_id
mount --bind {STATE}/tmp/boot_id /proc/sys/kernel/random/boot_id
echo "$number" >{STATE}/"$1"
echo begun
exec >&2
sleep infinity &
wait
"""
"""A node: bash stays as its first process, because orphans need one that buries them."""

AS_SSH_DOES = f"""#!/bin/sh
# enter [options of ssh] NODE WORD...: as ssh does, hand the words to a shell on the node.
while [ "${{1#-}}" != "$1" ]; do shift; done
number=$(cat {STATE}/"$1") || exit 255
shift
exec nsenter --all --target "$number" env --chdir="$PWD" sh -c "$*"
"""


def run_on(nodes: Nodes, command: Sequence[str]) -> int:
    """Run a command on the login node of these nodes, which are there as long as it runs. Its exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with nodes:
            # Not subprocess.run, which would kill nsenter first: then nobody buries what nsenter started.
            return subprocess.Popen(nodes.command(*command)).wait()
    except NodesError as error:
        print(f"nodes: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a command on emulated nodes, whose ranks have shaped links.")
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help="emulated nodes (2)")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="ranks on each node (2)")
    parser.add_argument("--cyclic", action="store_true", help="deal the ranks out to the nodes one by one")
    parser.add_argument("--rate", type=float, metavar="MBIT/S", help="of each node's link, each way")
    parser.add_argument("--delay", type=float, metavar="US", help="of each node's link: microseconds from end to end")
    parser.add_argument("command", nargs="+", help="what to run, after --")
    args = parser.parse_args()
    ranks = [i % args.nodes if args.cyclic else i // args.ranks for i in range(args.nodes * args.ranks)]
    link = None
    if args.rate is not None or args.delay is not None:
        link = Link(None if args.rate is None else args.rate * 1e6, (args.delay or 0.0) * 1e-6)
    return run_on(Nodes(args.nodes, ranks, link), args.command)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        _inside(*json.loads(sys.argv[2]))
    else:
        sys.exit(main())
