"""What the guard can't watch, and how its gateway hears of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from engines.trtllm import manifest, places
from engines.trtllm.settings import Found
from engines.trtllm.versions import HOOK, Version

Faults = Iterator[tuple[str, str]]

BLIND = "blinds the guard: {}; leave it out, or say `guard = false`"
UNASKED = (
    "is missing: a launcher on another machine has to ask for one, or anybody there could read what"
    " the guard saw, and follow in the place of the gateway, which then sends nothing to the server"
)
# What each setting must be, and why the guard sees nothing where it is anything else.
WATCHED: dict[str, tuple[object, str]] = {
    "host_cache_bytes": (0, "a block that went to the host comes back into other memory"),
    "partial_reuse": (False, "a block that is reused in part is taken over, and keeps its number"),
    "kv_manager": ("v1", "V2's numbers are places, whose memory changes under them"),
    "pipeline_parallel": (1, "TensorRT-LLM takes no connector, which it is, beside this"),
    "overlap_scheduler": (False, "what it is told is a step behind what the GPU reads"),
    "chunked_prefill": (False, "a prompt whose blocks come in several steps wasn't tried with it"),
}


def faults(trt: Found, cache: str | None) -> Faults:
    """Why the guard could not do its work, as (key, reason)."""
    if trt.guard is False:
        for key in ("guard_url", "guard_secret"):
            if getattr(trt, key):
                yield f"trt.{key}", "means nothing without the guard; leave it out"
    if trt.guard is not True:
        return
    for key, (wanted, reason) in WATCHED.items():
        if getattr(trt, key) not in (None, wanted):
            yield f"trt.{key}", BLIND.format(reason)
    if trt.context is not None and trt.context.urls:
        told = "a server that computes answers alone refuses a connector, which it is"
        yield "trt.context", BLIND.format(told)
    if cache in ("off", "shared-accepted"):
        yield "cache", f'the guard tells tenants apart by their salts, and "{cache}" sends none'


def url_faults(trt: Found, version: Version | None, servers: Sequence[Any] | None) -> Faults:
    """Where the gateway hears what the guard saw: a server a URL, and each its own."""
    if trt.guard_url and (told := places.guard_url_fault(trt.guard_url)):
        yield "trt.guard_url", told
    if servers is None or trt.guard_url is None or trt.guard is not True:
        return
    own = [server.guard_url if server else None for server in servers]
    if servers and trt.guard_url:
        yield "trt.guard_url", "each of `servers` has its own; say it there"
    if not servers and not trt.guard_url:
        yield from _unheard("trt.guard_url", version)
    for i, url in enumerate(own):
        key = f"servers[{i}].guard_url"
        if url == "":
            yield from _unheard(key, version)
        elif url in own[:i] and url is not None:
            yield key, "is there twice: each server has its own launcher"
        elif url and (told := places.guard_url_fault(url)):
            yield key, told
    yield from _secret_faults(trt, [url for url in (trt.guard_url, *own) if url])


def _secret_faults(trt: Found, urls: Sequence[str]) -> Faults:
    if trt.guard_secret and not urls:
        yield "trt.guard_secret", "means nothing without a `guard_url`"
    asked = [url for url in urls if not places.guard_url_fault(url)]
    if trt.guard_secret == "" and any(map(places.guard_is_open, asked)):
        yield "trt.guard_secret", UNASKED


def _unheard(key: str, version: Version | None) -> Faults:
    if version is not None and not manifest.has(str(version), "post_processor_hook"):
        yield (
            key,
            f"is missing: {version} can't end a request from within (releases from {HOOK} on can), "
            "so the gateway must hear of it, from the launcher",
        )
