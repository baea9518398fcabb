"""CORS: whose pages may ask, whose may read, and who is refused. (In a browser: e2e/test_pages.)"""

from __future__ import annotations

from typing import Any

import pytest

from gateway.asgi import Call
from gateway.cors import Cors, cors_of
from gateway.errors import OriginNotAllowed
from runtime.config.tenants import TenantSettings

APP, OTHER, EVIL = "https://app.acme.test", "https://beta.test", "https://evil.test"
CORS = cors_of(
    [
        TenantSettings(name="acme", origins=(APP, "http://localhost:3000")),
        TenantSettings(name="beta", origins=(OTHER,)),
        TenantSettings(name="quiet"),
    ]
)
READABLE = {b"access-control-allow-origin", b"access-control-expose-headers"}
SDK_HEADERS = (
    "authorization,content-type,x-stainless-arch,x-stainless-lang,x-stainless-os,"
    "x-stainless-package-version,x-stainless-retry-count,x-stainless-runtime,"
    "x-stainless-runtime-version,x-stainless-timeout"
)


class Browser:
    """A call from a page, and what was answered."""

    def __init__(self, origin: str = "", method: str = "POST", **headers: str) -> None:
        self.sent: list[Any] = []
        pairs = {"origin": origin} if origin else {}
        pairs |= {name.replace("_", "-"): value for name, value in headers.items()}
        raw = [(name.encode(), value.encode()) for name, value in pairs.items()]
        self.call = Call(
            {"type": "http", "method": method, "headers": raw}, self._never, self._sent
        )

    async def _never(self) -> Any:
        raise AssertionError("nothing is read")

    async def _sent(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    def may_read(self) -> str:
        return self.call.extra.get(b"access-control-allow-origin", b"").decode()


def cors() -> Cors:
    assert CORS is not None
    return CORS


def test_without_origins_in_the_config_there_is_no_cors() -> None:
    assert cors_of([TenantSettings(name="acme")]) is None
    assert cors_of([]) is None


@pytest.mark.parametrize(
    ("origin", "readable"),
    [(APP, True), (OTHER, True), (EVIL, False), ("", False), ("null", False)],
)
def test_before_the_caller_is_known_any_tenant_s_page_may_read(origin: str, readable: bool) -> None:
    page = Browser(origin)
    cors().greet(page.call)
    assert page.may_read() == (origin if readable else "")
    assert page.call.extra[b"vary"] == b"Origin", "caches must keep them apart, whoever asks"


@pytest.mark.parametrize(
    ("tenant", "origin", "allowed"),
    [
        ("acme", APP, APP),
        ("acme", "http://localhost:3000", "http://localhost:3000"),
        ("acme", "http://localhost:3001", None),
        ("acme", OTHER, None),
        ("acme", EVIL, None),
        ("acme", "null", None),
        ("acme", APP.upper(), None),
        ("acme", "", ""),
        ("beta", APP, None),
        ("beta", OTHER, OTHER),
        ("quiet", APP, ""),
        ("quiet", EVIL, ""),
        ("unheard of", APP, ""),
    ],
)
def test_a_known_caller_s_own_pages_alone(tenant: str, origin: str, allowed: str | None) -> None:
    """None: refused. A tenant without pages is served, and no page can read it."""
    page = Browser(origin)
    cors().greet(page.call)
    if allowed is None:
        with pytest.raises(OriginNotAllowed, match="does not list it"):
            cors().admit(page.call, tenant)
    else:
        cors().admit(page.call, tenant)
    assert page.may_read() == (allowed or "")
    assert READABLE.isdisjoint(page.call.extra) == (not allowed)
    assert b"access-control-allow-credentials" not in page.call.extra


def test_a_star_is_any_page() -> None:
    found = cors_of([TenantSettings(name="open", origins=("*",)), TenantSettings(name="quiet")])
    assert found is not None
    page = Browser(EVIL)
    found.greet(page.call)
    found.admit(page.call, "open")
    assert page.may_read() == "*"
    found.admit(page.call, "quiet")
    assert page.may_read() == ""


async def test_a_preflight_lets_the_sdk_s_headers_pass() -> None:
    page = Browser(
        APP,
        "OPTIONS",
        access_control_request_method="POST",
        access_control_request_headers=SDK_HEADERS,
    )
    cors().greet(page.call)
    assert cors().is_preflight(page.call)
    await cors().answer_preflight(page.call)
    assert page.sent[0]["status"] == 204
    assert page.headers[b"access-control-allow-origin"] == APP.encode()
    assert page.headers[b"access-control-allow-headers"] == SDK_HEADERS.encode()
    assert b"POST" in page.headers[b"access-control-allow-methods"]
    vary = [value for name, value in page.sent[0]["headers"] if name == b"vary"]
    assert sorted(vary) == [
        b"Access-Control-Request-Method, Access-Control-Request-Headers",
        b"Origin",
    ]


async def test_a_preflight_of_a_page_that_nobody_lists_is_refused() -> None:
    page = Browser(EVIL, "OPTIONS", access_control_request_method="POST")
    cors().greet(page.call)
    with pytest.raises(OriginNotAllowed, match="no tenant lists it"):
        await cors().answer_preflight(page.call)
    assert page.sent == []


@pytest.mark.parametrize("names", ["", "x-ok: 1\r\nset-cookie", "é", "x" * 9000])
async def test_only_header_names_are_said_back(names: str) -> None:
    page = Browser(
        APP,
        "OPTIONS",
        access_control_request_method="POST",
        access_control_request_headers=names,
    )
    cors().greet(page.call)
    await cors().answer_preflight(page.call)
    said = page.headers.get(b"access-control-allow-headers", b"")
    assert b"set-cookie" not in said
    assert len(said) <= 4096


@pytest.mark.parametrize(
    ("origin", "method", "headers"),
    [(APP, "POST", {"access_control_request_method": "POST"}), (APP, "OPTIONS", {}),
     ("", "OPTIONS", {"access_control_request_method": "POST"})],
)  # fmt: skip
def test_what_is_no_preflight(origin: str, method: str, headers: dict[str, str]) -> None:
    assert not cors().is_preflight(Browser(origin, method, **headers).call)
