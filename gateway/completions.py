"""THE request, top to bottom: POST /v1/chat/completions and /v1/completions.

1. who is calling, or 401            caller, auth
2. what is asked, or 400             schema; a body may take long, so 1 is asked again after it
3. which deployment, or 404          catalog
4. limits reserved, or 429           limits.admission, limits.gate
5. an open row in the ledger         entry, ledger
   the most it can cost, held, or 429   budgets
6. a place at an engine, or 503      relay, hosts
   or another model's, if it has fallbacks: the row is that model's from then on
7. the answer, passed on as it comes relay, sse
8. the row settled, durable before the end of the answer leaves, and the limits with it

Whatever happens on the way, row and limits are settled once (5 and 4 are left through 8), and a
client that leaves ends the engine's work: what runs under `watched` is cancelled, and closes what
it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from functools import partial

from gateway.asgi import Call
from gateway.budgets.bounds import bound_of
from gateway.caller import identify
from gateway.catalog.catalog import Deployment
from gateway.entry import Entry
from gateway.env import Env
from gateway.identity.scopes import INFERENCE
from gateway.meter import Meter
from gateway.record import Opening
from gateway.relay.affinity import session_of
from gateway.relay.errand import Errand
from gateway.schema import Ask
from gateway.store.principal import Principal
from runtime.wire import DONE

COUNT_EVERY = 8  # batches of an answer: its tenant's share is charged for what has come by then


async def complete(env: Env, call: Call, decode: Callable[[bytes], Ask]) -> None:
    """Answer one request, if there is room for it. Raises Refusal, or ClientGone."""
    limits = env.limits
    # A stranger takes no place, and nothing of its body is read.
    caller = await identify(env, call, INFERENCE)
    with env.in_flight.counted(limits.max_requests), call.limited(limits.wall_s):
        body = await call.body(limits.max_body_bytes, limits.body_s)
        await _complete(env.in_force(), call, caller, partial(decode, body))


async def _complete(env: Env, call: Call, caller: Principal, read: Callable[[], Ask]) -> None:
    principal = await identify(env, call, INFERENCE, caller)  # the key may have been revoked since
    ask = read()
    deployment = env.catalog.deployment(ask.model, env.clock.now_us(), principal.models)
    ask.model = deployment.id  # it may have been asked for by an alias
    call.extra |= deployment.notices
    call.notes |= {"model": deployment.id, "stream": ask.stream}
    call.listener = env.payloads.tape(principal.tenant_name, ask, env.clock.now_us())

    async def opening_for(served: Deployment) -> Opening:
        return Opening(
            request_id=call.id,
            tenant_id=principal.tenant_id,
            api_key_id=principal.key_id,
            subject=principal.subject,
            project_id=principal.project_id,
            operation=ask.operation,
            model_id=served.id,
            model_revision=served.revision,
            terms=await env.prices.terms(principal, served),
            streamed=ask.stream,
            bound=bound_of(ask, served),
            config_hash=env.config_hash,
        )

    opening = await opening_for(deployment)
    domain = env.auth.domain(principal)
    session = session_of(domain, call.header(b"x-session-affinity") or ask.session)
    fallbacks = env.catalog.fallbacks(deployment, env.clock.now_us(), principal.models)
    errand = Errand(
        ask,
        deployment,
        domain,
        call.id,
        fallbacks=fallbacks,
        session=session,
        weight=principal.weight,
    )
    grant = await env.admission.admit(call, principal, deployment, opening.bound)
    entry = Entry(env.ledger, opening, Meter(env.clock), errand, grant, opening_for)
    try:
        async with grant, entry, call.watched():
            call.extra |= entry.notices
            await (_stream(env, call, entry) if ask.stream else _whole(env, call, entry))
    finally:
        call.notes |= entry.summary()


async def _stream(env: Env, call: Call, entry: Entry) -> None:
    meter, tail, num_batches = entry.meter, b"", 0
    async with (
        call.kept_alive(env.keep_alive_s),
        aclosing(env.relay.stream(entry.errand, entry.move)) as batches,
    ):
        async for batch in batches:
            ready = b""
            for frame in batch:
                meter.see(frame)
                ready += frame.data
                tail = b"" if frame.begins_anew else frame.tail or tail
            if ready:
                if not call.status:
                    call.extra |= entry.notices  # it may have fallen back meanwhile
                await call.event(ready)
                meter.handed_over()
            if num_batches % COUNT_EVERY == 0 or meter.final is not None:
                entry.errand.count(meter.so_far())
            num_batches += 1
    env.pulse.note(entry.tenant_id, entry.errand.deployment.id, meter.pace())
    await entry.settle()
    await call.end((tail if entry.errand.ask.include_usage else b"") + DONE)


async def _whole(env: Env, call: Call, entry: Entry) -> None:
    answer = await env.relay.whole(entry.errand, entry.move)
    entry.meter.final = answer.usage
    entry.errand.count(answer.usage)
    entry.meter.finish_reason = answer.finish_reason
    await entry.settle()
    call.extra |= entry.notices
    await call.send_json(200, answer.body)
