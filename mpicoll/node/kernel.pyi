from collections.abc import Callable, Sequence
from typing import Any

PackedList = tuple[int, int, object]
"""Where the tensors of a list travel: an address, how many bytes there are, and what holds the memory."""

Gaps = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Where the elements of an array with gaps lie: their size, the array's shape, and its strides in bytes."""

INTERFACE: int
AHEAD: int

class Ring:
    """The last calls: see ``_PlainRing`` in ``mpicoll.supervise.record``, which has the same interface."""

    _begun: int
    _first: int
    under_way: bool
    taped: bool
    messages: Sequence[tuple[object, float]]
    def begin(self, record: object) -> None: ...
    def begin_message(self, pending: object) -> None: ...
    def move(self, code: object, place: int) -> None: ...
    def take_back(self) -> None: ...
    def kept(self) -> list[tuple[object, object, int]]: ...
    def digests(self, many: int) -> bytes: ...

class Base:
    """What has Methods: a communicator."""

    _calls: Calls

class Turn:
    """Whether a call of a group comes at once: see ``ProcessGroup.turn`` of ``mpicoll.torch``."""

    inside: int
    def __new__(cls, calls: Calls | None, progress: object, is_world: bool) -> Turn: ...

class Calls:
    """The repeated calls of a communicator."""

    def __new__(cls, engine: object, ring: Ring | None, rank: int, under_way: object) -> Calls: ...
    def keep(
        self,
        operation: str,
        x: object,
        out: object,
        op: object,
        root: int,
        algorithm: str | None,
        sendcounts: Sequence[int] | None,
        recvcounts: Sequence[int] | None,
        bound: object,
        x_packed: PackedList | None,
        out_packed: PackedList | None,
    ) -> None: ...
    def keep_begun(
        self,
        operation: str,
        x: object,
        out: object,
        op: object,
        root: int,
        algorithm: str | None,
        sendcounts: Sequence[int] | None,
        recvcounts: Sequence[int] | None,
        message: object,
        record: object,
        plan: Plan,
        pending: object,
    ) -> None: ...
    def keep_message(
        self,
        operation: str,
        x: object,
        out: object,
        numbers: tuple[int | None, int | None, int | None, int | None],
        bound: object,
        run: object,
        pending: object,
    ) -> None: ...
    def keep_object(
        self,
        operation: str,
        numbers: tuple[int | None, int | None, int | None, int | None],
        message: ObjectMessage,
        pending: object,
    ) -> None: ...
    def message(
        self,
        operation: str,
        x: object,
        dest: int | None,
        sendtag: int | None,
        source: int | None,
        recvtag: int | None,
        kind: type[Request] | None,
    ) -> object | None: ...
    def run(
        self,
        operation: str,
        x: object,
        out: object,
        op: object,
        root: int,
        algorithm: str | None,
        sendcounts: Sequence[int] | None,
        recvcounts: Sequence[int] | None,
    ) -> bool: ...
    def begin(
        self,
        operation: str,
        x: object,
        out: object,
        op: object,
        root: int,
        algorithm: str | None,
        sendcounts: Sequence[int] | None,
        recvcounts: Sequence[int] | None,
        returns: object,
    ) -> Any: ...
    def forget(self, stay: bool) -> None: ...

class Method:
    """A method of a Communicator that makes repeated calls and messages itself."""

    def __new__(
        cls,
        function: Callable[..., object],
        operation: str,
        names: tuple[str, ...],
        meanings: tuple[int, ...],
        defaults: tuple[object, ...],
        returns: int,
        elementwise: bool,
        begins: bool,
        like: Callable[[Any], object] | None,
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
        gaps: tuple[Gaps | None, Gaps | None],
        digest: int,
        ways: tuple[bool, bool, bool],
        reduction: tuple[int, int, bool, complex | None] | None,
    ) -> Plan: ...
    def run(self) -> None: ...
    def start(self) -> BegunCall: ...
    def wait(self, begun: BegunCall) -> None: ...
    def test(self, begun: BegunCall) -> bool: ...
    def lies(self, version: int, places: bytes, is_adopted: bool) -> None: ...
    def found(self, rank: int, version: int, input: int | None, output: int | None) -> None: ...

class BegunCall:
    """A collective under way."""

    def wait(self) -> None: ...
    def test(self, longer: bool) -> bool: ...
    def unpack(self) -> None: ...

class Messages:
    """The messages of a communicator."""

    def __new__(
        cls, addresses: tuple[int, ...], memory: object, rank: int, crowded: bool, meanwhile: Callable[[int], object]
    ) -> Messages: ...
    def __call__(self) -> None: ...
    def probe(self, source: int, tag: int, waits: bool) -> tuple[int, int, int] | None: ...
    def lying(self, looks: bool) -> list[tuple[int, int, int]]: ...
    def send(self, data: bytes, dest: int, tag: int) -> Begun: ...
    def recv(self, source: int, tag: int) -> bytes: ...

class Begun:
    """A message under way."""

    def wait(self) -> None: ...
    def test(self) -> bool: ...

class Message:
    """A message that is bound to its memory."""

    def __new__(
        cls,
        messages: Messages,
        receives: bool,
        peer: int,
        tag: int,
        address: int,
        itemsize: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        beside: Message | None,
        home: tuple[int, int, int, int, int],
    ) -> Message: ...
    def now(self) -> None: ...
    def start(self) -> Begun: ...
    def wait(self, begun: Begun) -> None: ...
    def test(self, begun: Begun) -> bool: ...
    def cancel(self, begun: Begun) -> bool: ...
    def source(self, begun: Begun | None = None) -> int: ...
    def tag(self, begun: Begun) -> int: ...
    def arrived(self, begun: Begun | None = None) -> int | None: ...

class Exchange:
    """Messages that leave and come at once."""

    def __new__(cls, messages: tuple[Message, ...], wrong_length: Callable[[int, int], object]) -> Exchange: ...
    def run(self) -> None: ...

class ObjectMessage:
    """A message of an object."""

    def __new__(
        cls,
        messages: Messages,
        receives: bool,
        peer: int,
        tag: int,
        convert: Callable[[object], object],
        by_pickle: bool,
    ) -> ObjectMessage: ...

class Request:
    """What Python's class of requests keeps: see ``_PlainFields`` in ``mpicoll.communicator.engine.requests``."""

    done: bool
    result: object
    def wait(self) -> None: ...

def dtype_named(name: str) -> int: ...
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
def prepare_requests(requests: type, under_way: set[object]) -> None: ...
def know_subclass(type: type) -> None: ...
def know_buffers(types: tuple[type, ...], dtypes: dict[str, object]) -> None: ...
def know_tensors(*types: type) -> None: ...
def know_groups(profiler: dict[str, object], constants: tuple[object, ...], names: tuple[str, ...]) -> None: ...
def set_default_turn(turn: Turn | None, threads_are_ranks: bool) -> None: ...
def lie_together(tensors: tuple[Any, ...]) -> bool: ...
def pack(tensors: tuple[Any, ...], address: int, nbytes: int, unpacks: bool) -> bool: ...
def changed() -> None: ...
def head_size(ranks: int) -> int: ...
def end_moving() -> None: ...
def messages_size(ranks: int, crowded: bool) -> int: ...
