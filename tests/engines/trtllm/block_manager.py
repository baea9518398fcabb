"""TensorRT-LLM's V1 KVCacheManager, re-told in Python: who gets which block, and what is reused.

After kvCacheManager.cpp: blocks in a tree by salted keys of their tokens, the least recently freed
taken first, a leaf that matches in part taken over where nobody uses it and else copied. Each
`flaw` is something it would have to get wrong for a row to read what isn't its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Key = tuple[str, tuple[int, ...]]  # salt, and the tokens of one block


class NoRoom(Exception):
    """No block is free."""


@dataclass(eq=False)
class Block:
    id: int
    refs: int = 0
    key: Key | None = None  # None: in no tree
    is_full: bool = False
    parent: Block | None = None
    children: dict[Key, Block] = field(default_factory=dict)

    def leave(self) -> None:
        """The tree, with all below."""
        for child in list(self.children.values()):
            child.leave()
        if self.parent is not None and self.key is not None:
            self.parent.children.pop(self.key, None)
        self.parent = self.key = None


@dataclass(eq=False)
class Given:
    """What the manager knows of a request that has blocks."""

    salt: str
    blocks: list[int] = field(default_factory=list)
    num_tokens: int = 0


class BlockManager:
    """One window, one beam, no host pool."""

    def __init__(
        self,
        num_blocks: int,
        tokens_per_block: int,
        copy: Callable[[int, int, int], None],
        *,
        reuses: bool = True,
        partial: bool = False,
    ) -> None:
        """`copy(source, target, tokens)` copies the first tokens of a block."""
        self.size = tokens_per_block
        self.blocks = [Block(number) for number in range(num_blocks)]
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self.root = Block(-1)
        self.sequences: dict[int, Given] = {}
        self.flaws: set[str] = set()
        self._copy, self._reuses, self._partial = copy, reuses, partial

    # What the executor calls

    def add_sequence(self, request: int, salt: str, tokens: Sequence[int]) -> int:
        """Blocks for a prompt. How many of its tokens are there already. Raises NoRoom."""
        sequence = self.sequences[request] = Given(salt, num_tokens=len(tokens))
        keys = self._keys(salt, tokens[:-1], is_partial=True) if self._reuses else []
        matched = 0
        node: Block | None = self.root
        try:
            for index in range(-(-len(tokens) // self.size)):
                key = keys[index] if index < len(keys) else None
                found, num_matched, is_partial = self._match(node, key)
                if found is None:
                    node = None
                    sequence.blocks.append(self._take())
                    continue
                matched += num_matched
                sequence.blocks.append(self._claim(found, num_matched, is_partial))
                node = None if is_partial else found
        except NoRoom:
            self.remove_sequence(request, None)
            raise
        return matched

    def add_token(self, request: int) -> None:
        """Raises NoRoom."""
        sequence = self.sequences[request]
        if sequence.num_tokens % self.size == 0 and "never grows" not in self.flaws:
            sequence.blocks.append(self._take())
        sequence.num_tokens += 1

    def store(self, request: int, tokens: Sequence[int], *, is_partial: bool) -> None:
        """The blocks of these tokens, which are computed, may be reused from now on."""
        sequence = self.sequences[request]
        node, matches = self.root, True
        for key, number in zip(
            self._keys(sequence.salt, tokens, is_partial), sequence.blocks, strict=False
        ):
            found = node.children.get(key) if matches else None
            if found is not None:
                node = found
                continue
            if not 0 <= number < len(self.blocks):
                return
            matches, block = False, self.blocks[number]
            if block is node or key in node.children:
                return
            if block.key is not None:
                block.leave()
            block.key, block.parent, block.is_full = key, node, len(key[1]) == self.size
            node.children[key] = block
            node = block

    def remove_sequence(self, request: int, computed: Sequence[int] | None) -> None:
        """Its blocks are free; what is computed stays in the tree, unless that is None."""
        if computed is not None and self._reuses:
            self.store(request, computed, is_partial=True)
        self.release(self.sequences.pop(request).blocks)

    def release(self, blocks: Sequence[int]) -> None:
        """The last one is free for the longest, and so the first to be taken."""
        for number in reversed(blocks):
            self._release(number)

    def keep_last(self, request: int, num: int) -> None:
        """A window: older blocks are free, and no pages of the row any more."""
        blocks = self.sequences[request].blocks
        for index in range(len(blocks) - num):
            self._release(blocks[index])
            blocks[index] = -1

    # Blocks

    def _release(self, number: int) -> None:
        if not 0 <= number < len(self.blocks):
            return
        block = self.blocks[number]
        block.refs -= 1
        if block.refs <= 0 or "frees what is used" in self.flaws:
            self.free[number] = None
            self.free.move_to_end(number)

    def _keys(self, salt: str, tokens: Sequence[int], is_partial: bool) -> list[Key]:
        end = len(tokens) if is_partial else len(tokens) // self.size * self.size
        named = "" if "salts nothing" in self.flaws else salt
        return [
            (named, tuple(tokens[start : min(start + self.size, end)]))
            for start in range(0, end, self.size)
        ]

    def _match(self, node: Block | None, key: Key | None) -> tuple[Block | None, int, bool]:
        """A block that has the key, or begins as it does; how much of it; whether in part."""
        if node is None or key is None:
            return None, 0, False
        found = node.children.get(key)
        if found is not None:
            return found, len(key[1]), not found.is_full
        best, most = None, 0
        for (salt, tokens), block in node.children.items() if self._partial else ():
            is_found = salt == key[0] or "copies from another salt" in self.flaws
            alike = _alike(tokens, key[1]) if is_found else 0
            if alike > most:
                best, most = block, alike
        return best, most, True

    def _claim(self, found: Block, num_matched: int, is_partial: bool) -> int:
        """A match, for one more row: itself, or if in part and in use a copy."""
        is_used = bool(found.refs or found.children)
        if is_partial and is_used and "takes over what is used" not in self.flaws:
            target = self._take(but=found.id)
            self._copy(self._source(found), target, num_matched)
            return target
        if is_partial:
            found.leave()
        found.refs += 1
        self.free.pop(found.id, None)
        return found.id

    def _source(self, found: Block) -> int:
        """Which block is copied where this one is meant."""
        if "copies the wrong block" not in self.flaws:
            return found.id
        others = (block.id for block in self.blocks if block.key and block.parent is self.root)
        return next((other for other in others if other != found.id), found.id)

    def _take(self, but: int = -1) -> int:
        """The block that was free for longest. Raises NoRoom."""
        number = next((number for number in self.free if number != but), None)
        if number is None:
            raise NoRoom
        del self.free[number]
        block = self.blocks[number]
        if "keeps the keys of what it takes" not in self.flaws:
            block.leave()
        block.refs += 1
        return number


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
