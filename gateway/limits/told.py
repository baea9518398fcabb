"""What clients are told of their limits: headers, and how long to wait.

Of several limits of a kind the tightest is told. A model's own limit, which all tenants share, is
told only to whom it refuses: what is left of it would say what others do.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from gateway.limits.limit import Kind, Limit, Take

US = 1_000_000
MS = 1_000
HEADERS = {
    kind: tuple(b"x-ratelimit-%b-%b" % (of, name) for of in (b"limit", b"remaining", b"reset"))
    for kind, name in ((Kind.REQUESTS, b"requests"), (Kind.TOKENS, b"tokens"))
}
POLICIES = {  # of the IETF's RateLimit-Policy
    Kind.REQUESTS: '"rpm";q=%d;w=60',
    Kind.TOKENS: '"tpm";q=%d;w=60;qu="tokens"',
    Kind.CONCURRENT: '"concurrent";q=%d;qu="concurrent-requests"',
}
WORDS = {
    Kind.REQUESTS: "requests a minute",
    Kind.TOKENS: "tokens a minute",
    Kind.CONCURRENT: "requests at once",
}


def headers(takes: Sequence[Take], levels: Sequence[int]) -> dict[bytes, bytes]:
    """OpenAI's x-ratelimit headers, and the IETF's two."""
    found: dict[bytes, bytes] = {}
    policies, states = [], []
    for kind, (left, limit, level) in _tightest(takes, levels).items():
        policies.append(_policy(kind, limit.number))
        if kind is Kind.CONCURRENT:
            states.append(f'"{kind}";r={left}')
            continue
        states.append(f'"{kind}";r={left};t={-(-level // US)}')
        number, remaining, reset = HEADERS[kind]
        found[number] = b"%d" % limit.number
        found[remaining] = b"%d" % left
        found[reset] = duration(level).encode()
    if policies:
        found[b"ratelimit-policy"] = ", ".join(policies).encode()
        found[b"ratelimit"] = ", ".join(states).encode()
    return found


@lru_cache(4096)
def _policy(kind: Kind, number: int) -> str:
    return POLICIES[kind] % number


def _tightest(takes: Sequence[Take], levels: Sequence[int]) -> dict[Kind, tuple[int, Limit, int]]:
    """Of each kind what is left, of which limit, and its level."""
    best: dict[Kind, tuple[int, Limit, int]] = {}
    for take, level in zip(takes, levels, strict=True):
        limit = take.limit
        if limit.scope == "model":
            continue
        left, other = limit.left(level), best.get(limit.kind)
        if other is None or left < other[0]:
            best[limit.kind] = left, limit, level
    return best


def duration(us: int) -> str:
    """As Go writes one, in whole milliseconds, rounded up: "12ms", "1.5s", "1m0s", "1h0m0s"."""
    ms = -(-us // MS)
    if ms < 1000:
        return f"{ms}ms" if ms else "0s"
    minutes, ms = divmod(ms, 60_000)
    seconds = f"{ms / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if not minutes:
        return seconds
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + f"{minutes}m{seconds}"


def described(limit: Limit) -> str:
    """`the tenant's limit of 60 requests a minute at this model`."""
    where = " at this model" if limit.model and limit.scope != "model" else ""
    words = WORDS[limit.kind]
    if limit.number == 1:
        words = words.replace("s ", " ", 1)
    return f"the {limit.scope}'s limit of {limit.number} {words}{where}"


def seconds(us: int) -> int:
    """For Retry-After: whole, 1 at least."""
    return max(-(-us // US), 1)
