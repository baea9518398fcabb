"""A server's refusal, read: its code, and its words, which may quote the prompt."""

from __future__ import annotations

import structlog

from gateway.errors import Refusal, UpstreamFailed
from gateway.relay import trtllm
from gateway.relay.errand import Errand
from gateway.relay.extra_fields import IN_EXTRA_BODY, REMEDIES, refused_field
from gateway.relay.sse import error_of
from gateway.relay.transport import Reply
from gateway.relay.upstream_errors import refusal_of

log = structlog.get_logger()

MAX_ERROR_BYTES = 64 * 1024
FOR_THE_BODY = (400, 413, 422)  # statuses by which a server refuses what it was sent


class Refused(Exception):
    """`refusal` is what the client is told, `reason` the operator.

    `is_fault` says that it was the server's fault, `is_doubtful` that it may have been.
    """

    def __init__(
        self, refusal: Refusal, reason: str, *, is_fault: bool = False, is_doubtful: bool = False
    ) -> None:
        super().__init__(reason)
        self.refusal = refusal
        self.reason = reason
        self.is_fault = is_fault
        self.is_doubtful = is_doubtful


async def read_refusal(errand: Errand, reply: Reply) -> tuple[str, str]:
    """Its code and message. The log has the code alone."""
    code, message = error_of(await reply.read(MAX_ERROR_BYTES))
    log.warning(  # without the message, which may quote the prompt
        "upstream_refused",
        request_id=errand.request_id,
        host=errand.host_id,
        status=reply.status,
        code=code[:64],
    )
    is_trt = errand.deployment.kind == trtllm.KIND
    return code, trtllm.told_of_body(message) if is_trt else message


def judged(errand: Errand, status: int, code: str, message: str) -> Refused:
    """Whose fault it is."""
    deployment, reason = errand.deployment, f"it answers {status} {code[:64]}".rstrip()
    if status not in FOR_THE_BODY:
        refusal = refusal_of(code, message, status, param=errand.param)
        return Refused(refusal, reason, is_fault=status >= 500)  # the breaker isn't for refusals
    if field := refused_field(deployment, errand.ask, message):
        todo = REMEDIES.get(field, IN_EXTRA_BODY)
        log.error("upstream_refuses_our_field", host=errand.host_id, field=field, todo=todo)
        told = UpstreamFailed("the engine failed; the operator has been told")
        return Refused(told, f"it refuses the field {field}: {todo}")
    if deployment.kind == trtllm.KIND:
        if trtllm.is_own_fault(code, message):
            return Refused(UpstreamFailed(trtllm.FAILED), reason, is_fault=True)
        refusal = trtllm.refusal_of_body(code, message, errand.param)
        is_doubtful = isinstance(refusal, UpstreamFailed)
        return Refused(refusal, reason, is_doubtful=is_doubtful)
    return Refused(refusal_of(code, message, status, param=errand.param), "")
