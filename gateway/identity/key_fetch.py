"""Reads an issuer's key set: from a file, from its pinned https URL, or from where discovery says.

No redirect is followed and no proxy of the environment is asked: the address is the operator's.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from anyio import to_thread

from engines import regular
from gateway.identity.key_source import Fetch, FetchFailed
from runtime.config.issuers import IssuerSettings, is_https_url
from runtime.tls.certificates import BadCertificate
from runtime.tls.contexts import Followed

WITHIN_S = 5.0
MAX_BYTES = 256 * 1024
WELL_KNOWN = "/.well-known/openid-configuration"


def fetch_of(settings: IssuerSettings, folder: Path) -> Fetch:
    """How this issuer's keys are read. Relative paths start at `folder`."""
    if settings.jwks_file:
        return partial(_read, folder / settings.jwks_file)
    tls = Followed(settings.tls, folder)
    if settings.jwks_url:
        return partial(_get, settings.jwks_url, tls)
    return partial(_discover, settings.issuer, tls)


async def _read(path: Path) -> bytes:
    try:
        return await to_thread.run_sync(regular.read, path)
    except OSError as fault:
        raise FetchFailed(f"{path}: {fault.strerror}") from None


async def _discover(issuer: str, tls: Followed) -> bytes:
    """The key set that the issuer's own metadata names (OpenID Connect Discovery 1.0, 4.3)."""
    url = issuer.rstrip("/") + WELL_KNOWN
    try:
        found: Any = json.loads(await _get(url, tls))
    except (ValueError, RecursionError):
        raise FetchFailed(f"{url} is not JSON") from None
    named = found if isinstance(found, dict) else {}
    if named.get("issuer") != issuer:
        raise FetchFailed(f"{url} speaks for another issuer")
    keys = named.get("jwks_uri")
    if not isinstance(keys, str) or not is_https_url(keys):
        raise FetchFailed(f"{url} names no https:// URL as jwks_uri")
    return await _get(keys, tls)


async def _get(url: str, tls: Followed) -> bytes:
    try:
        async with (
            asyncio.timeout(WITHIN_S),
            httpx.AsyncClient(verify=tls(), trust_env=False, timeout=WITHIN_S) as http,
            http.stream("GET", url, headers={"accept": "application/json"}) as answer,
        ):
            if answer.status_code != httpx.codes.OK:
                raise FetchFailed(f"{url} answered {answer.status_code}")
            return await _body(url, answer)
    except TimeoutError:
        raise FetchFailed(f"{url} did not answer within {WITHIN_S:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, BadCertificate, OSError) as fault:
        raise FetchFailed(f"{url}: {str(fault) or type(fault).__name__}") from None


async def _body(url: str, answer: httpx.Response) -> bytes:
    body = b""
    async for chunk in answer.aiter_bytes():
        body += chunk
        if len(body) > MAX_BYTES:
            raise FetchFailed(f"{url} answered more than {MAX_BYTES} bytes")
    return body
