"""Whether answers are counted exactly, whole, and end where they should."""

from __future__ import annotations

from gateway.budgets.bounds import TEMPLATE_TOKENS, TURN_TOKENS
from gateway.conformance.backend import Backend, Said
from gateway.conformance.verdict import Line, told, unknown

PROMPT = "Count from one to twenty in words."
ACCENTS = "Repeat exactly: Grüße, 日本語テスト, привет, 🙂🎉👩‍💻"
TOKENS = 48
MOST_INPUT = len(PROMPT.encode()) + TURN_TOKENS + TEMPLATE_TOKENS  # more isn't billed
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


async def usage(backend: Backend) -> list[Line]:
    """The same answer streamed and not: the same total, which adds up; and one of one token."""
    whole = await backend.whole(PROMPT, max_tokens=TOKENS)
    stream = await backend.streamed(PROMPT, max_tokens=TOKENS)
    one = await backend.whole(PROMPT, max_tokens=1)
    return [
        _told_at_all("usage of an unstreamed answer", whole),
        _told_at_all("usage of a stream", stream),
        _same(whole, stream),
        _possible([(whole, TOKENS), (stream, TOKENS), (one, 1)]),
        told(
            "no answer without a token",
            holds=one.usage.get("completion_tokens") == 1,
            seen=f"{one.usage.get('completion_tokens')} of 1 token, ended by {one.finish}",
        ),
    ]


def _told_at_all(name: str, said: Said) -> Line:
    prompt, written, total = (said.usage.get(count, "nothing") for count in COUNTS)
    is_told = all(isinstance(count, int) for count in (prompt, written, total))
    holds = is_told and prompt + written == total
    return told(name, holds=holds, seen=f"{prompt} + {written} = {total}")


def _same(whole: Said, stream: Said) -> Line:
    name = "streamed and unstreamed are counted alike"
    pairs = [(whole.usage.get(count), stream.usage.get(count)) for count in COUNTS[:2]]
    if whole.text != stream.text and pairs[0][0] == pairs[0][1]:
        return unknown(name, "greedy answers differ from one time to the next")
    seen = "; ".join(f"{a} and {b}" for a, b in pairs)
    return told(name, holds=all(a == b and a is not None for a, b in pairs), seen=seen)


def _possible(asked: list[tuple[Said, int]]) -> Line:
    """Of each answer, as many tokens as it had and may have had at most."""
    told_of = [(said.usage.get(COUNTS[0]), said.usage.get(COUNTS[1]), most) for said, most in asked]
    holds, seen = True, []
    for prompt, written, most in told_of:
        holds = holds and _is_most(prompt, MOST_INPUT) and _is_most(written, most)
        seen.append(f"{prompt} of {MOST_INPUT} + {written} of {most}")
    return told("no more tokens than can be", holds=holds, seen="; ".join(seen))


def _is_most(count: object, most: int) -> bool:
    """Whether it's no more, as far as it was told."""
    return not isinstance(count, int) or count <= most


async def characters(backend: Backend) -> list[Line]:
    """Characters of several bytes come whole, however the stream is cut."""
    whole = await backend.whole(ACCENTS, max_tokens=TOKENS)
    stream = await backend.streamed(ACCENTS, max_tokens=TOKENS)
    lost = stream.text.count("\ufffd") - whole.text.count("\ufffd")
    wide = sum(ord(char) > 127 for char in stream.text)
    name = "characters come whole"
    if not wide and lost <= 0:
        return [unknown(name, "it answers in ASCII alone")]
    return [
        told(
            name,
            holds=lost <= 0,
            seen=f"{max(lost, 0)} lost in a stream with {wide} beyond ASCII",
        )
    ]


async def stops(backend: Backend) -> list[Line]:
    """An answer ends before a stop text, streamed and not."""
    name = "stop texts end an answer"
    free = await backend.whole(PROMPT, max_tokens=TOKENS)
    middle = len(free.text) // 2
    stop = free.text[middle : middle + 5]
    if len(free.text) < 20 or not stop.strip():
        return [unknown(name, "its answer is too short to be stopped")]
    expected = free.text[: free.text.find(stop)]
    lines = []
    for kind, ask in (("unstreamed", backend.whole), ("streamed", backend.streamed)):
        said = await ask(PROMPT, max_tokens=TOKENS, stop=[stop])
        holds = said.text == expected and said.finish == "stop"
        seen = f"{len(said.text)} characters of {len(expected)}, ended by {said.finish}"
        lines.append(told(f"{name}, {kind}", holds=holds, seen=seen))
    return lines
