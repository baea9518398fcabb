"""Releases of TensorRT-LLM: their order, the oldest that may serve, and what came with which.

Where no release note says in which candidate a fix came, it is the first that was surely cut after
the fix was merged. Nothing of this was tried on a GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FORM = re.compile(
    r"([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})(?:rc([0-9]{1,4}))?(?:\.post([0-9]{1,4}))?"
)
FINAL = 1 << 30  # comes after every candidate


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """`1.3.0rc5.post2`, in the order in which releases come."""

    release: tuple[int, int, int]
    candidate: int = FINAL
    post: int = 0

    def __str__(self) -> str:
        text = ".".join(map(str, self.release))
        text += f"rc{self.candidate}" if self.candidate != FINAL else ""
        return text + (f".post{self.post}" if self.post else "")

    @property
    def has_safe_overlap(self) -> bool:
        """Whether the overlap scheduler sends each step its own page table (PR 15546).

        Before, a step could read the table of the next: other requests' blocks.
        """
        return self >= OVERLAP

    @property
    def has_safe_chunks(self) -> bool:
        """Whether a prompt in chunks leaves only blocks that are computed for reuse (PR 12673)."""
        return self >= CHUNKS or self.release[:2] == FLOOR.release[:2]  # 1.2.1 has it, too

    @property
    def reads_rope_parameters(self) -> bool:
        """Whether its transformers reads what transformers 5 writes into a config.json."""
        return self >= TRANSFORMERS_5

    @property
    def overrides_kv(self) -> bool:
        """Whether another KV dtype than the checkpoint's is a warning, and no error."""
        return self >= HOOK


def parsed(text: str) -> Version:
    """The version that a text names. Raises ValueError for what is none."""
    found = FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no release of TensorRT-LLM, such as 1.2.1 or 1.3.0rc29")
    major, minor, patch = (int(found[i]) for i in (1, 2, 3))
    candidate = FINAL if found[4] is None else int(found[4])
    return Version((major, minor, patch), candidate, int(found[5] or 0))


FLOOR = Version((1, 2, 1))  # older ones leak or corrupt cached blocks: issue 8813, PR 12770
CHUNKS = Version((1, 3, 0), 12)
OVERLAP = Version((1, 3, 0), 22)
HOOK = Version((1, 3, 0), 22)  # the post-processor hook, which ends one request (PR 15631)
TRANSFORMERS_5 = Version((1, 4, 0), 0)
