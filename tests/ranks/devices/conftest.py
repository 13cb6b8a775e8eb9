"""The devices on which each of these tests runs."""

from __future__ import annotations

import pytest

from mpicoll.fabrics.routes.devices import staged
from tests.devices.on import On, OnCuda, OnSimulated, everywhere

DEVICES = [pytest.param(name, marks=[pytest.mark.cuda] if name == "cuda" else []) for name in everywhere()]


@pytest.fixture(scope="module", params=DEVICES)
def on(request: pytest.FixtureRequest) -> On:
    """A device whose work is late."""
    return OnCuda() if request.param == "cuda" else OnSimulated(delay=5e-4)


@pytest.fixture(autouse=True)
def route_is_possible(request: pytest.FixtureRequest) -> None:
    """Skip the route that needs an MPI which takes the device's memory where there is none."""
    asked = getattr(request.node, "callspec", None)
    if asked is None or asked.params.get("route") != "device" or "on" not in request.fixturenames:
        return
    if not request.getfixturevalue("on").device.known_to_mpi():
        pytest.skip("the MPI library does not take this device's memory")


@pytest.fixture
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many bytes are a piece: those that ``by`` gives, or 64."""
    monkeypatch.setattr(staged, "PIECE", getattr(request, "param", 64))
