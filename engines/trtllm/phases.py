"""What holds for one set of servers: a model's only one, or that of a phase. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from engines.trtllm import places
from engines.trtllm.settings import Found, TrtServers

PHASES = ("context", "generation")


@dataclass(frozen=True, slots=True)
class Phase:
    """One set of servers, with the model's word for what it doesn't say. None: a fault there."""

    name: str  # "": of the model as a whole
    path: str | None
    path_key: str  # where that is said
    kv_dtype: str | None
    tensor_parallel: int | None
    pipeline_parallel: int | None
    expert_parallel: int | None
    max_batch_size: int | None
    max_num_tokens: int | None

    def key(self, name: str) -> str:
        """Where the config says this of it, or would."""
        return f"trt.{self.name}.{name}" if self.name else f"trt.{name}"


def phases(trt: Found, path: str | None) -> list[Phase]:
    """Both phases where they are apart, else the one of them all."""
    own = [(name, getattr(trt, name)) for name in PHASES]
    apart = [_phase(name, servers, trt, path) for name, servers in own if servers and servers.urls]
    return apart or [_phase("", TrtServers(), trt, path)]


def _phase(name: str, own: TrtServers, trt: Found, path: str | None) -> Phase:
    said = {
        field.name: getattr(trt if getattr(own, field.name) in ("", 0) else own, field.name)
        for field in fields(Phase)
        if field.name not in ("name", "path", "path_key")
    }
    if own.path == "":
        return Phase(name, path, "path", **said)
    return Phase(name, own.path, f"trt.{name}.path", **said)


def faults(trt: Found) -> Iterator[tuple[str, str]]:
    """What is wrong with servers of prompts and of answers, as (key, reason)."""
    if trt.context is None or trt.generation is None:
        return
    for name, other in (PHASES, PHASES[::-1]):
        own: TrtServers = getattr(trt, name)
        if own.urls == () and getattr(trt, other).urls:
            yield f"trt.{name}.urls", f"is missing: `{other}` has servers, and needs these beside"
        elif own.urls == () and own != TrtServers():
            yield f"trt.{name}.urls", "is missing: which servers is this about?"
    yield from _address_faults(trt)


def _address_faults(trt: Found) -> Iterator[tuple[str, str]]:
    context, generation = trt.context.urls or (), trt.generation.urls or ()
    for at, reason in places.address_faults([*context, *generation]):
        name, i = ("context", at) if at < len(context) else ("generation", at - len(context))
        yield f"trt.{name}.urls[{i}]", reason
