"""Routes in wrangler's manner: which hosts and paths they mean, and what is wrong with bad ones."""

from __future__ import annotations

import pytest

from runtime.config.route_patterns import BadPattern, bare_host, compile_routes, parse_route

MEANT = [
    ("ai.example.com/*", "ai.example.com", "/v1/models", True),
    ("ai.example.com/*", "AI.Example.COM:8787", "/v1/models", True),
    ("AI.example.com/*", "ai.example.com", "/", True),
    ("ai.example.com/*", "ai.example.com.", "/v1", True),
    ("ai.example.com/*", "other.example.com", "/v1", False),
    ("ai.example.com/*", "ai.example.com.evil.test", "/v1", False),
    ("ai.example.com/*", "", "/v1", False),
    ("ai.example.com/v1/*", "ai.example.com", "/v1/models", True),
    ("ai.example.com/v1/*", "ai.example.com", "/v1", False),
    ("ai.example.com/v1/*", "ai.example.com", "/V1/models", False),
    ("ai.example.com/v1*", "ai.example.com", "/v1", True),
    ("ai.example.com/v1/models", "ai.example.com", "/v1/models", True),
    ("ai.example.com/v1/models", "ai.example.com", "/v1/models/x", False),
    ("*.example.com/*", "a.b.example.com:443", "/v1", True),
    ("*.example.com/*", "example.com", "/v1", False),
    ("*.example.com/*", "notexample.com", "/v1", False),
    ("*example.com/*", "example.com", "/v1", True),
    ("*example.com/*", "a.example.com", "/v1", True),
    ("*example.com/*", "notexample.com", "/v1", False),
    ("*/v1/*", "anything", "/v1/x", True),
    ("*/v1/*", "", "/v1/x", True),
    ("https://ai.example.com/*", "ai.example.com", "/v1", True),
    ("127.0.0.1/*", "127.0.0.1:8787", "/v1", True),
    ("[::1]/*", "[::1]:8787", "/v1", True),
    ("localhost/*", "localhost", "/v1", True),
]


@pytest.mark.parametrize(("route", "host", "path", "answered"), MEANT)
def test_a_route_means(route: str, host: str, path: str, answered: bool) -> None:
    matches = compile_routes([route])
    assert matches is not None
    assert matches(host, path) is answered


def test_any_one_of_several_is_enough() -> None:
    matches = compile_routes(["a.test/*", "b.test/v1/*"])
    assert matches is not None
    assert [matches(host, "/v1/x") for host in ("a.test", "b.test", "c.test")] == [
        True,
        True,
        False,
    ]


def test_no_routes_need_no_matching() -> None:
    assert compile_routes([]) is None


BAD = [
    ("ai.example.com", 'write "ai.example.com/*"'),
    ("", "has no path"),
    ("/v1/*", "not a host name"),
    ("ftp://ai.example.com/*", "no scheme"),
    ("ai.*.com/*", "only at the start"),
    ("ai*/x", "only at the start"),
    ("**.example.com/*", "only at the start"),
    ("ai.example.com/*/x", "only at the start"),
    ("ai.example.com/**", "only at the start"),
    ("ai.example.com:8787/*", "no port"),
    ("[::1]:80/*", "no port"),
    ("ai.example.com/x?y=1", "no query"),
    ("ai.example.com/%20", "no query"),
    ("ai..example.com/*", "not a host name"),
    ("-ai.example.com/*", "not a host name"),
    ("exämple.com/*", "not a host name"),
    ("*./*", "not a host name"),
    ("a b/*", "not a host name"),
]


@pytest.mark.parametrize(("route", "reason"), BAD)
def test_a_bad_route_is_told_with_what_to_write(route: str, reason: str) -> None:
    with pytest.raises(BadPattern, match=reason.replace("*", r"\*")):
        parse_route(route)


@pytest.mark.parametrize(
    ("header", "host"),
    [("A.test:1", "a.test"), ("[::1]:80", "[::1]"), ("[::1]", "[::1]"), ("", ""), (":80", "")],
)
def test_a_host_header_without_its_port(header: str, host: str) -> None:
    assert bare_host(header) == host
