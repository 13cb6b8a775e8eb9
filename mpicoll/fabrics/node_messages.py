"""Messages among the ranks of one node, by the kernel (``mpicoll/node``) in memory that they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpicoll.arrays.buffers import Buffer
from mpicoll.fabrics.fabric import Envelope, Transfer
from mpicoll.machine.blocks import own_at
from mpicoll.node.loaded import kernel

if TYPE_CHECKING:
    from mpicoll.node.kernel import Messages

ANY = -1
"""What the kernel calls any source, and any tag."""

if kernel is not None:
    Transfer.register(kernel.Message)
    Transfer.register(kernel.Plan)


class NodeMessages:
    """The messages of one communicator. None of its transfers holds an array."""

    def __init__(self, messages: Messages, nobody: int) -> None:
        self._messages, self._nobody = messages, nobody

    def free(self) -> None:
        """Let go of the memory. No method may be called any more."""
        del self._messages

    def outgoing(self, b: Buffer, dest: int, tag: int) -> Transfer | None:
        """A message to a rank. None if its elements lie in more dimensions than the kernel copies."""
        return self._bound(b, False, dest, tag)

    def incoming(self, b: Buffer, source: int | None, tag: int | None) -> Transfer | None:
        return self._bound(b, True, *_wanted(source, tag))

    def both(
        self, sent: Buffer, dest: int, sendtag: int, taken: Buffer, source: int | None, recvtag: int | None
    ) -> Transfer | None:
        leaves = None if dest == self._nobody else self.outgoing(sent, dest, sendtag)
        if leaves is None and dest != self._nobody:
            return None
        return self._bound(taken, True, *_wanted(source, recvtag), leaves)

    def _bound(self, b: Buffer, receives: bool, peer: int, tag: int, beside: Transfer | None = None) -> Transfer | None:
        assert kernel is not None
        try:
            made: Transfer = kernel.Message(
                self._messages, receives, peer, tag, b.address, b.dtype.itemsize, b.shape, b.strides, beside, _home(b)
            )
        except ValueError:
            return None
        return made

    def probe(self, source: int | None, tag: int | None, waits: bool) -> Envelope | None:
        found = self._messages.probe(*_wanted(source, tag), waits)
        return None if found is None else Envelope(*found)

    def of_objects(self, receives: bool, peer: int | None, tag: int | None, convert: Callable[[Any], Any]) -> object:
        """What sends objects to a rank, or receives them. ``convert`` makes bytes of them, or objects of bytes."""
        assert kernel is not None
        return kernel.ObjectMessage(self._messages, receives, *_wanted(peer, tag), convert)

    def unreceived(self) -> list[Envelope]:
        return [Envelope(*each) for each in self._messages.lying()]

    def send(self, data: bytes, dest: int, tag: int) -> None:
        self._messages.send(data, dest, tag).wait()

    def start(self, data: bytes, dest: int, tag: int) -> Callable[[], bool]:
        return self._messages.send(data, dest, tag).test

    def take(self, source: int | None, tag: int | None, waits: bool) -> bytes | None:
        """The bytes of a message. None if none has come, unless this ``waits``."""
        wanted = _wanted(source, tag)
        if not waits and self._messages.probe(*wanted, False) is None:
            return None
        return self._messages.recv(*wanted)


def _home(b: Buffer) -> tuple[int, int, int, int, int]:
    """The file in which the array lies as long as this process lives: its number, device, inode, address and bytes.
    All zeros if there is none."""
    own = own_at(b.address, b.nbytes) if b.plain and b.count else None
    return own.home if own is not None and own.lasts else (0, 0, 0, 0, 0)


def _wanted(source: int | None, tag: int | None) -> tuple[int, int]:
    return ANY if source is None else source, ANY if tag is None else tag
