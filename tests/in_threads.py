"""Runs tests that were written for ranks of a job in ranks that are threads: ``pytest --threads 4 tests/ranks/torch``.

Each test is called in all threads at once. The fixtures that depend on the rank are made anew in each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import mpicoll
from mpicoll.fabrics.thread_job import Seat, here


class InThreads:
    """Calls every test in ``size`` threads."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.fresh()

    def fresh(self) -> None:
        """A failed job stays broken: the next test gets another."""
        self.context = mpicoll.threads(self.size)
        self.ranks = self.context.__enter__()

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool:
        names = inspect.signature(pyfuncitem.obj).parameters
        given = {name: pyfuncitem.funcargs[name] for name in names}
        makers = {name: make for name, make in OF_A_RANK.items() if name in given}
        try:
            self.ranks.run(call, pyfuncitem.obj, given, makers, "without_group" not in pyfuncitem.fixturenames)
        except BaseException:
            self.fresh()
            raise
        return True

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if item.get_closest_marker("processes"):
                item.add_marker(pytest.mark.skip(reason="its ranks must be processes"))


def call(
    comm: Any, test: Callable[..., None], given: dict[str, Any], makers: dict[str, Callable[[], Any]], group: bool
) -> None:
    import mpicoll.torch as dist

    if group and not dist.is_initialized():
        dist.init_process_group()
    if not group and dist.is_initialized():
        dist.destroy_process_group()
    test(**{**given, **{name: make() for name, make in makers.items()}})


def _seat() -> Seat:
    assert here.seat is not None
    return here.seat


def _groups() -> Any:
    import mpicoll.torch as dist
    from tests.ranks.torch.cases import make_groups

    return make_groups(dist.group.WORLD)


def _communicators() -> Any:
    from tests.ranks.test_random import make_communicators

    return make_communicators()


OF_A_RANK: dict[str, Callable[[], Any]] = {
    "rank": lambda: _seat().rank,
    "size": lambda: _seat().job.size,
    "groups": _groups,
    "comm": mpicoll.Communicator,
    "communicators": _communicators,
}
