"""Where a server may listen that asks nobody for a key."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from runtime.trt.bind import Bind, LaunchRefused, bind_of, refuse_public, said_bind


@pytest.mark.parametrize(
    ("host", "is_refused"),
    [
        ("127.0.0.1", False),
        ("localhost", False),
        ("::1", False),
        ("10.0.0.5", False),
        ("172.16.3.4", False),
        ("192.168.1.1", False),
        ("100.64.0.1", False),
        ("fd00::1", False),
        ("fe80::1", False),
        ("::ffff:10.0.0.5", False),
        ("0.0.0.0", True),
        ("::", True),
        ("8.8.8.8", True),
        ("2606:4700::1", True),
        ("::ffff:8.8.8.8", True),
        ("no.such.name.invalid", True),
    ],
)
def test_a_public_address_is_refused(host: str, is_refused: bool) -> None:
    refused = pytest.raises(LaunchRefused, match="listen")
    with refused if is_refused else nullcontext():
        refuse_public(Bind(host, 8000), "trtllm-serve", "don't")


def test_an_address_comes_from_a_url_or_as_one_types_it() -> None:
    assert bind_of("http://10.0.0.5:8010/x", "guard_url") == Bind("10.0.0.5", 8010)
    assert bind_of("http://[::1]/v1", "url") == Bind("::1", 80)
    assert said_bind("[::1]:8000") == Bind("::1", 8000)
    assert (said_bind("gpu-3:8000").url, said_bind("0.0.0.0:1").url) == (
        "http://gpu-3:8000",
        "http://127.0.0.1:1",
    )
    assert (str(Bind("::1", 8000)), Bind("::1", 8000).url) == ("[::1]:8000", "http://[::1]:8000")


@pytest.mark.parametrize("text", ["", "8000", "host", "host:", ":8000", "host:x", "h:1/v1", "h:0"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(LaunchRefused, match="write 127"):
        said_bind(text)


def test_https_is_nothing_to_listen_with() -> None:
    with pytest.raises(LaunchRefused, match="guard_url is https"):
        bind_of("https://gpu-3:8010", "guard_url")
