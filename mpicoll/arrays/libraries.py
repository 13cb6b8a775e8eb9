"""Arrays of other libraries, by DLPack and by CUDA's interface: who takes them, and who makes new ones. An address that
does not lie in the host's memory is CUDA's, unless a device that is listed here says that it owns it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from mpicoll.errors import ArgumentError
from mpicoll.machine.cuda import number_of

_DLPACK_CPU = 1  # DLPack's number of the host's memory


def loaded_torch() -> Any:
    """The torch module if the program has imported it, else None. mpicoll does not import it, which takes seconds: a
    program without torch has no tensors."""
    return sys.modules.get("torch")


def library_of(x: Any) -> Any:
    """The library of an array that is neither NumPy's nor torch's, if it takes arrays by DLPack: the namespace that the
    array names, as the array API standard has it, or else its package (CuPy's name none). None for all other arrays."""
    if not hasattr(x, "__dlpack__"):
        return None
    namespace = getattr(x, "__array_namespace__", None)
    library = sys.modules.get(type(x).__module__.partition(".")[0]) if namespace is None else namespace()
    taker = None if library in (np, loaded_torch()) else getattr(library, "from_dlpack", None)
    return None if taker in (None, np.from_dlpack) else library


def by_dlpack(x: Any, operation: str, argument: str) -> Any:
    """An array that speaks DLPack as one of NumPy's, or else of torch's. Raises ArgumentError if neither takes it."""
    torch = loaded_torch()
    takers: list[tuple[str, Callable[[Any], Any]]] = [("numpy", np.from_dlpack)]
    if hasattr(x, "__array__") and x.__dlpack_device__()[0] == _DLPACK_CPU:
        takers.append(("numpy", read_only))  # it takes no bfloat16 by DLPack
    if torch is not None:
        takers.append(("torch", torch.from_dlpack))  # it also takes memory of a GPU
    refusals: dict[str, Exception] = {}
    for name, take in takers:
        try:
            return take(x)
        except (RuntimeError, BufferError, TypeError, ValueError) as e:
            refusals[name] = e
    given = f"{type(x).__name__} ({'; '.join(f'{name} says: {error}' for name, error in refusals.items())})"
    expected = "a DLPack array that NumPy or torch can take"
    raise ArgumentError(operation, argument, expected, given) from refusals[name]


def read_only(x: Any) -> NDArray[Any]:
    """The elements, which may be a copy. So nothing is written there."""
    array = np.asarray(x).view()
    array.flags.writeable = False
    return array


def tensor_of(x: Any, interface: Mapping[str, Any]) -> Any:
    """A tensor over the memory of a ``__cuda_array_interface__``. Nothing waits for the stream of its library."""
    torch = loaded_torch()
    address, _ = interface["data"]
    where = number_of(address) if address else None
    device = torch.device("cuda", torch.cuda.current_device() if where is None else where)
    name, strides = "__cuda_array_interface__", interface.get("strides")
    described = Described(address, interface["shape"], interface["typestr"], strides, name, x)
    return torch.as_tensor(described, device=device)


class Described:
    """Describes memory at an address to NumPy, or by another ``interface`` to torch. Nothing is read through it, so the
    memory may be a GPU's. ``held`` is what holds it."""

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        typestr: str,
        strides: tuple[int, ...] | None = None,
        interface: str = "__array_interface__",
        held: object = None,
    ) -> None:
        data = (address, False)  # may be written: torch refuses what may not
        described = {"version": 3, "data": data, "shape": shape, "strides": strides, "typestr": typestr}
        setattr(self, interface, described)
        self.held = held


class Owner(Protocol):
    """A device with memory of its own. ``name`` says which one, as in ``cuda:0``."""

    name: str

    def owns(self, address: int) -> bool:
        """Whether the address lies in the device's memory."""


owners: WeakValueDictionary[str, Owner] = WeakValueDictionary()
"""Owners by name, as long as anybody holds them. They list themselves."""


def owner_of(address: int) -> Owner | None:
    """The listed owner of an address; None if it has none."""
    listed = (ref() for ref in owners.valuerefs())  # a list of its own: another thread may add an owner meanwhile
    return next((owner for owner in listed if owner is not None and owner.owns(address)), None)
