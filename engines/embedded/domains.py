"""Which domains live, and under which number their pages are tagged.

Told domain names and who holds them: seqs that run and pages that still have their bytes. A number
is reused only after its last holder is gone, so that no tag of an old domain fits a new one.
"""

from __future__ import annotations

from collections import Counter, deque

from engines.embedded import tags


class Domains:
    """Names to slots 1 .. 65534; 0 is the system's and 65535 the quarantine's."""

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}
        self._holders: Counter[str] = Counter()
        self._free_slots = deque(range(1, tags.QUARANTINE_SLOT))

    def can_open(self, domain: str) -> bool:
        """Whether `open` would find a slot."""
        return domain in self.slots or bool(self._free_slots)

    def open(self, domain: str) -> int:
        """The domain's slot, held until `close`; a new one if the domain is new."""
        if domain not in self.slots:
            self.slots[domain] = self._free_slots.popleft()
        self._holders[domain] += 1
        return self.slots[domain]

    def close(self, domain: str) -> None:
        """Undo one `open`."""
        assert self._holders[domain] > 0, "a domain closed more often than opened"
        self._holders[domain] -= 1
        if self._holders[domain] == 0:
            del self._holders[domain]
            self._free_slots.append(self.slots.pop(domain))

    def num_holders(self, domain: str) -> int:
        """How many pages and seqs there are of it."""
        return self._holders[domain]

    def name(self, slot: int) -> str | None:
        """The live domain that has this slot."""
        return next((name for name, held in self.slots.items() if held == slot), None)
