"""What bench_kv_quality has its model read: evaluation sets where they lie, and needles made here.

The sets are no part of the project (DATA says where they are looked for): one that isn't there is
skipped, and said so. Haystacks and calibration need none.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.kv_subject import PAGE_SIZE, Text
from benchmarks.process import ROOT
from benchmarks.prompts import PLACES, prompts
from engines.tokenizer import FolderTokenizer

DATA = ROOT.parent / "shared" / "data"
WIKITEXT, ARC_EASY, LAMBADA = "wikitext2_test.txt", "arc_easy.jsonl", "lambada_openai.jsonl"
WINDOW = 1024  # tokens of WikiText at once
DEPTHS = (0.05, 0.25, 0.5, 0.75, 0.95)  # in the haystack, from its beginning
QUESTION_TOKENS = 64  # at most


@dataclass(frozen=True, slots=True)
class Choice:
    """A question with each of its answers, and which of them is right."""

    texts: list[Text]
    right: int


@dataclass(frozen=True, slots=True)
class Haystack:
    """Prose with a needle at each of DEPTHS, and a question about each needle."""

    tokens: list[int]
    questions: list[Text]


class Texts:
    """All of it, as tokens of one model."""

    def __init__(self, folder: Path, data: Path) -> None:
        self._folder = folder
        self._data = data
        self._encode = FolderTokenizer(folder).encode

    def has(self, name: str) -> bool:
        """Whether this set is there."""
        return (self._data / name).is_file()

    def calibration(self, number: int, length: int) -> Iterator[list[int]]:
        """Texts like none that is evaluated."""
        made = prompts(self._folder, length, "calibration")
        return (next(made) for _ in range(number))

    def windows(self, number: int) -> list[list[int]]:
        """As many pieces of WikiText-2's test set, or all of them: evenly spread over it."""
        tokens = self._encode((self._data / WIKITEXT).read_text())
        starts = range(0, len(tokens) - WINDOW, WINDOW)
        chosen = starts[:: max(1, len(starts) // number)][:number]
        return [tokens[start : start + WINDOW] for start in chosen]

    def opening(self, length: int) -> list[list[int]]:
        """The first tokens of WikiText-2's test set, in windows that follow each other."""
        tokens = self._encode((self._data / WIKITEXT).read_text())[:length]
        return [tokens[start : start + WINDOW] for start in range(0, len(tokens), WINDOW)]

    def arc_easy(self, number: int) -> list[Choice]:
        """The first questions."""
        return [self._choice(item) for item in self._items(ARC_EASY, number)]

    def lambada(self, number: int) -> list[Text]:
        """The first passages, of which the last word is to be predicted."""
        return [
            self._text(item["context"], f" {item['continuation'].strip()}")
            for item in self._items(LAMBADA, number)
        ]

    def haystacks(self, length: int, number: int) -> Iterator[Haystack]:
        """Of so many tokens with a question; places and numbers are the same in every run."""
        chance = random.Random(f"haystacks of {length}")
        total = (length - QUESTION_TOKENS) // PAGE_SIZE * PAGE_SIZE
        prose = prompts(self._folder, total, f"haystacks of {length}")
        for hay in (next(prose) for _ in range(number)):
            places = chance.sample(PLACES.split(), len(DEPTHS))
            codes = [f"{chance.randrange(10_000):04}" for _ in DEPTHS]
            sentences = [f" The code of the {p} is" for p in places]
            needles = [
                self._encode(f"{sentence} {code}.")
                for sentence, code in zip(sentences, codes, strict=True)
            ]
            questions = [
                self._text(
                    f"\n\nQuestion: what is the code of the {p}?\nAnswer:{sentence}", f" {code}"
                )
                for p, sentence, code in zip(places, sentences, codes, strict=True)
            ]
            yield Haystack(_with(needles, hay, total), questions)

    def _items(self, name: str, number: int) -> list[dict[str, Any]]:
        lines = (self._data / name).read_text().splitlines()
        return [json.loads(line) for line in lines[:number]]

    def _choice(self, item: dict[str, Any]) -> Choice:
        query = f"{item['query']}\nAnswer:"
        return Choice([self._text(query, f" {one}") for one in item["choices"]], item["gold"])

    def _text(self, given: str, wanted: str) -> Text:
        scored = self._encode(wanted)
        return Text([*self._encode(given), *scored], len(scored))


def _with(needles: Sequence[list[int]], hay: list[int], total: int) -> list[int]:
    """The needles, each at its depth, in as much hay as makes `total` tokens."""
    room, tokens, used = total - sum(map(len, needles)), [], 0
    for depth, needle in zip(DEPTHS, needles, strict=True):
        until = int(depth * room)
        tokens += hay[used:until] + needle
        used = until
    return tokens + hay[used:room]
