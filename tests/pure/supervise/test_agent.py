"""A process and its connection to the coordinator: lost, made again, or never made, and strangers at the same port."""

from __future__ import annotations

import asyncio

import pytest

from mpicoll.supervise import coordinator, ending, wire
from mpicoll.supervise.messages import Ends
from mpicoll.supervise.record import BROKEN, FREED, OPEN, Pending, Record, Recorder, Waits
from mpicoll.supervise.report import Why
from mpicoll.supervise.watched import HEARTBEAT, Watched
from mpicoll.supervise.wire import connect
from tests.pure.supervise.invented import FASTER, Job, begin, ends, give_up_soon, looks, scene, until

Output = pytest.CaptureFixture[str]


@pytest.mark.slow
@scene()
async def test_a_connection_is_lost_and_made_again(it: Job, capfd: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    give_up_soon(monkeypatch)
    monkeypatch.setattr(coordinator, "_SECONDS_OF_THE_LAUNCHER", 5.0 * FASTER)  # a connection is made no faster
    it.make()
    await until(lambda: it.compared() == 1)
    for _ in range(3):
        it.coordinator._processes[1].writer.transport.abort()
        await looks(3)
        for recorder in it.recorders:
            begin(recorder, "bcast")
        await looks(20)
        for recorder in it.recorders:
            recorder.under_way = False
    await until(lambda: it.compared() == 4)
    await it.all_leave()
    assert not ends


STRANGERS = {
    "nothing": b"",
    "an empty line": b"\n",
    "bytes": b"\xff\x00\x80" * 999 + b"\n",
    "brackets": b"[" * 100_000 + b"\n",
    "a guess": b'{"Nonce": ["x"]}\n{"Hello": ["guess", 0, {"Process": [1, "host", 1]}]}\n',
    "letters": b'{"Nonce": ["x"]}\n{"Hello": ["\xc3\xa9", 0, {"Process": [1, "host", 1]}]}\n',
    "half a letter": b'{"Nonce": ["\\ud800"]}\n{"StatusUpdate": [[], "", true, true, [], 0, false]}\n',
    "a browser": b"GET / HTTP/1.1\r\n\r\n",
    "a list": b"[1, 2]\n",
    "another type": b'{"Nonce": [{"x": 1}]}\n{"Hello": [[], [], []]}\n',
}


@pytest.mark.parametrize("said", STRANGERS.values(), ids=STRANGERS)
@scene()
async def test_strangers(it: Job, said: bytes, capfd: Output) -> None:
    """Whoever speaks to the port without the job's token changes nothing, even by staying."""
    _, writer = await asyncio.open_connection("127.0.0.1", it.rendezvous.port)
    writer.write(said)
    it.make(times=4)
    await until(lambda: it.compared() == 4)
    assert 0 not in it.coordinator._processes or it.coordinator._processes[0].writer is not writer
    await it.all_leave()
    writer.close()
    assert not ends
    assert capfd.readouterr().err == ""


@scene()
async def test_the_coordinator_is_gone(it: Job) -> None:
    """A rank that waits in a call ends the job; one that comes to its end just ends."""
    it.make()
    await until(lambda: it.compared() == 1)
    begin(it.recorders[1], "bcast")
    it.looking.cancel()
    it.server.close()
    for process in it.coordinator._processes.values():
        process.writer.transport.abort()
    it.ranks[2].agent.leave()
    await until(it.ranks[2].ended)
    assert not ends
    await until(lambda: bool(ends))
    it.ranks[1].agent.may_leave.set()


@pytest.mark.parametrize(
    ("state", "is_first", "speaks"),
    [("open", True, True), ("leaving", True, True), ("may leave", True, False), ("open", False, False)],
)
@scene()
async def test_the_coordinator_was_killed(
    it: Job, state: str, is_first: bool, speaks: bool, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next rank says so before it goes, unless another one has ended the coordinator, and has said why. Gloo raises
    an error in the next rank, too, which ends its program: it may be leaving when it sees the loss. When all ranks may
    leave, the end of the coordinator's program is its own affair."""
    monkeypatch.setattr(ending, "exit_reason", lambda _: "its process was killed")
    monkeypatch.setattr("mpicoll.supervise.agent.is_first", lambda what: is_first)
    it.make()
    await until(lambda: it.compared() == 1)
    if state == "may leave":
        await it.all_leave()
    elif state == "leaving":
        it.ranks[1].agent.leave()
    it.looking.cancel()
    it.server.close()
    it.coordinator._dismissed.set()  # it is gone, and says nothing
    for process in it.coordinator._processes.values():
        process.writer.transport.abort()
    await until(lambda: it.ranks[1].agent._lost)
    for rank in it.ranks:
        rank.agent.may_leave.set()
    said = capfd.readouterr().err
    assert said.startswith(f"mpicoll: {Why.IS_LOST.said()} (communicator of") if speaks else said == "", said


@scene(timeout=5.0)
async def test_a_rank_that_has_long_not_heard_of_the_coordinator_comes_to_its_end(it: Job) -> None:
    """It asks seldom while it computes. That is no silence of the coordinator."""
    it.make()
    await until(lambda: it.compared() == 1)
    agent = it.ranks[2].agent
    agent._silent = HEARTBEAT
    agent.leave()
    agent._check_coordinator()
    await it.all_leave()
    assert not ends


@pytest.mark.parametrize(("makes_one", "told"), [(True, (2, FREED)), (False, (0, BROKEN))])
def test_a_communicator_ends_during_a_look(makes_one: bool, told: tuple[int, str]) -> None:
    """What is told of its state and what is told of its calls belong together: a call that ends midway is not told as
    one of a communicator that is open."""

    class Ending(Recorder):
        @property
        def begun(self) -> int:
            found = super().begun
            if self.state == OPEN and makes_one:
                self.under_way = False
                self.begin(Record("barrier"))
                self.state, self.under_way = FREED, False
            elif self.state == OPEN:
                self.close()
            return found

    recorder = Ending()
    recorder.begin(Record("barrier"))
    found = Watched("c", [0], recorder, Waits(), 600.0, True).state()
    assert (found.calls, found.state) == told


@pytest.mark.parametrize(
    ("says", "refused"),
    [
        (b'{"Welcome": ["guess", "mine", {"Process": [1, "host", 1]}]}\n', "another program listens there"),
        (b"", "127.0.0.1: no answer"),
    ],
)
def test_a_stranger_who_listens_learns_nothing(says: bytes, refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The port of a job may be another program's on another node: it gets no token, and no connection stays open."""
    heard_there: list[bytes] = []
    if not says:
        monkeypatch.setattr(wire, "_SECONDS_TO_BE_GREETED", 0.1)

    async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard_there.append(await reader.readline())
        writer.write(says)
        heard_there.append(await reader.read(1000))
        writer.close()
        done.set()

    done = asyncio.Event()

    async def scene() -> None:
        server = await asyncio.start_server(stranger, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(OSError, match=refused):
            await connect(["127.0.0.1"], port, "the token of the job", 1)
        await asyncio.wait_for(done.wait(), 60)
        server.close()

    asyncio.run(scene())
    assert heard_there[1] == b""
    assert b"token" not in heard_there[0]


@pytest.mark.parametrize(("ranks", "also"), [([0, 1, 2], ""), ([3, 4, 5], ": rank 4 of the job")])
def test_a_message_of_another_rank_in_the_job(ranks: list[int], also: str) -> None:
    """A communicator of some ranks has numbers of its own, and tables have those of the job."""
    pending = Pending.message("recv", "came from rank 1 (tag 0)", 1, "int64", Ends([1]))
    status = Watched("c", ranks, Recorder(), Waits([(pending, 0.0)]), 600.0, False).status(None)
    assert status.message == f"recv: no message came from rank 1 (tag 0){also}"
    assert status.ends.sources == [ranks[1]]
