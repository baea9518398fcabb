"""The reader that bench_kv_quality judges pages with, and its needles."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.kv_subject import BASE, KINDS, Text, readers
from benchmarks.kv_texts import DEPTHS, Texts
from tests.engines.helpers import random_prompt

NEAR = 0.3  # nats a text: bfloat16 rounds otherwise when texts are cut otherwise


def test_texts_after_a_prefix_score_as_if_each_were_read_in_one_piece(tiny_dir: Path) -> None:
    """Over each kind of page, whatever was read before."""
    prefix, ends = random_prompt(64, 1), [random_prompt(length, length) for length in (9, 17, 30)]
    with readers(tiny_dir, [random_prompt(60, 2)]) as by_kind:
        assert set(by_kind) == set(KINDS)
        for reader in by_kind.values():
            reader.read()
            whole = reader.score([Text(prefix + end, 5) for end in ends])
            alone = reader.score([Text(end, 5) for end in ends])
            reader.read(prefix)
            found = reader.score([Text(end, 5) for end in ends])
            for one, expected, other in zip(found, whole, alone, strict=True):
                assert one.log_prob == pytest.approx(expected.log_prob, abs=NEAR)
                assert other.log_prob != pytest.approx(expected.log_prob, abs=NEAR)


def test_a_reader_s_probabilities_are_those_of_its_logits(tiny_dir: Path) -> None:
    """Of the tokens that are scored, and greedy only if each was the likeliest."""
    tokens = random_prompt(40, 3)
    with readers(tiny_dir, [tokens]) as by_kind:
        reader = by_kind[BASE]
        log_probs = reader.logits(reader.read(tokens)).log_softmax(dim=1)
        likeliest = int(log_probs[-1].argmax())
        reader.read()
        last_two = float(log_probs[-3, tokens[-2]] + log_probs[-2, tokens[-1]])
        right, wrong, two = reader.score(
            [
                Text([*tokens, likeliest], 1),
                Text([*tokens, (likeliest + 1) % 300], 1),
                Text(tokens, 2),
            ]
        )
        assert (right.greedy, wrong.greedy) == (True, False)
        assert right.log_prob == pytest.approx(float(log_probs[-1].max()), abs=NEAR)
        assert two.log_prob == pytest.approx(last_two, abs=NEAR)


def test_a_haystack_hides_a_needle_at_each_depth(model_dir: Path, tmp_path: Path) -> None:
    """Each question's code stands where its needle is; with the questions, all of it fits."""
    texts = Texts(model_dir, tmp_path)
    assert not texts.has("arc_easy.jsonl")
    (hay,) = texts.haystacks(2048, 1)
    assert 2048 - 80 < len(hay.tokens) <= 2048 - max(len(q.tokens) for q in hay.questions)
    assert len(hay.tokens) % 16 == 0
    for depth, question in zip(DEPTHS, hay.questions, strict=True):
        code = question.tokens[-question.scored :]
        places = [
            start
            for start in range(len(hay.tokens))
            if hay.tokens[start : start + len(code)] == code
        ]
        assert any(abs(start / len(hay.tokens) - depth) < 0.05 for start in places)
