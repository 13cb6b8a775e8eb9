"""How a program comes under watch, and what it is told where it cannot."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_MPI = "mpi4py.MPI"


def watch() -> None:
    """Watch over the calls that the program makes of mpi4py, from now on. Collective among all ranks, if MPI has begun.

    Raises LaunchError if this process cannot use MPI."""
    from mpicoll.calls.rules import Rules
    from mpicoll.launch.lifetime import checked_world

    world = checked_world()
    from mpicoll.watching.mpi import install, is_watched

    if is_watched() or world.size == 1:
        return

    rules: Rules = world.bcast(Rules.of_environment(), 0)
    if rules.check != "off":
        install(rules)


def when_mpi_begins() -> None:
    """Watch from where the program imports mpi4py.MPI."""
    sys.meta_path.insert(0, _Finder)


class _Finder:
    """Among Python's finders of modules, the one that watches once mpi4py.MPI is there."""

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _MPI:
            return None
        sys.meta_path.remove(cls)
        spec = importlib.util.find_spec(name)
        if spec is not None and (loader := spec.loader) is not None:
            execute = loader.exec_module

            def watched(module: ModuleType) -> None:
                execute(module)
                sys.modules[_MPI] = module
                if module.Is_initialized():
                    watch()
                else:
                    for name in ("Init", "Init_thread"):
                        setattr(module, name, _then_watch(getattr(module, name)))

            loader.exec_module = watched  # type: ignore[method-assign]
        return spec


def _then_watch(begin: object) -> object:
    def begin_and_watch(*args: object, **named: object) -> object:
        result = begin(*args, **named)  # type: ignore[operator]
        watch()
        return result

    return begin_and_watch
