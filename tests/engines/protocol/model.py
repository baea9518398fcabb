"""The life of one page as a small machine, all of whose interleavings can be walked.

A page belongs to A, then to B of another tenant. Meanwhile steps run, transfers land and the
allocator works, each in its own time. A world says what can go wrong, a policy what is done about
it; `explore` tells whether any order of events lets a token out that was made from another's bytes.

Limits: one page of two slots, two requests, two steps of A, one of B; every event is seen by all at
once. No weak memory, and no second rank.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

A_READS_B = "A reads B"
B_CORRUPT = "B corrupt"
BEFORE, AFTER = CHECKS = ("verify", "verify again")
JUDGED = (AFTER, "publish")  # in overlap not before the next step runs, but in the steps' order


@dataclass(frozen=True)
class World:
    """What there is to guard against."""

    executors: int = 1  # 2: A's steps and B's run side by side
    overlap: bool = False  # a step runs while the ones before it are still to be judged
    other_writer: bool = False  # B's page is filled by a NIC or a process, not by a step
    old_transfer: bool = False  # a write into A's page is still on its way
    freed_early: bool = False  # the allocator's fault: frees the page, and A goes on
    fence_bypassed: bool = False  # and doesn't wait for any fence


@dataclass(frozen=True)
class Policy:
    """What is done about it."""

    enqueue: bool = False  # the tag is compared when a step is prepared
    before: bool = False  # when it starts to run
    after: bool = False  # when it has run, before its token leaves
    poison: bool = False  # who fails after having written takes the page out of use
    step_fence: bool = False  # no page is free while a step that knows it is under way
    transfer_fence: bool = False  # nor while a transfer is
    landing: bool = False  # a transfer's bytes are moved to the page only under the right tag
    mirror: bool = False  # checks read a copy of the tags that is updated in the steps' order


class Step(NamedTuple):
    """Queued work: whose, what is left to do, and what it has read."""

    owner: str
    todo: tuple[str, ...]
    seen: tuple[str, ...] = ()


class State(NamedTuple):
    """One moment."""

    tag: str = "A"
    slots: tuple[str, str] = ("A", "A")  # whose bytes lie there
    a: str = "runs"  # or "has ended"
    a_steps: int = 2  # still to be prepared
    page: str = "held"  # by A; then retiring, free, reused
    transfer: bool = False  # A's, on its way
    b: str = "waits"  # for a page; then loading, filled, asked
    queues: tuple[tuple[Step, ...], ...] = ((), ())  # of each executor; the last is to be judged
    mirror: str = "A"


class Move(NamedTuple):
    """Something that can happen next."""

    name: str
    state: State
    published: str | None = None  # "A", "B", or what went wrong


@dataclass(frozen=True)
class Model:
    """A policy in a world."""

    world: World
    policy: Policy

    def __post_init__(self) -> None:
        ordered = self.world.overlap or self.policy.mirror
        assert self.world.executors == 1 or not ordered, "the steps' order is one executor's"

    def start(self) -> State:
        """A holds the page, and nothing is under way but the old transfer, if there is one."""
        queues = ((),) * (self.world.executors + 1)
        return State(transfer=self.world.old_transfer, queues=queues)

    def moves(self, state: State) -> Iterator[Move]:
        """All that can happen next."""
        yield from self._requests(state)
        yield from self._allocator(state)
        yield from self._transfers(state)
        for number, queue in enumerate(state.queues):
            if queue:
                yield self._go_on(state, number)

    @property
    def _executor_of_b(self) -> int:
        return self.world.executors - 1

    def _step(self, owner: str, *work: str) -> Step:
        before = (BEFORE,) if self.policy.before else ()
        after = (AFTER,) if self.policy.after else ()
        return Step(owner, (*before, *work, *after, "publish"))

    def _requests(self, state: State) -> Iterator[Move]:
        if state.a == "runs" and state.a_steps > 0:
            if self.policy.enqueue and state.tag != "A":
                yield Move("A is refused", state._replace(a="has ended"))
            else:
                asked = _queued(state, 0, self._step("A", "read", "append"))
                yield Move("A enqueues", asked._replace(a_steps=state.a_steps - 1))
        if state.b == "filled":
            asked = _queued(state, self._executor_of_b, self._step("B", "read"))
            yield Move("B enqueues", asked._replace(b="asked"))

    def _allocator(self, state: State) -> Iterator[Move]:
        if state.page == "held":
            if self.world.freed_early:
                yield Move("the page is freed too early", state._replace(page="retiring"))
            else:
                yield Move("A is aborted", state._replace(page="retiring", a="has ended"))
        if state.page == "retiring" and not self._is_fenced(state):
            yield Move("free", self._retagged(state._replace(page="free"), "free"))
        if state.page == "free" and state.tag == "free":
            given = self._retagged(state._replace(page="reused", b="loading"), "B")
            if not self.world.other_writer:
                given = _queued(given, self._executor_of_b, Step("B", ("refill",)))
                given = given._replace(b="filled")
            yield Move("allocate for B", given)

    def _is_fenced(self, state: State) -> bool:
        steps = any(step.owner == "A" for queue in state.queues[:-1] for step in queue)
        by_step = self.policy.step_fence and steps
        by_transfer = self.policy.transfer_fence and state.transfer
        return (by_step or by_transfer) and not self.world.fence_bypassed

    def _transfers(self, state: State) -> Iterator[Move]:
        if state.transfer:
            landed = state._replace(transfer=False)
            if not self.policy.landing or state.tag == "A":
                landed = landed._replace(slots=("A", "A"))
            yield Move("A's transfer lands", landed)
        if state.b == "loading" and (not self.policy.landing or state.tag == "B"):
            yield Move("B is refilled", state._replace(b="filled", slots=("B", "B")))

    def _go_on(self, state: State, number: int) -> Move:
        """The next thing that is done in a queue."""
        step, *rest = state.queues[number]
        doing, *todo = step.todo
        name = f"{step.owner}: {doing}"
        if doing in CHECKS and not self._is_right(state, step.owner):
            failed = _with_queue(state, number, rest)
            if step.owner == "A":
                failed = failed._replace(a="has ended")
            if self.policy.poison and doing == AFTER:
                failed = self._retagged(failed, "quarantined")
            return Move(f"{name}, fails", failed)
        left = Step(step.owner, tuple(todo), state.slots if doing == "read" else step.seen)
        if left.todo and left.todo[0] in JUDGED and self.world.overlap:
            done = _queued(_with_queue(state, number, rest), -1, left)
        else:
            done = _with_queue(state, number, [left, *rest] if left.todo else rest)
        match doing:
            case "append":
                done = done._replace(slots=(state.slots[0], step.owner))
            case "refill":
                done = done._replace(slots=("B", "B"))
            case "mirror":
                done = done._replace(mirror=step.owner)
        return Move(name, done, _published(step) if doing == "publish" else None)

    def _is_right(self, state: State, owner: str) -> bool:
        return owner == (state.mirror if self.policy.mirror else state.tag)

    def _retagged(self, state: State, tag: str) -> State:
        changed = state._replace(tag=tag)
        return _queued(changed, 0, Step(tag, ("mirror",))) if self.policy.mirror else changed


def explore(model: Model) -> dict[str, list[str]]:
    """What can be published ("A" and "B" are right), each with a shortest way there."""
    start = model.start()
    came_by: dict[State, tuple[State, str] | None] = {start: None}
    found: dict[str, list[str]] = {}
    todo = deque([start])
    while todo:
        state = todo.popleft()
        for move in model.moves(state):
            if move.published is not None and move.published not in found:
                found[move.published] = [*_way_to(state, came_by), move.name]
            if move.state not in came_by:
                came_by[move.state] = (state, move.name)
                todo.append(move.state)
    return found


def _way_to(state: State, came_by: dict[State, tuple[State, str] | None]) -> list[str]:
    names: list[str] = []
    while (step := came_by[state]) is not None:
        state, name = step
        names.append(name)
    return names[::-1]


def _published(step: Step) -> str:
    if set(step.seen) == {step.owner}:
        return step.owner
    return A_READS_B if step.owner == "A" else B_CORRUPT


def _queued(state: State, number: int, step: Step) -> State:
    return _with_queue(state, number, [*state.queues[number], step])


def _with_queue(state: State, number: int, queue: list[Step]) -> State:
    queues = list(state.queues)
    queues[number] = tuple(queue)
    return state._replace(queues=tuple(queues))
