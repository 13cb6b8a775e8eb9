"""How the tests run as ranks of one job: rank 0 reports, and a failure on any rank ends them all.

A rank whose test failed would go on to the next one while the others wait for it in a collective."""

from __future__ import annotations

import gc
import os
import sys

import pytest
from _pytest.config import create_terminal_writer

from mpicoll import algorithms
from mpicoll.launch.launch_env import launched_rank
from tests.processes import plain_environment

for _name in os.environ.keys() - plain_environment().keys():
    del os.environ[_name]


class Ranks:
    """Notes each test's outcome in the folder MPICOLL_OUTCOMES, one file a rank, and ends the job at a failure."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.in_job = bool(config.getoption("--with-mpi"))
        self.rank = launched_rank() or 0
        folder = os.environ.pop("MPICOLL_OUTCOMES", None)  # a test's own pytest would begin these files anew
        if hasattr(config, "workerinput"):  # a worker of pytest-xdist: its controller notes
            folder = None
        self.notes = open(os.path.join(folder, str(self.rank)), "w", buffering=1) if folder else None  # noqa: SIM115

    def note(self, outcome: str, nodeid: str) -> None:
        if self.notes:
            print(outcome, nodeid, file=self.notes)

    def pytest_collection_finish(self) -> None:
        """What is imported stays, so that a collection of garbage need not look at it again and again."""
        gc.collect()
        gc.freeze()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.note("running", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.ended(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self.ended(report)

    def ended(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        self.note(report.outcome, report.nodeid)
        if report.failed and self.in_job:
            self.end_job(f"rank {self.rank}: {report.nodeid} failed\n{report.longreprtext}\n")

    def end_job(self, failure: str) -> None:
        from mpi4py import MPI

        if MPI.COMM_WORLD.size > 1:
            capture = self.config.pluginmanager.getplugin("capturemanager")
            with capture.global_and_fixture_disabled():
                sys.stderr.write(failure)
                sys.stderr.flush()
            MPI.COMM_WORLD.Abort(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--threads", type=int, default=0, help="run each test in so many threads as ranks, without MPI")
    parser.addoption("--api", choices=["mpicoll", "torch"], default="mpicoll", help="what tests/ranks/torch call")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    ranks = Ranks(config)
    config.pluginmanager.register(ranks)
    if config.getoption("--threads"):
        from tests.in_threads import InThreads

        config.pluginmanager.register(InThreads(config.getoption("--threads")))
    if ranks.in_job and ranks.rank > 0:
        config.pluginmanager.getplugin("terminalreporter")._tw = create_terminal_writer(config, open(os.devnull, "w"))  # noqa: SIM115


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(algorithms, "_REGISTRY", {**algorithms._REGISTRY})
