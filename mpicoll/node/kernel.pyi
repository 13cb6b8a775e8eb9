from collections.abc import Callable, Sequence

INTERFACE: int

class Ring:
    """The last calls: see ``_PlainRing`` in ``mpicoll.guard.recorder``, which has the same interface."""

    under_way: bool
    def begin(self, record: object) -> None: ...

class Calls:
    """The repeated calls of a communicator."""

    def __new__(cls, engine: object, ring: Ring | None, rank: int) -> Calls: ...
    def keep(
        self, operation: str, x: object, out: object, op: object, root: int, algorithm: str | None, bound: object
    ) -> None: ...
    def run(self, operation: str, x: object, out: object, op: object, root: int, algorithm: str | None) -> bool: ...
    def forget(self, stay: bool) -> None: ...

class Method:
    """A method of a Communicator that makes repeated calls itself."""

    def __new__(
        cls,
        function: Callable[..., object],
        operation: str,
        names: tuple[str, ...],
        meanings: tuple[int, ...],
        defaults: tuple[object, ...],
        returns: int,
        elementwise: bool,
    ) -> Method: ...

class Node:
    """The memory in which the ranks of a node meet."""

    def __new__(
        cls,
        addresses: tuple[int, ...],
        memory: object,
        rank: int,
        unit_size: int,
        crowded: bool,
        between: Callable[[], object],
    ) -> Node: ...
    def said(self, rank: int) -> tuple[int, bytes]: ...

class Plan:
    """A collective that is bound to its arrays."""

    def __new__(
        cls,
        node: Node,
        of: object,
        collective: tuple[int, int, int, int],
        root: int,
        blocks: int,
        given: bytes,
        taken: bytes,
        is_private: bool,
        input: int | None,
        output: int | None,
        digest: int,
        ways: tuple[bool, bool, bool],
        reduction: tuple[int, int, bool, complex | None] | None,
    ) -> Plan: ...
    def run(self) -> None: ...
    def lies(self, version: int, places: bytes, is_adopted: bool) -> None: ...
    def found(self, rank: int, version: int, input: int | None, output: int | None) -> None: ...

def reduce_rows(
    dtype: int,
    op: int,
    averages: bool,
    factors: Sequence[complex] | None,
    rows: tuple[int, ...],
    result: int,
    elements: int,
) -> None: ...
def widen(dtype: int, values: int, result: int, elements: int) -> None: ...
def narrow(dtype: int, values: int, result: int, elements: int) -> None: ...
def prepare(is_library: dict[str, bool], last_call: memoryview | None) -> None: ...
def know_arrays(array: object, address: int, shape: tuple[int, ...], dtype: object, flags: int) -> None: ...
def know_tensors(*types: type) -> None: ...
def changed() -> None: ...
def head_size(ranks: int) -> int: ...
