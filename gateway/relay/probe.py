"""One real token asked of an attached server: the only proof that it answers.

A server whose engine hangs may go on saying that it is well, or answer with nothing.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gateway.catalog.catalog import Deployment
from gateway.errors import IntegrityAbort, Unsupported, UpstreamTimeout
from gateway.relay import trtllm
from gateway.relay.deadline import Deadline
from gateway.relay.extra_fields import extra_fields
from gateway.relay.place import Place
from gateway.relay.sse import BadFrame, error_of
from gateway.relay.transport import Broken, ConnectFailed, Reply
from gateway.relay.whole import Whole, read_whole
from gateway.schema import Ask, Turn
from runtime.wire import REQUEST_ID

MAX_BYTES = 64 * 1024
FULL = 429
PROBE_DOMAIN = "probe"  # no tenant's: theirs are hashes
PATHS = {"chat": "/chat/completions", "completion": "/completions"}


class Unreached(Exception):
    """There was no connection. Says why."""


class Bad(Exception):
    """It was reached, and doesn't answer as it should. Says how."""


class Refused(Exception):
    """It doesn't take such a request, which says nothing of its engine. Says with which status."""


async def ask_for_a_token(
    place: Place, deployment: Deployment, operation: Literal["chat", "completion"],
    salt: str, within_s: float,
) -> None:  # fmt: skip
    """Returns once it has answered with a token, or says that it is full. Raises the three above.

    It is asked as a tenant of its own, so it finds no tenant's prefix, and leaves none to them.
    """
    body = _body(deployment, operation, salt)
    headers = {"content-type": "application/json", REQUEST_ID: "req_probe"}
    if place.server and place.server.api_key:
        headers["authorization"] = f"Bearer {place.server.api_key}"
    url = place.base_url + PATHS[operation]
    try:
        async with (
            Deadline(within_s),
            place.transport.send("POST", url, headers, msgspec.json.encode(body)) as reply,
        ):
            answer = await _answer(reply, deployment, operation)
    except ConnectFailed as fault:
        raise Unreached(str(fault)) from None
    except UpstreamTimeout:
        raise Bad(f"no token in {within_s:g} s") from None
    except IntegrityAbort:
        raise Bad("its guard stopped the answer") from None
    except (Broken, BadFrame) as fault:
        raise Bad(str(fault)) from None
    if answer and answer.usage is not None and not answer.usage.output_tokens:
        raise Bad("it answers without a token")


async def _answer(
    reply: Reply, deployment: Deployment, operation: Literal["chat", "completion"]
) -> Whole | None:
    """None if it says that it is full."""
    if reply.status == FULL:
        return None
    is_trt = deployment.kind == trtllm.KIND
    if 400 <= reply.status < 500:
        if is_trt and trtllm.is_own_fault(*error_of(await reply.read(MAX_BYTES))):
            raise Bad(f"it answers {reply.status} for a fault of its own")
        raise Refused(str(reply.status))
    if reply.status != 200:
        raise Bad(f"it answers {reply.status}")
    shape = trtllm.Shape(operation, is_whole=True) if is_trt else None
    return read_whole(await reply.read(MAX_BYTES), reshape=shape)


def _body(
    deployment: Deployment, operation: Literal["chat", "completion"], salt: str
) -> dict[str, Any]:
    ask = Ask(operation=operation, model=deployment.id, max_tokens=1, temperature=0.0)
    if operation == "chat":
        ask.messages = [Turn("user", "hi")]
    elif deployment.tokenizer:
        raise Refused("this operation")  # it has answered a chat, or nothing
    else:
        ask.prompt = "hi"
    try:
        return ask.engine_body() | extra_fields(deployment, ask, salt)
    except Unsupported:
        raise Refused("this operation") from None
