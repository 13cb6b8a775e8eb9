"""The emulated nodes: where ranks are, what a link carries, and what becomes of a node that is lost."""

from __future__ import annotations

import subprocess

import pytest

from tests.jobs.jobs import until
from tests.nodes.jobs import PLACEMENTS, run
from tests.nodes.nodes import Nodes
from tests.nodes.wire import Link


@pytest.mark.parametrize("placement", ["block", "cyclic", "uneven"])
def test_ranks_are_on_their_nodes(placement: str) -> None:
    ranks = PLACEMENTS[placement]
    assert run(ranks, "where.py")["hosts"] == [f"node{node + 1}" for node in ranks]


@pytest.mark.any_mpi
@pytest.mark.parametrize(
    ("link", "least"), [(Link(rate=100e6), 8 * (1 << 20) / 100e6), (Link(delay=0.01), 4 * 0.01)], ids=["rate", "delay"]
)
def test_a_message_and_its_answer_take_as_long_as_their_links_need(link: Link, least: float) -> None:
    assert min(run((0, 1), "where.py", link=link)["seconds"]) > least


@pytest.mark.any_mpi
def test_nodes_share_files_and_nothing_else() -> None:
    asked = "hostname; ls /dev/shm | wc -l; cat /proc/sys/kernel/random/boot_id; ip -brief address show eth0"
    with Nodes(2) as nodes:
        nodes.run("touch", "/dev/shm/here", node="node1", check=True)
        said = [nodes.run("sh", "-c", f"'{asked}'", node=node, check=True, stdout=subprocess.PIPE).stdout.split()
                for node in nodes.nodes]  # fmt: skip
    (name1, files1, boot1, *address1), (name2, files2, boot2, *address2) = said
    assert (name1, files1, name2, files2) == ("node1", "1", "node2", "0")
    assert boot1 != boot2
    assert address1 != address2


@pytest.mark.any_mpi
@pytest.mark.parametrize("link", [None, Link(delay=0.001)])
def test_a_lost_node_answers_nobody_and_its_processes_are_gone(link: Link | None) -> None:
    with Nodes(2, link=link) as nodes:
        sleeper = subprocess.Popen(nodes.command("sleep", "1000", node="node2"))
        assert nodes.run("true", node="node2").returncode == 0
        nodes.lose("node2")
        until(lambda: sleeper.poll() not in (None, 0), "the sleeper is killed")
        assert nodes.run("ip", "link", "show", "node2", check=True, stdout=subprocess.PIPE).stdout.count("DOWN")
        # What its kernel still sends is lost, and hurts nobody.
        nodes.run("ip", "netns", "exec", "node2", "bash", "-c", "echo >/dev/udp/10.0.0.1/9", check=True)
        assert nodes.run("true", node="node1").returncode == 0
        assert nodes.run("true", node="node2", stderr=subprocess.DEVNULL).returncode != 0
