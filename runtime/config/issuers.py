"""The config's `[[issuers]]`: whose tokens are believed, and for which tenant they speak."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from runtime.config.kinds import Json, Seconds, is_http_url
from runtime.config.tls import ClientTls

# Signatures alone: a shared secret would let whoever checks a token make one.
Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
Scope = Literal["inference", "models:read", "usage:read", "keys:write", "admin"]
Leeway = Annotated[float, Meta(ge=0, le=60)]
_TEXT = re.compile(r"[\x21-\x7b\x7d\x7e]{1,255}")  # visible, and no "|", which parts a subject


class IssuerSettings(Struct, frozen=True, kw_only=True):
    """One issuer of tokens (JWTs), such as an OpenID provider."""

    issuer: str  # `iss`, exactly
    audiences: tuple[str, ...]  # one of them must be in `aud`
    algorithms: tuple[Algorithm, ...] = ("RS256",)
    jwks_url: str = ""  # where its keys are
    jwks_file: str = ""  # or a file of them; neither: OpenID discovery tells
    tls: ClientTls = ClientTls()
    tenant: str = ""  # for whom all its tokens speak
    tenant_claim: str = ""  # or the claim that says so
    tenants: dict[str, str] = {}  # what that claim says: the tenant's name; empty: it's the name
    scopes: tuple[Scope, ...] = ("inference", "models:read", "usage:read")  # at most
    scopes_claim: str = ""  # the claim with those of one token; empty: it has them all
    required_claims: Json = {}
    leeway_s: Leeway = 5.0
    max_life_s: Seconds = 86400.0  # of a token
    refresh_s: Seconds = 300.0  # how old its keys may be before they are asked for again
    stale_s: Seconds = 3600.0  # how old, while nobody answers

    @staticmethod
    def faults(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """One way to its keys, and one to a tenant."""
        issuer, url, file = (found.get(key, "") for key in ("issuer", "jwks_url", "jwks_file"))
        if issuer is not None and issuer != "" and not _TEXT.fullmatch(issuer):
            yield "issuer", "expected up to 255 visible characters, without |"
        if url and not is_https_url(url):
            yield "jwks_url", "expected an https:// URL"
        if url and file:
            yield "jwks_file", "there is a `jwks_url` already; leave one of them out"
        if "" == url == file and issuer and not is_https_url(issuer):
            yield "jwks_url", "is missing: only an issuer whose name is an https:// URL tells it"
        if not found.get("audiences", ("",)):
            yield "audiences", "is empty: name what the tokens are for"
        if "algorithms" in found and found["algorithms"] == ():
            yield "algorithms", "is empty: name those that the issuer signs with"
        yield from _tenant_faults(found)


def _tenant_faults(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    tenant, claim = found.get("tenant", ""), found.get("tenant_claim", "")
    if tenant == "" == claim:
        yield "tenant", "is missing: name a tenant, or the claim that says which (`tenant_claim`)"
    if tenant and claim:
        yield "tenant_claim", "there is a `tenant` already; leave one of them out"
    if found.get("tenants") and claim == "":
        yield "tenants", "is about what a claim says: name it as `tenant_claim`"


def issuer_faults(issuers: Sequence[IssuerSettings | None]) -> Iterator[tuple[str, str]]:
    """No two are of one name. None stands for what has other faults."""
    names = [issuer.issuer if issuer else None for issuer in issuers]
    for i, name in enumerate(names):
        if name is not None and name in names[:i]:
            yield f"issuers[{i}].issuer", f"{name!r} is used twice"


def is_https_url(text: str) -> bool:
    """Whether a server can be called there, over TLS."""
    return is_http_url(text) and urlsplit(text).scheme == "https"
