"""The keys that trtllm-serve's YAML may have, by release: any other ends it as it starts.

A recording of a release, made on a machine with a GPU, wins where there is one. Until then
`serve_keys.txt` counts, which was read in public sources and held against no release.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

from engines.trtllm import schema, versions

LISTED = (1, 2)  # the releases whose keys are all in the list
HERE = resources.files("engines.trtllm")
TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "str": (str,),
    "list": (list,),
    "table": (dict,),
}
# The front of context and generation servers takes these; all else it hands to its servers.
ONES_SERVERS = {
    "num_instances": "int",
    "urls": "list",
    "router": "table",
    "router.type": "str",
    "router.tokens_per_block": "int",
}
FRONT = {
    "hostname": "str",
    "port": "int",
    "context_servers": "table",
    "generation_servers": "table",
    **{f"context_servers.{name}": kind for name, kind in ONES_SERVERS.items()},
    **{f"generation_servers.{name}": kind for name, kind in ONES_SERVERS.items()},
}


def has(version: str, key: str) -> bool:
    """Whether a release knows a key at the top."""
    found = recorded(version)
    return key in (known(version) if found is None else found.get("properties", {}))


def faults(version: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What a release wouldn't take of a serve YAML, as (path, reason)."""
    found = recorded(version)
    if found is not None:
        return schema.faults(settings, found)
    return _by_list(settings, known(version), "", f"TensorRT-LLM {version}")


def refused(version: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Of these, what is surely wrong: a newer release may have keys that the list doesn't."""
    for path, reason in faults(version, settings):
        if _is_whole(version) or path in known(version):
            yield path, reason


def doubtful(version: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """And what a release may or may not take. Nothing is said of what is no release."""
    if versions.FORM.fullmatch(version) and not _is_whole(version):
        yield from (one for one in faults(version, settings) if one[0] not in known(version))


def _is_whole(version: str) -> bool:
    """Whether every key of a release is known."""
    return recorded(version) is not None or versions.parsed(version).release[:2] == LISTED


def front_faults(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The same of what the front of context and generation servers is told."""
    return _by_list(settings, FRONT, "", "its front")


@cache
def recorded(version: str) -> dict[str, Any] | None:
    """The JSON schema of a release's settings. None: it was never recorded."""
    file = HERE / "recorded" / f"{version}.json"
    if not file.is_file():
        return None
    found = json.loads(file.read_text("utf-8"))
    settings: dict[str, Any] | None = found["schemas"].get("TorchLlmArgs")
    return settings


@cache
def known(version: str) -> Mapping[str, str]:
    """The keys of a release by path, and the type of each, as far as the list goes."""
    lines = (HERE / "serve_keys.txt").read_text("utf-8").splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return {row[0]: row[1] for row in rows if all(_is_in(version, bound) for bound in row[2:])}


def _is_in(version: str, bound: str) -> bool:
    """Whether a release is one of `>=1.3.0rc22`, or of `<1.3.0rc0`."""
    given, other = versions.parsed(version), versions.parsed(bound.lstrip("<>="))
    return given >= other if bound.startswith(">=") else given < other


def _by_list(
    settings: Mapping[str, Any], keys: Mapping[str, str], prefix: str, whose: str
) -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        path = f"{prefix}{name}"
        kind = keys.get(path)
        if kind is None:
            yield path, f"is no key that {whose} has"
        elif not _is_a(kind, value):
            yield path, f"expected {kind.rstrip('?')}, found {value!r}"
        elif kind.startswith("table") and value is not None:
            yield from _by_list(value, keys, f"{path}.", whose)


def _is_a(kind: str, value: Any) -> bool:
    if kind == "any" or (value is None and kind.endswith("?")):
        return True
    kinds = TYPES[kind.rstrip("?")]
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
