"""Servers attached by URL: where they are, which kind they are, and what each kind does.

What is known here of a kind decides how tenants' cached prefixes are kept apart. A kind of which
that isn't known has to be told: what can't be kept apart is never shared in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from engines.trtllm import harmony
from engines.trtllm.settings import KIND as TRTLLM
from runtime.config.kinds import Count, Number, OptionalSecret, is_http_url
from runtime.config.tls import ClientTls

Kind = Literal["openai", "vllm", "sglang", "trtllm", "llamacpp", "dynamo"]
Cache = Literal["", "salted", "off", "shared-accepted"]


class Habits(NamedTuple):
    """What a kind of server does with the prefixes that it has cached."""

    cache: Cache  # what is assumed unless the configuration says otherwise
    salted: frozenset[str]  # the operations for which it honours `cache_salt`
    uncached: Mapping[str, Any]  # fields that have one request reuse nothing
    counting: Mapping[str, Any] = {}  # of `stream_options`: has each chunk tell the usage so far
    takes_ids: bool = False  # a chat may be token ids: so may a plain prompt that needs a salt
    inside: str = ""  # an object of the body in which the salt has to stand too
    signed_seeds: bool = False  # else one below 0 is refused there, or means "none"
    unsaid: str = ""  # what to ask of whoever doesn't say how caches are kept apart

    def salting(self, salt: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that carry a salt. What `body` says in the same object stays."""
        fields: dict[str, Any] = {"cache_salt": salt}
        if self.inside:
            fields[self.inside] = {**body.get(self.inside, {}), "cache_salt": salt}
        return fields


BOTH = frozenset({"chat", "completion"})
COUNTING = {"continuous_usage_stats": True}
TO_SAY = (
    'how are tenants\' cached prefixes kept apart there? Say "salted" (it honours `cache_salt`), '
    '"off" (it reuses none), or "shared-accepted" (they aren\'t: tenants may notice each other\'s '
    "prompts); `bulkhead backend test` shows which is true"
)
BEHIND_DYNAMO = (
    "which engines stand behind it? Dynamo hands salts to workers of vLLM and TensorRT-LLM: say "
    '"salted"; with SGLang\'s say "off" and start those with --disable-radix-cache, or '
    '"shared-accepted"; `bulkhead backend test --kind dynamo` shows which is true'
)
KINDS: dict[str, Habits] = {
    "openai": Habits("", BOTH, {}, signed_seeds=True),
    "vllm": Habits("salted", BOTH, {}, COUNTING),
    "sglang": Habits("salted", BOTH, {}, COUNTING),
    # A plain prompt's salt is refused.
    "trtllm": Habits("salted", frozenset({"chat"}), {}, COUNTING, takes_ids=True),
    "llamacpp": Habits("off", frozenset(), {"cache_prompt": False}),  # it ignores salts
    # Its router goes by `nvext`, its vLLM chat processor by the field beside it. What stands behind
    # it can't be told from here, and SGLang's chat processor there (1.6.1) hands no salt on.
    "dynamo": Habits("", BOTH, {}, COUNTING, inside="nvext", unsaid=BEHIND_DYNAMO),
}
# Each of these is the client's to say, or ours.
OURS = ("messages", "prompt", "model", "stream", "stream_options", "n", "best_of", "echo")


class AttachedServer(Struct, frozen=True, kw_only=True):
    """One of several servers of a model. What it leaves out is as the model says."""

    url: str
    api_key_secret: OptionalSecret = ""
    max_in_flight: Number = 0  # 0: the model's
    weight: Count = 1
    tls: ClientTls = ClientTls()
    guard_url: str = ""  # tensorrt-llm: where its launcher tells what the guard saw

    @staticmethod
    def faults(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """It can be called."""
        url = found.get("url")
        if url is not None and not is_http_url(url):
            yield "url", "expected the http(s) URL of its /v1"
        guard_url = found.get("guard_url")
        if guard_url and not is_http_url(guard_url):
            yield "guard_url", "expected the http(s) URL at which its launcher tells of the guard"


def attached_faults(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What a model that is served by URL must say."""
    yield from _place_faults(found.get("url", ""), found.get("servers", ()))
    kind, cache = found.get("kind", "openai"), found.get("cache", "")
    body = found.get("extra_body") or {}
    if kind is not None and cache is not None:
        yield from _cache_faults(KINDS[kind], cache, body)
        yield from _inside_faults(KINDS[kind], cache, body)
    if kind == TRTLLM:
        yield from harmony.faults(found)
    if found.get("tokenizer") and kind is not None and not KINDS[kind].takes_ids:
        yield "tokenizer", f'servers of kind "{kind}" are sent plain prompts as they are'
    for key in OURS:
        if key in body:
            yield f"extra_body.{key}", "is the client's or the gateway's to say; leave it out"


def _place_faults(url: str | None, servers: Any) -> Iterator[tuple[str, str]]:
    if url and servers:
        yield "servers", "a model has a `url` or `servers`, not both"
    elif url is not None and not servers and servers is not None and not is_http_url(url):
        yield "url", "an attached engine needs the http(s) URL of its /v1"
    urls = [server.url.rstrip("/") for server in servers or () if server and server.url]
    for i, one in enumerate(urls):
        if one in urls[:i]:
            yield f"servers[{i}].url", "is there twice"


def _cache_faults(
    habits: Habits, cache: Cache, body: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    if not (cache or habits.cache):
        yield "cache", habits.unsaid or TO_SAY
    elif cache == "salted" and not habits.salted:
        yield "cache", 'llama.cpp ignores salts; say "off", which is sent with each request'
    if (cache or habits.cache) == "salted" and "cache_salt" in body:
        yield "extra_body.cache_salt", "the gateway sends each tenant's own; leave it out"


def _inside_faults(
    habits: Habits, cache: Cache, body: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """The object that holds the salt is one, and the operator puts none in."""
    found = body.get(habits.inside, {})
    if habits.inside and not isinstance(found, dict):
        yield f"extra_body.{habits.inside}", "expected an object"
    elif (cache or habits.cache) == "salted" and "cache_salt" in found:
        yield f"extra_body.{habits.inside}.cache_salt", "the gateway sends each tenant's own"
