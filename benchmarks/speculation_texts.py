"""Texts whose answers repeat themselves, and texts whose answers don't: for bench_speculation.

A small model obeys no long instruction, so each prompt is a text that it can only go on with: what
stands above once more, the same code with one name changed, or something of its own.
"""

from __future__ import annotations

import random

from benchmarks.prompts import sentence

TOPICS = (
    *("how bread is baked", "why the sea is salty", "what a telescope does", "how bees live"),
    *("why leaves turn red", "how a bicycle stays upright", "what glass is made of"),
    *("how rivers begin", "why cats purr", "how paper is made", "what causes thunder"),
    *("how bridges carry weight", "why we sleep", "how a clock keeps time", "what steel is"),
)
NAMES = "total count index value result buffer offset length width height"


def text(kind: str, number: int) -> str:
    """The n-th prompt of a kind, different from all others of it."""
    chance = random.Random(f"{kind} {number}")
    return {"quoting": _quoting, "code edit": _code_edit, "prose": _prose, "misled": _prose}[kind](
        chance, number
    )


def _quoting(chance: random.Random, number: int) -> str:
    said = " ".join(sentence(chance) for _ in range(12))
    return f"Letter {number}:\n{said}\n\nThe same letter, word for word:\n{said[:60]}"


def _code_edit(chance: random.Random, number: int) -> str:
    lines = [f"def step_{number}(data):"]
    names = chance.sample(NAMES.split(), 6)
    for name in names:
        lines.append(f"    {name} = data.get('{name}', {chance.randrange(1000)})")
        lines.append(f"    if {name} > {chance.randrange(1000)}:")
        lines.append(f"        data['{name}'] = {name} - {chance.randrange(100)}")
    lines.append("    return data")
    code = "\n".join(lines)
    changed = code.replace("data", "record")
    return f"```python\n{code}\n```\nWith `data` renamed to `record`:\n```python\n{changed[:150]}"


def _prose(chance: random.Random, number: int) -> str:
    topic = TOPICS[number % len(TOPICS)]
    return f"An essay, number {number}, that explains to a curious child {topic}.\n\n"
