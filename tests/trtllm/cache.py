"""A prefix cache that keeps salts apart, over a pool of blocks that can run out."""

from __future__ import annotations

from itertools import takewhile

MAX_KEPT = 512  # prompts of one salt


class PrefixCache:
    """Prompts that were computed, by salt. Unsalted ones share a cache of their own."""

    def __init__(self, tokens_per_block: int, *, is_on: bool, reuses_parts: bool) -> None:
        self._per_block = tokens_per_block
        self._is_on = is_on
        self._reuses_parts = reuses_parts
        self._known: dict[str | None, list[tuple[int, ...]]] = {}

    def match(self, ids: tuple[int, ...], salt: str | None) -> int:
        """How many tokens of a prompt's beginning are cached: never its last one."""
        if not self._is_on:
            return 0
        most = max((_common(ids, known) for known in self._known.get(salt, ())), default=0)
        most = min(most, len(ids) - 1)
        return most if self._reuses_parts else most // self._per_block * self._per_block

    def keep(self, ids: tuple[int, ...], salt: str | None) -> None:
        """Its full blocks can be found from now on."""
        full = ids[: len(ids) // self._per_block * self._per_block]
        known = self._known.setdefault(salt, [])
        if full and full not in known:
            known.append(full)
            del known[:-MAX_KEPT]

    def drain(self) -> list[tuple[int, ...]]:
        """All prompts, whoever sent them."""
        return [ids for known in self._known.values() for ids in known]

    def clear(self) -> None:
        """Forget them."""
        self._known.clear()


class BlockPool:
    """Blocks by number; a request takes all that it may need."""

    def __init__(self, num_blocks: int, tokens_per_block: int) -> None:
        self._free = num_blocks
        self._per_block = tokens_per_block

    def take(self, tokens: int) -> int | None:
        """So many blocks, or None if there aren't as many."""
        blocks = -(-tokens // self._per_block)
        if blocks > self._free:
            return None
        self._free -= blocks
        return blocks

    def give_back(self, blocks: int) -> None:
        """They are free again."""
        self._free += blocks


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
