"""The cables of emulated nodes: a frame arrives when a real cable of this rate and delay would deliver it.

Not ``tc``: its ``tbf`` lets some frames pass at once, which no cable does, and many kernels lack ``netem``. Needs
``/dev/net/tun``, and nothing but the standard library."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import struct
import time
from collections import deque
from dataclasses import dataclass, field

TUN = "/dev/net/tun"
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
FRAME = 1 << 16
"""Bytes. No frame is longer."""
GAP = 24
"""Bytes: what a frame occupies on an Ethernet cable besides its own, which are preamble, checksum and pause."""


Cable = tuple[int, int]
"""The file descriptors of the devices at its ends: at the switch, and at the node."""


@dataclass(frozen=True)
class Link:
    """What the cable between a node and the switch can carry, in each direction."""

    rate: float | None = None
    """Bits a second. None is as many as the machine can."""
    delay: float = 0.0
    """Seconds from one end to the other."""


@dataclass
class Way:
    """One direction of a cable."""

    begins: int
    ends: int
    """The file descriptors of both devices."""
    to_switch: bool
    """A switch passes a frame on while it comes in. A node needs the whole of it."""
    free: float = 0.0
    """When the last frame has left the sender."""
    frames: deque[tuple[float, bytes]] = field(default_factory=deque)
    """Those that are on their way, and when each arrives."""

    def take(self, link: Link) -> None:
        """Let the sender's next frame leave."""
        frame = os.read(self.begins, FRAME)
        leaves = max(self.free, time.monotonic())
        self.free = leaves + (0.0 if link.rate is None else 8 * (len(frame) + GAP) / link.rate)
        self.frames.append((link.delay + (leaves if self.to_switch else self.free), frame))

    def give(self) -> None:
        """Deliver the frames that have arrived by now."""
        while self.frames and self.frames[0][0] <= time.monotonic():
            frame = self.frames.popleft()[1]
            try:
                os.write(self.ends, frame)
            except OSError as error:
                if error.errno != errno.EIO:  # the device is down: the frame is lost
                    raise


def plug(device: str) -> int:
    """Make a network device of this name, and return the file descriptor of its cable."""
    cable = os.open(TUN, os.O_RDWR)
    fcntl.ioctl(cable, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TAP | IFF_NO_PI))
    return cable


def carry(cables: list[Cable], link: Link, until: int) -> None:
    """Carry frames between both ends of each cable, until the file ``until`` can be read."""
    ways = {at_switch: Way(at_switch, at_node, to_switch=False) for at_switch, at_node in cables}
    ways |= {at_node: Way(at_node, at_switch, to_switch=True) for at_switch, at_node in cables}
    if ways:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # a cable does not wait for a core
    while True:
        arrivals = [way.frames[0][0] for way in ways.values() if way.frames]
        wait = max(min(arrivals) - time.monotonic(), 0.0) if arrivals else None
        ready = select.select([until, *ways], [], [], wait)[0]
        if until in ready:
            return
        for each in ready:
            ways[each].take(link)
        for way in ways.values():
            way.give()
