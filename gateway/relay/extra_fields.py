"""What another server is sent beside the client's own fields, and which of these it refuses."""

from __future__ import annotations

import hashlib
import hmac
import re
from functools import lru_cache
from typing import Any

from gateway.catalog.catalog import Deployment
from gateway.errors import Unsupported
from gateway.schema import Ask

# All that a client can have sent on; each kind of server takes them. The rest is ours.
FIELDS = frozenset(
    {
        *("model", "messages", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop"),
        *("stream", "stream_options", "cache_salt"),
    }
)
REMEDIES = {  # where a server refuses a field that we add
    "cache_salt": 'say with the model\'s `cache` how tenants are kept apart otherwise, as "off"',
    "prompt_token_ids": "this version takes none: leave the model's `tokenizer` out",
    "stream_options": "attach a server that takes it: else no stream tells its usage",
}
MAX_SEED = 2**31 - 1  # that no server takes for another one, or for none
IN_EXTRA_BODY = "change the model's extra_body"


def extra_fields(deployment: Deployment, ask: Ask, salt: str) -> dict[str, Any]:
    """The fields to add; the operator's win. `salt` keeps a tenant's cached prefixes apart.

    Raises Unsupported where the server would refuse the salt, or share without one.
    """
    habits = deployment.habits
    fields: dict[str, Any] = {
        "model": deployment.upstream_model,
        "max_tokens": ask.max_tokens or deployment.default_max_tokens,
    }
    if ask.seed is not None and ask.seed < 0 and not habits.signed_seeds:
        fields["seed"] = ask.seed & MAX_SEED
    if ask.stream:
        fields["stream_options"] = {"include_usage": True, **habits.counting}
    salted: dict[str, Any] = {}
    if deployment.is_salted:
        if ask.operation not in habits.salted and not deployment.tokenizer:
            raise Unsupported(
                "this model's engine can't keep plain prompts of different callers apart; "
                "use /v1/chat/completions",
                param="prompt",
            )
        salted = habits.salting(salt, deployment.extra_body)
    if deployment.cache in ("", "off"):
        fields |= habits.uncached
    return fields | dict(deployment.extra_body) | salted


def as_chat(body: dict[str, Any], prompt_ids: list[int]) -> None:
    """A plain prompt's body becomes a chat's that has its token ids, and no message."""
    del body["prompt"]
    body["messages"] = []
    body["prompt_token_ids"] = prompt_ids


@lru_cache(4096)
def salt_of(key: bytes, domain: str) -> str:
    """A tenant's salt: the same for all of its requests, and nobody's to guess."""
    return hmac.new(key, domain.encode(), hashlib.sha256).hexdigest()


def refused_field(deployment: Deployment, ask: Ask, message: str) -> str:
    """The field that a refusal is about if no client sent it, but our configuration; else ""."""
    if not deployment.is_attached:
        return ""
    ours = set(deployment.extra_body) | deployment.habits.uncached.keys()
    if deployment.is_salted:
        ours |= deployment.habits.salting("", {}).keys()
    if deployment.tokenizer and ask.operation == "completion":
        ours |= {"messages", "prompt_token_ids"}
    if ask.stream and not ask.include_usage:
        ours.add("stream_options")
    added = sorted(ours - ask.engine_body().keys())
    return next((field for field in added if re.search(rf"\b{re.escape(field)}\b", message)), "")
