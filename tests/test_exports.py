"""What users import. To change it is to change the contract."""

from __future__ import annotations

import mpicoll


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


def test_errors_are_one_tree() -> None:
    names = mpicoll.errors.__all__
    classes = [getattr(mpicoll.errors, name) for name in names]
    assert all(issubclass(each, mpicoll.errors.MpicollError) for each in classes)
    defined = {n for n, v in vars(mpicoll.errors).items() if isinstance(v, type) and issubclass(v, Exception)}
    assert defined == set(names)
