"""What the verifier proves, each line of its claims by schedules that break it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from mpicoll.algorithms.steps import INPUT, OUTPUT, SCRATCH, Copy, Recv, RecvReduce, Schedule, Send, Step, one, run
from mpicoll.analysis.proof.verify import Proof, verify
from mpicoll.errors import ScheduleError

A = one(0)
SIGNAL = ()


def prove(collective: str, blocks: int, *ranks: tuple[Step, ...], root: int = 0, uneven: bool = False) -> Proof:
    """The proof of these steps of each rank."""
    schedules = [Schedule(collective, "example", blocks, steps) for steps in ranks]
    return verify(collective, root, schedules, uneven)


def fault(*args: Any, **options: Any) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        prove(*args, **options)
    return caught.value


class Fault(NamedTuple):
    """What the first fault is: rank, step, block, and words of the problem."""

    rank: int
    step: int | None
    block: int | None
    words: str

    def check(self, error: ScheduleError) -> None:
        assert (error.rank, error.step, error.block) == (self.rank, self.step, self.block), str(error)
        assert self.words in error.problem


GIVE = (Copy(A, INPUT, OUTPUT),)
TO_1, FROM_0 = (Send(1, A, INPUT),), (RecvReduce(0, A, INPUT, OUTPUT, False),)
TO_0, FROM_1 = (Send(0, A, INPUT),), (RecvReduce(1, A, INPUT, OUTPUT, True),)
ADD = (RecvReduce(0, A, OUTPUT, SCRATCH, True),)
RESULT_TO_1, RESULT_FROM_0 = (Send(1, A, OUTPUT),), (Recv(0, A, OUTPUT),)
"""Two ranks' allreduce: rank 1 gives its vector to rank 0 and gets the result."""


def test_a_proof_says_what_it_saw() -> None:
    proof = prove("allreduce", 1, (FROM_1, RESULT_TO_1), (TO_0, RESULT_FROM_0))
    assert (proof.messages, proof.depth) == (2, 1)
    assert [proof.symbols.shown(result[0]) for result in proof.results] == ["(0+1)", "(0+1)"]


# -- contributions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("collective", "blocks", "ranks", "expected"),
    [
        ("allreduce", 1, ((GIVE,), (GIVE,)), Fault(0, None, 0, "without the contribution of rank 1")),
        ("allreduce", 1, ((FROM_1,), (TO_0,)), Fault(1, None, 0, "ends without it")),
        (
            "allreduce",
            1,
            ((FROM_1, (RecvReduce(1, A, OUTPUT, OUTPUT, True),), RESULT_TO_1), (TO_0, TO_0, RESULT_FROM_0)),
            Fault(0, 1, 0, "counts rank 1 twice"),
        ),
        ("exscan", 1, ((TO_1,), (FROM_0,)), Fault(1, None, 0, "with the contribution of rank 1")),
        ("scan", 1, ((GIVE,), (GIVE,)), Fault(1, None, 0, "without the contribution of rank 0")),
        (
            "allgather",
            2,
            (
                ((Copy(A, INPUT, OUTPUT),), (Send(1, A, OUTPUT), Recv(1, one(1), OUTPUT))),
                ((Copy(one(1), INPUT, OUTPUT),), (Send(0, one(1), OUTPUT), Recv(0, one(1), SCRATCH))),
            ),
            Fault(1, 1, 1, "takes blocks 1 from rank 0, which sends 0 in its step 1"),
        ),
        (
            "alltoall",
            2,
            (
                ((Copy(A, INPUT, OUTPUT), Send(1, A, INPUT), Recv(1, one(1), OUTPUT)),),
                ((Copy(one(1), INPUT, OUTPUT), Send(0, A, INPUT), Recv(0, A, OUTPUT)),),
            ),
            Fault(1, None, 0, "ends with block 0 of rank 0, not 1 of 0"),
        ),
        ("bcast", 1, ((), ()), Fault(1, None, 0, "ends without it")),
        # Nothing is left over, and only reductions reduce.
        ("bcast", 1, ((), (RESULT_FROM_0,)), Fault(1, 0, 0, "waits forever for a message from rank 0")),
        ("bcast", 1, ((RESULT_TO_1,) * 2, (RESULT_FROM_0,)), Fault(0, 1, 0, "waits forever for rank 1 to receive")),
        ("bcast", 1, ((RESULT_TO_1,), (RESULT_FROM_0,) * 2), Fault(1, 1, 0, "waits forever for a message from rank 0")),
        ("bcast", 1, ((RESULT_TO_1,) * 2, (RESULT_FROM_0, ADD)), Fault(1, 1, 0, "reduces, which no bcast does")),
        # Output is written only where there is some, and the root of a bcast only reads.
        ("reduce", 1, ((FROM_1,), (GIVE, TO_0)), Fault(1, 0, 0, "writes output, which has no such block")),
        (
            "bcast",
            1,
            ((RESULT_TO_1, (Recv(1, A, OUTPUT),)), (RESULT_FROM_0, (Send(0, A, OUTPUT),))),
            Fault(0, 1, 0, "writes output"),
        ),
        # Runs of a message are the same at both ends.
        (
            "reduce",
            2,
            (((RecvReduce(1, (*A, *one(1)), INPUT, OUTPUT, True),),), ((Send(0, run(0, 2), INPUT),),)),
            Fault(0, 0, 0, "takes blocks 0, 1 from rank 1, which sends 0-1"),
        ),
        (
            "alltoall",
            3,
            (((Copy(run(0, 2), INPUT, SCRATCH),), (Copy(run(0, 2), SCRATCH, SCRATCH, run(1, 3)),)), (), ()),
            Fault(0, 1, 1, "reads scratch, and the same step writes scratch"),
        ),
    ],
)
def test_contributions_and_messages(collective: str, blocks: int, ranks: Any, expected: Fault) -> None:
    expected.check(fault(collective, blocks, *ranks))


def test_all_ranks_combine_in_one_order() -> None:
    exchange_0 = (Send(1, A, INPUT), RecvReduce(1, A, INPUT, SCRATCH, True))
    exchange_1 = (Send(0, A, INPUT), RecvReduce(0, A, INPUT, SCRATCH, True))
    last = (Copy(A, SCRATCH, OUTPUT),)
    Fault(1, None, 0, "another order than rank 0").check(fault("allreduce", 1, (exchange_0, last), (exchange_1, last)))
    right = (exchange_1[0], exchange_1[1]._replace(mine_first=False))
    prove("allreduce", 1, (exchange_0, last), (right, last))


# -- messages -----------------------------------------------------------------------------------------------------


def test_messages_meet_receives_in_the_order_in_which_both_name_them() -> None:
    down = tuple((Send(0, one(b), INPUT),) for b in (0, 1))
    up = tuple((RecvReduce(1, one(b), INPUT, OUTPUT, True),) for b in (0, 1))
    prove("reduce", 2, up, down)
    prove("reduce", 2, up, (down[0] + down[1],))
    prove("reduce", 2, (up[0] + up[1],), down)
    Fault(0, 0, 0, "takes blocks 0 from rank 1, which sends 1 in its step 0").check(fault("reduce", 2, up, down[::-1]))
    Fault(0, 0, 1, "takes blocks 1 from rank 1, which sends 0 in its step 0").check(
        fault("reduce", 2, (up[1] + up[0],), (down[0] + down[1],))
    )
    Fault(1, 1, 1, "waits forever for rank 0 to receive").check(fault("reduce", 2, up[:1], down))


def test_a_cycle_of_sends_is_a_deadlock_though_messages_might_be_stored() -> None:
    first_send = ((Send(1, A, INPUT),), (Recv(1, one(1), OUTPUT),), (Copy(A, INPUT, OUTPUT),))
    other = ((Send(0, one(1), INPUT),), (Recv(0, A, OUTPUT),), (Copy(one(1), INPUT, OUTPUT),))
    Fault(0, 0, 0, "waits forever for rank 1 to receive").check(fault("allgather", 2, first_send, other))
    at_once = (first_send[0] + first_send[1], first_send[2])
    prove("allgather", 2, at_once, (other[0] + other[1], other[2]))
    prove("allgather", 2, first_send, (other[1], other[0], other[2]))


# -- memory -------------------------------------------------------------------------------------------------------


TWO = run(0, 2)


@pytest.mark.parametrize(
    ("of_0", "expected"),
    [
        ((RESULT_TO_1,), Fault(0, 0, 0, "reads output, which does not hold it")),
        (((Copy(A, SCRATCH, OUTPUT),), RESULT_TO_1), Fault(0, 0, 0, "reads scratch, which does not hold it")),
        ((GIVE, (Copy(A, INPUT, SCRATCH),)), Fault(0, 1, 0, "to keep the input, receive into scratch")),
        (((Copy(TWO, INPUT, OUTPUT), Send(1, one(1), INPUT)),), Fault(0, 0, 1, "reads input, and the same step")),
        (((Copy(TWO, INPUT, OUTPUT), Send(1, A, OUTPUT)),), Fault(0, 0, 0, "reads output, and the same step")),
        (((Copy(TWO, INPUT, OUTPUT), Copy(A, INPUT, OUTPUT)),), Fault(0, 0, 0, "writes output twice in one step")),
        (((Copy((*TWO, *A), INPUT, OUTPUT),),), Fault(0, 0, 0, "writes output twice in one step")),
        (((Recv(1, (*A, *A), OUTPUT),),), Fault(0, 0, 0, "writes output twice in one step")),
        (((Copy(A, INPUT, SCRATCH), Copy(A, SCRATCH, OUTPUT)),), Fault(0, 0, 0, "reads input, and the same step")),
        (
            ((Recv(1, one(1), SCRATCH), RecvReduce(1, one(1), SCRATCH, OUTPUT, True)),),
            Fault(0, 0, 1, "reads scratch, and the same step writes scratch"),
        ),
        (((Recv(1, A, INPUT),),), Fault(0, 0, 0, "writes input")),
        (((Copy(A, OUTPUT, INPUT),),), Fault(0, 0, 0, "writes input")),
        (((Copy(A, INPUT, SCRATCH, one(1)),),), Fault(0, 0, 1, "copies blocks 0 to 1, whose sizes may differ")),
        ((Copy(A, INPUT, OUTPUT),), Fault(0, 0, None, "a comma is missing")),
        (([*GIVE],), Fault(0, 0, None, "is not a tuple of actions")),
    ],
)
def test_memory_in_allreduce(of_0: Any, expected: Fault) -> None:
    expected.check(fault("allreduce", 2, of_0, ()))


# -- blocks of different sizes in an alltoall ---------------------------------------------------------------------


DIRECT = (
    ((Copy(A, INPUT, OUTPUT), Send(1, one(1), INPUT), Recv(1, one(1), OUTPUT)),),
    ((Copy(one(1), INPUT, OUTPUT), Send(0, A, INPUT), Recv(0, A, OUTPUT)),),
)


def test_an_alltoall_of_uneven_blocks_is_direct() -> None:
    prove("alltoall", 2, *DIRECT, uneven=True)
    through_scratch = ((Copy(one(1), INPUT, SCRATCH),), (*DIRECT[0][0][:1], Send(1, one(1), SCRATCH), DIRECT[0][0][2]))
    prove("alltoall", 2, through_scratch, DIRECT[1])
    Fault(0, 0, 1, "sizes may differ").check(fault("alltoall", 2, through_scratch, DIRECT[1], uneven=True))
    wrong = ((DIRECT[1][0][0], Send(0, A, INPUT), Recv(0, one(0), SCRATCH)), (Copy(A, SCRATCH, OUTPUT),))
    prove("alltoall", 2, DIRECT[0], wrong)
    prove("alltoall", 2, DIRECT[0], wrong, uneven=True)  # OUTPUT's and SCRATCH's blocks are of the same size
    relayed = ((*DIRECT[1][0][:2], Recv(0, one(1), SCRATCH)), (Copy(one(1), SCRATCH, OUTPUT, A),))
    prove("alltoall", 2, DIRECT[0], relayed)
    Fault(1, 0, 1, "takes blocks 1 from rank 0, which sends 1").check(
        fault("alltoall", 2, DIRECT[0], relayed, uneven=True)
    )


# -- barriers -----------------------------------------------------------------------------------------------------


def test_a_barrier_is_left_when_all_have_entered() -> None:
    def to(peer: int) -> tuple[Step, ...]:
        return ((Send(peer, SIGNAL, INPUT),),)

    def from_(peer: int) -> tuple[Step, ...]:
        return ((Recv(peer, SIGNAL, SCRATCH),),)

    prove("barrier", 0, from_(1) + from_(2) + to(1) + to(2), to(0) + from_(0), to(0) + from_(0))
    error = fault("barrier", 0, from_(1) + to(1) + from_(2) + to(2), to(0) + from_(0), to(0) + from_(0))
    Fault(1, None, None, "without having heard of rank 2").check(error)
    both = ((*to(1)[0], *from_(1)[0]),), ((*to(0)[0], *from_(0)[0]),)
    prove("barrier", 0, *both)
    Fault(0, None, None, "without having heard of rank 1").check(fault("barrier", 0, to(1), from_(0)))


def test_what_is_sent_in_a_step_is_not_heard_in_it() -> None:
    """Rank 1 passes on in one step what it may not have heard yet."""
    rank_0, rank_1 = ((Send(1, SIGNAL, INPUT),),), ((Recv(0, SIGNAL, SCRATCH), Send(2, SIGNAL, INPUT)),)
    rank_2 = ((Recv(1, SIGNAL, SCRATCH),), (Send(0, SIGNAL, INPUT), Send(1, SIGNAL, INPUT)))
    back = ((Recv(2, SIGNAL, SCRATCH),),)
    Fault(2, None, None, "heard of rank 0").check(fault("barrier", 0, rank_0 + back, rank_1 + back, rank_2))
    after = (rank_1[0][:1], rank_1[0][1:])
    prove("barrier", 0, rank_0 + back, after + back, rank_2)


# -- what is no schedule ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (Send(2, A, INPUT), Fault(0, 1, None, "rank 2 as its peer: there are ranks 0 to 1")),
        (Send(0, A, INPUT), Fault(0, 1, None, "itself as its peer")),
        (Send(1.0, A, INPUT), Fault(0, 1, None, "rank 1.0 as its peer: there are ranks 0 to 1")),  # type: ignore[arg-type]
        (Recv(1, (range(-1, 1),), OUTPUT), Fault(0, 1, -1, "range(-1, 1): there are blocks 0 to 1")),
        (Recv(1, (range(1, 1),), OUTPUT), Fault(0, 1, 1, "range(1, 1): there are blocks 0 to 1")),
        (Recv(1, (range(0, 2, 2),), OUTPUT), Fault(0, 1, 0, "range(0, 2, 2): there are blocks 0 to 1")),
        (Recv(1, 0, OUTPUT), Fault(0, 1, None, "no tuple of ranges")),  # type: ignore[arg-type]
        (Copy(A, INPUT, SCRATCH, run(0, 2)), Fault(0, 1, 0, "copies blocks 0 to 0-1")),
        (Copy(A, "inbox", SCRATCH), Fault(0, 1, None, "reads 'inbox', which is no space")),  # type: ignore[arg-type]
        (Copy(A, INPUT, "outbox"), Fault(0, 1, 0, "writes outbox")),  # type: ignore[arg-type]
        (("send", 1), Fault(0, 1, None, "('send', 1), which is no action")),
        (None, Fault(0, 1, None, "None, which is no action")),
    ],
)
def test_malformed_actions(action: Any, expected: Fault) -> None:
    expected.check(fault("allreduce", 2, ((), (action,)), ()))


@pytest.mark.parametrize(
    ("of_0", "of_1", "rank", "words"),
    [
        (0, 0, 0, "0 blocks, not at least 1"),
        (-1, -1, 0, "-1 blocks, not at least 1"),
        (1.5, 1.5, 0, "1.5 blocks, not at least 1"),
        (2, 3, 1, "into 3 blocks, rank 0 into 2"),
    ],
)
def test_numbers_of_blocks(of_0: Any, of_1: Any, rank: int, words: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        verify("allreduce", 0, [Schedule("allreduce", "example", blocks, ()) for blocks in (of_0, of_1)])
    Fault(rank, None, None, words).check(caught.value)


# -- which fault is the first -------------------------------------------------------------------------------------


def test_the_first_fault_is_that_of_the_earliest_step_then_of_the_lowest_rank() -> None:
    """Rank 0 is looked at first, and finds its own fault at once; those of others come from messages, later."""
    bad = (Copy(A, OUTPUT, SCRATCH),)
    nothing: Step = ()
    late, early = (nothing, nothing, nothing, bad), (nothing, bad)
    Fault(1, 1, 0, "reads output").check(fault("allreduce", 1, late, early, early))
    waits = ((Recv(2, A, OUTPUT),), nothing, (Copy(A, INPUT, SCRATCH),))
    Fault(1, 2, 0, "reads input, after").check(
        fault("allreduce", 1, late, waits, (*[nothing] * 9, (Send(1, A, INPUT),)))
    )
    both = (Recv(1, A, SCRATCH),), (Send(0, A, OUTPUT),)
    Fault(1, 0, 0, "reads output").check(fault("allreduce", 1, (both[0], *late), (both[1],)))


def test_the_text_names_all() -> None:
    error = fault("reduce", 1, (FROM_1,), ((Send(0, A, OUTPUT),),), root=0)
    assert (
        str(error) == "reduce example of 2 ranks, root 0: rank 1, step 0, block 0: reads output, which does not hold it"
    )
