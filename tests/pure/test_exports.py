"""What users import. To change it is to change the contract."""

from __future__ import annotations

import re
from pathlib import Path

import mpicoll

API = Path(__file__).parents[2] / "docs/reference/api.rst"


def test_all() -> None:
    assert mpicoll.__all__ == [
        "Algorithm",
        "Communicator",
        "Op",
        "__version__",
        "errors",
        "register",
        "spawn",
        "threads",
    ]
    assert all(hasattr(mpicoll, name) for name in mpicoll.__all__)
    assert dir(mpicoll) == mpicoll.__all__


def test_a_communicator_shows_what_the_manual_has() -> None:
    on_page = re.findall(r"auto\w+:: mpicoll\.Communicator\.(\w+)", API.read_text())
    with mpicoll.threads(1) as ranks:
        names = [name for name in ranks.run(dir)[0] if not name.startswith("_")]
    assert names == sorted(on_page)


def test_errors_are_one_tree() -> None:
    names = mpicoll.errors.__all__
    classes = [getattr(mpicoll.errors, name) for name in names]
    assert all(issubclass(each, mpicoll.errors.MpicollError) for each in classes)
    defined = {n for n, v in vars(mpicoll.errors).items() if isinstance(v, type) and issubclass(v, Exception)}
    assert defined == set(names)
