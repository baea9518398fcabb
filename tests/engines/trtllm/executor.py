"""TensorRT-LLM's executor loop as far as a connector can tell, with a ledger that is told the same.

After PyExecutor and KvCacheConnectorSchedulerOutputManager: blocks are given; the lists of the
scheduled requests are told as what they gained since they were last told; the pass runs over the
lists. Whoever ends by its length is told of, a cancelled request isn't. How much was told of an id
is never forgotten: of an id that comes again less is told than there is.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from copy import deepcopy

from engines.trtllm.rows import Scheduled
from engines.trtllm.shadow import Shadow
from engines.trtllm.violations import Violation
from tests.engines.trtllm.block_manager import BlockManager, NoRoom
from tests.engines.trtllm.memory import Memory
from tests.engines.trtllm.setups import Request, Setup

# Called with a point, a request and its list, which it may change:
#   "given"  after a request got its blocks     "grown"  after it gained one
#   "listed" before its list is told            "table"  the copy that the pass reads
Meddle = Callable[[str, Request, list[int]], None]


class Executor:
    """Runs a step at a time. `harmed`, `confused`, `misled` are who read what in the last one."""

    def __init__(self, setup: Setup, seed: int = 0, shadow: Shadow | None = None) -> None:
        self.setup, self._chance = setup, random.Random(seed)
        self.shadow = shadow or Shadow(
            setup.size,
            requires_salt=True,
            num_blocks=setup.num_blocks,
            is_overlapped=setup.overlaps,
        )
        self.memory = Memory(setup.num_blocks, setup.size)
        self.manager = BlockManager(
            setup.num_blocks,
            setup.size,
            self.memory.copy,
            reuses=setup.reuses,
            partial=setup.partial,
        )
        self.meddle: Meddle = lambda point, request, blocks: None
        self.flaws = self.manager.flaws
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.harmed: list[Request] = []  # read a slot of another salt
        self.confused: list[Request] = []  # read a slot that says something else
        self.misled: list[Request] = []  # read both in one, in a slot taken on trust
        self.num_run = 0  # requests in the last step
        self.num_cancelled = 0
        self.told: list[Violation] = []  # all of them
        self._seen: dict[int, list[int]] = {}  # blocks and tokens told of each id
        self.blamed: set[Request] = set()  # whom any violation names
        self.warned: set[Request] = set()  # the same, before the last step's pass
        self._by_id: dict[int, Request] = {}
        self._unheard: list[tuple[Request, int]] = []  # whose token the loop hears next
        self._salts: dict[str, int] = {}

    # What comes from outside

    def submit(self, id_: int, salt: str, prompt: list[int], max_tokens: int) -> Request:
        request = Request(id_, salt, list(prompt), len(prompt) + max_tokens, known=len(prompt))
        for token in prompt:
            request.say(token)
        self.waiting.append(request)
        return request

    def cancel(self, request: Request) -> None:
        """It is gone, and mostly nobody tells."""
        if request.is_over:
            return
        if self.setup.tells_cancels and request.has_blocks:
            self._tell(self.shadow.finished(request.id))
        self.num_cancelled += 1
        self._leave(request)

    def fail_all(self) -> None:
        """As after a request that only generates: the connector refuses it, and all fail."""
        for request in list(self.running):
            self._leave(request)

    def pause(self, request: Request) -> None:
        """Its blocks go to others; later it begins anew with what it has said so far."""
        self._release(request)
        self.running.remove(request)
        del request.all[request.known :], request.texts[request.known :]
        request.prompt = list(request.all)
        request.position, request.run = 0, request.run + 1
        self.waiting.appendleft(request)

    # A step

    def step(self) -> list[Violation]:
        """What was told in it."""
        before = len(self.told)
        self._admit()
        batch = self._prepared(self._scheduled())
        self._tell(self.shadow.step([self._item(*pair) for pair in batch]))
        begins = [request for request, num in batch if request.is_prefilling and num > 8]
        if begins and self.flaws & {"a pass breaks off", "a pass breaks off untold"}:
            self._break_off(begins)
            return self.told[before:]
        heard, self._unheard = self._unheard, self._run(batch)
        if not self.setup.overlaps:
            heard, self._unheard = self._unheard, []
        for request, run in heard:
            self._hear(request, run)
        return self.told[before:]

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.setup.batch:
            if self._blocks_to_come(self.waiting[0]) > self._blocks_left():
                return
            self.running.append(self.waiting.popleft())

    def _blocks_left(self) -> int:
        return len(self.manager.free) - sum(map(self._blocks_to_come, self.running))

    def _blocks_to_come(self, request: Request) -> int:
        """To its end, with a token for the lag; or if requests can be paused, for its prompt."""
        most = len(request.prompt) if self.setup.pauses else request.length + 1
        has = len(self.blocks_of(request)) if request.has_blocks else 0
        return max(-(-most // self.setup.size) - has, 0)

    def _scheduled(self) -> list[Request]:
        """Not all of those that run are in each step."""
        batch = [request for request in self.running if self._chance.random() < 0.9]
        batch.sort(key=lambda request: not request.is_prefilling)
        return batch

    def _prepared(self, batch: list[Request]) -> list[tuple[Request, int]]:
        """Each with as many tokens as it has blocks for."""
        prepared: list[tuple[Request, int]] = []
        for request in batch:
            if request not in self.running:
                continue  # paused for another
            try:
                num = self._with_blocks(request)
            except NoRoom:
                if not self.setup.pauses:
                    raise
                self._make_room(request, prepared)
                continue
            prepared.append((request, num))
        return prepared

    def _make_room(self, request: Request, prepared: list[tuple[Request, int]]) -> None:
        """One that isn't in this step yet is paused."""
        if not request.has_blocks:
            self.running.remove(request)
            self.waiting.appendleft(request)
            return
        taken = {one for one, _ in prepared}
        self.pause(
            next(one for one in reversed(self.running) if one.has_blocks and one not in taken)
        )

    def _with_blocks(self, request: Request) -> int:
        """How many tokens it computes, with the blocks for them. Raises NoRoom."""
        if not request.is_prefilling:
            self.manager.add_token(request.id)
            if request.position % self.setup.size == 0:
                self.meddle("grown", request, self.blocks_of(request))
            return 1
        if not request.has_blocks:
            self._give(request)
        end = min(request.position + self.setup.chunk, len(request.prompt))
        if end < len(request.prompt):
            end = max(end // self.setup.size * self.setup.size, request.position + 1)
        return end - request.position

    def _give(self, request: Request) -> None:
        before = deepcopy(self.memory)
        request.position = self.manager.add_sequence(request.id, request.salt, request.prompt)
        request.reused = request.position
        if "counts more than it found" in self.flaws:
            more = request.position + self.setup.size
            request.position = more if more < len(request.prompt) else request.position
        request.has_blocks = True
        self._by_id[request.id] = request
        blocks = self.blocks_of(request)
        self.meddle("given", request, blocks)
        found = request.texts[: request.position]
        self.memory.trust(before, blocks, self._salt(request), found)
        told = self.shadow.allocated(
            request.id, request.salt, list(blocks), request.position, request.prompt
        )
        self._tell(told)
        is_whole = len(request.prompt) - request.position <= self.setup.chunk
        if (self.setup.shares_at_once and is_whole) or "stores what isn't computed" in self.flaws:
            self.manager.store(request.id, request.prompt[:-1], is_partial=False)

    def _item(self, request: Request, num: int) -> Scheduled:
        blocks, tokens = self.blocks_of(request), request.all[: request.known]
        self.meddle("listed", request, blocks)
        seen = self._seen.setdefault(request.id, [0, 0])
        new_blocks, new_tokens = blocks[seen[0] :], tokens[seen[1] :]
        seen[0] += len(new_blocks)
        seen[1] += len(new_tokens)
        position = request.position if request.is_prefilling else len(tokens) - 1
        table = list(blocks) if self.setup.tables else None
        return Scheduled(request.id, new_blocks, position, num, new_tokens, table)

    def _run(self, batch: list[tuple[Request, int]]) -> list[tuple[Request, int]]:
        """The forward pass. Whose token it yields."""
        self.num_run, self.warned = len(batch), set(self.blamed)
        tables = [self._written(request, num) for request, num in batch]
        self.harmed, self.confused, self.misled = [], [], []
        for (request, num), table in zip(batch, tables, strict=True):
            texts = request.texts[: request.position + num]
            read = self.memory.read(table, self._salt(request), texts)
            self.harmed += [request] * read.is_foreign
            self.confused += [request] * read.is_wrong
            self.misled += [request] * read.is_misled
        return [(one, one.run) for one, num in batch if self._is_answered(one, num)]

    def _break_off(self, begun: list[Request]) -> None:
        """All fail, and their blocks can be found as if computed. Clients ask again."""
        if "a pass breaks off" in self.flaws:
            self.shadow.failed()
        self.flaws -= {"a pass breaks off", "a pass breaks off untold"}
        self.harmed, self.confused, self.misled = [], [], []
        for request in [request for request in self.running if request.has_blocks]:
            request.position = max(request.position, request.known - 1)
            self._leave(request)
        for request in begun:
            self.submit(-request.id - 1, request.salt, request.prompt, 4)

    def _written(self, request: Request, num: int) -> list[int]:
        """The table that its pass reads, once it has written its tokens."""
        table = list(self.blocks_of(request))
        self.meddle("table", request, table)
        texts = request.texts[request.position : request.position + num]
        self.memory.write(table, self._salt(request), request.position, texts)
        return table

    def _salt(self, request: Request) -> int:
        return self._salts.setdefault(request.salt, len(self._salts) + 1)

    def _is_answered(self, request: Request, num: int) -> bool:
        was_prefilling = request.is_prefilling
        request.position += num
        if request.is_prefilling:
            return False
        if was_prefilling and self.setup.reuses and not self.setup.window:
            self.manager.store(request.id, request.prompt[:-1], is_partial=False)
        request.say(request.texts[-1] % 2)
        if self.setup.window:
            self.manager.keep_last(request.id, self.setup.window)
        return True

    def _hear(self, request: Request, run: int) -> None:
        """Its token of an earlier step, which may be its last."""
        if request.is_over or request.run != run:
            return
        request.known += 1
        if request.known >= request.length:
            blocks = list(self.blocks_of(request)) if self._chance.random() < 0.5 else None
            self._tell(self.shadow.finished(request.id, blocks))
            self._leave(request)

    # Ends

    def blocks_of(self, request: Request) -> list[int]:
        return self.manager.sequences[request.id].blocks

    def _leave(self, request: Request) -> None:
        if request.has_blocks:
            self._release(request)
        request.is_over = True
        self._by_id.pop(request.id, None)
        for requests in (self.running, self.waiting):
            if request in requests:
                requests.remove(request)

    def _release(self, request: Request) -> None:
        """What it computed can be reused, but for its last token, whose keys nobody needs."""
        computed = request.known - 1
        if "stores what isn't computed" not in self.flaws:
            computed = min(computed, request.position)
        stored = None if self.setup.window else request.all[:computed]
        self.manager.remove_sequence(request.id, stored)
        request.has_blocks = False

    def _tell(self, told: list[Violation]) -> None:
        self.told += told
        self.blamed.update(self._by_id[v.request] for v in told if v.request in self._by_id)
