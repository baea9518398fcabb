"""Makes config/calibration/mixed.jsonl: openings of our own, continued by the packaged model.

Text that a model samples is in its own distribution and asks nobody's licence. Run it again only
to change the text: the file is what is shipped, and its digest is part of every artefact.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from benchmarks.bulkhead import model_folder
from benchmarks.calibration_openings import BY_HAND, CODE, PROSE, QUESTIONS

TARGET = Path(__file__).parents[1] / "config" / "calibration" / "mixed.jsonl"
PROSE_TOKENS, ANSWER_TOKENS, CODE_TOKENS = 384, 256, 224
END_OF_CHAT, END_OF_TEXT = 2, 0  # <|im_end|>, <|endoftext|>
BATCH = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="the packaged model's folder")
    parser.add_argument("--out", type=Path, default=TARGET)
    options = parser.parse_args()
    sampler = Sampler(options.model or model_folder())
    chats = [sampler.chat(turns) for turns in QUESTIONS]
    answers = sampler.continued(chats, ANSWER_TOKENS, 0.8, END_OF_CHAT)
    items: list[dict[str, Any]] = [
        {"messages": [*_turns(turns), {"role": "assistant", "content": answer.strip()}]}
        for turns, answer in zip(QUESTIONS, answers, strict=True)
    ]
    for openings, length in ((PROSE, PROSE_TOKENS), (CODE, CODE_TOKENS)):
        prompts = [sampler.plain(opening) for opening in openings]
        rests = sampler.continued(prompts, length, 1.0 if openings is PROSE else 0.7, END_OF_TEXT)
        items += [{"text": opening + rest} for opening, rest in zip(openings, rests, strict=True)]
    items += [{"text": text} for text in BY_HAND]
    lines = (json.dumps(item, ensure_ascii=False) + "\n" for item in _interleaved(items))
    options.out.write_text("".join(lines), encoding="utf-8")


def _turns(turns: tuple[str, ...]) -> list[dict[str, str]]:
    *system, question = turns
    return [{"role": "system", "content": text} for text in system] + [
        {"role": "user", "content": question}
    ]


def _interleaved(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """So that every part of the file is as mixed as the whole."""
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(1)).tolist()
    return [items[i] for i in order]


class Sampler:
    """Continues many prompts at a time; the same seed and machine give the same text."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        self._chance = torch.Generator().manual_seed(20)

    def chat(self, turns: tuple[str, ...]) -> list[int]:
        text = self._tokenizer.apply_chat_template(
            _turns(turns), tokenize=False, add_generation_prompt=True
        )
        return self.plain(text)

    def plain(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def continued(
        self, prompts: list[list[int]], length: int, temperature: float, end: int
    ) -> list[str]:
        texts: list[str] = []
        for start in range(0, len(prompts), BATCH):
            rows = self._batch(prompts[start : start + BATCH], length, temperature, end)
            texts += [self._tokenizer.decode(row, skip_special_tokens=True) for row in rows]
            print(f"{len(texts)} of {len(prompts)}", flush=True)
        return texts

    @torch.inference_mode()
    def _batch(
        self, prompts: list[list[int]], length: int, temperature: float, end: int
    ) -> list[list[int]]:
        width = max(map(len, prompts))
        tokens = torch.tensor([[end] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        running, cache, made = torch.ones(len(prompts), dtype=torch.bool), None, []
        for _ in range(length):
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
            output = self._model(
                tokens, attention_mask=mask, position_ids=positions, past_key_values=cache
            )
            cache = output.past_key_values
            odds = _nucleus(output.logits[:, -1].float() / temperature)
            picked = torch.multinomial(odds, 1, generator=self._chance)
            made.append(torch.where(running, picked[:, 0], -1))
            running &= picked[:, 0] != end
            if not running.any():
                break
            tokens = picked
            mask = torch.cat((mask, torch.ones_like(picked)), dim=1)
        columns = torch.stack(made, dim=1).tolist()
        return [[token for token in row if token not in (-1, end)] for row in columns]


def _nucleus(logits: torch.Tensor, share: float = 0.95) -> torch.Tensor:
    """The likeliest tokens that have `share` of the probability between them."""
    odds, order = logits.softmax(-1).sort(descending=True)
    odds = odds.masked_fill(odds.cumsum(-1) - odds > share, 0)
    return torch.zeros_like(odds).scatter(1, order, odds)


if __name__ == "__main__":
    main()
