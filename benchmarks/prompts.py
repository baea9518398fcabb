"""Prompts for engines: a given number of tokens, all different, the same in every run.

As token ids, so that both sides get exactly the same. Repetitive prose, which a small model
goes on with until it is stopped: an answer that ends early would make a run look cheaper.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

PLACES = "harbour market station library garden bridge square museum castle forest"
PEOPLE = "baker sailor teacher painter farmer doctor singer weaver miller carpenter"
THINGS = "lantern letter basket violin ladder blanket kettle map coat umbrella clock"
DEEDS = "carried found sold repaired painted hid counted borrowed dropped cleaned"


def prompts(folder: Path, tokens: int, seed: str) -> Iterator[list[int]]:
    """Endlessly many prompts of `tokens` ids for the model in `folder`."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for number in count():
        # The first words differ already, so that no two prompts share a page of cache.
        chance = random.Random(f"{seed} {number}")
        text = f"Chapter {number}, {chance.randrange(10**9)}."
        while len(ids := tokenizer.encode(text, add_special_tokens=False).ids) < tokens:
            text += "".join(f" {sentence(chance)}" for _ in range(4))
        yield ids[:tokens]


def bodies(
    ids: Iterator[list[int]], model: str, max_tokens: int, *, for_host: bool = False
) -> Iterator[bytes]:
    """Streamed completion requests, greedy. A host of ours tells its usage unasked."""
    options = {} if for_host else {"stream_options": {"include_usage": True}}
    for prompt in ids:
        yield msgspec.json.encode(
            {
                "model": model,
                "prompt": prompt,
                "max_tokens": max_tokens,
                "temperature": 0,
                "stream": True,
                **options,
            }
        )


def sentence(chance: random.Random) -> str:
    """One of ten thousand, of nine words."""
    who, deed, what, where = (
        chance.choice(words.split()) for words in (PEOPLE, DEEDS, THINGS, PLACES)
    )
    return f"The {who} {deed} the {what} near the {where}."
