"""An answer without a token: a model's that says nothing, or a broken server's."""

from __future__ import annotations

from gateway.relay import trtllm
from gateway.relay.attached import AttachedServers
from gateway.relay.errand import Errand
from gateway.relay.place import Place
from gateway.relay.probe import Bad, Refused, Unreached, ask_for_a_token
from gateway.relay.sse import BadFrame


async def doubt(
    attached: AttachedServers, errand: Errand, place: Place, salt: str, within_s: float
) -> None:
    """The server may be broken, so it is probed soon.

    TensorRT-LLM answers so for ever once its blocks are lost. There such an answer is believed
    only if a probe gets a token now. Raises BadFrame.
    """
    deployment = errand.deployment
    if not deployment.is_attached:
        return
    attached.troubles.failed(deployment.id, place.base_url, "an answer had no token")
    attached.suspects.add(place)
    if deployment.kind != trtllm.KIND:
        return
    try:
        await ask_for_a_token(place, deployment, "chat", salt, within_s)
    except (Bad, Unreached) as fault:
        raise BadFrame(f"an answer had no token, nor has a probe: {fault}") from None
    except Refused:
        pass  # which says nothing of its engine
