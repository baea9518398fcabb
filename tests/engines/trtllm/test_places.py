"""Addresses of servers that ask nobody for a key."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from engines.trtllm.places import address_faults, guard_url_fault, is_public, url_fault


@pytest.mark.parametrize("host", ["8.8.8.8", "2606:4700::1111", "0.0.0.0", "::"])
def test_addresses_that_all_the_world_reaches(host: str) -> None:
    assert is_public(host)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "10.0.0.5", "192.168.1.2", "172.16.0.1", "::1", "fd00::1", "gpu-1",
             "169.254.1.1", "trt.internal", ""]
)  # fmt: skip
def test_addresses_that_few_reach_and_names_which_are_believed(host: str) -> None:
    assert not is_public(host)


@pytest.mark.parametrize(
    ("url", "is_good"),
    [("http://8.8.8.8:8000/v1", False), ("https://8.8.8.8/v1", True),
     ("http://10.0.0.5:8000/v1", True), ("http://[2606:4700::1111]:8000/v1", False),
     ("http://gpu-1:8000/v1", True)],
)  # fmt: skip
def test_no_public_address_is_called_in_plain_text(url: str, is_good: bool) -> None:
    assert (url_fault(url) == "") == is_good


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://gpu-1:9000", "expected the http(s) URL"),
        ("gpu-1:9000", "expected the http(s) URL"),
        ("http://", "expected the http(s) URL"),
        ("http://gpu-1:99999", "expected the http(s) URL"),
        ("http://gpu-1:0", "expected the http(s) URL"),
        ("http://[::1", "expected the http(s) URL"),
        ("http://me:secret@gpu-1:9000", "`guard_secret`"),
        ("http://gpu-1:9000/?key=x", "`guard_secret`"),
        ("http://8.8.8.8:9000", "public address"),
        ("http://10.0.0.5:9000/guard", ""),
        ("https://guard.example.com", ""),
    ],
)
def test_where_a_launcher_tells_of_its_guard(url: str, reason: str) -> None:
    found = guard_url_fault(url)
    assert reason in found
    assert bool(reason) == bool(found)


@pytest.mark.parametrize(
    "address",
    ["", "gpu-1", "gpu-1:", ":8001", "gpu-1:0", "gpu-1:65536", "http://gpu-1:8001", "gpu 1:8001",
     "gpu-1:8001/v1", "::1:8001", "gpu-1:8001\n", "gpu-1:\uff18"],
)  # fmt: skip
def test_what_is_no_address_is_told(address: str) -> None:
    ((at, reason),) = address_faults(["10.0.0.1:1", address])
    assert at == 1
    assert reason.startswith("expected host:port")


def test_an_address_is_there_once_and_not_public() -> None:
    addresses = ["Gpu-1:8001", "gpu-1:8001", None, "[fd00::1]:8001", "9.9.9.9:8001", "gpu-1:8002"]
    assert [(at, reason[:11]) for at, reason in address_faults(addresses)] == [
        (1, "is there tw"),
        (4, "is a public"),
    ]


@given(st.lists(st.text(max_size=30)))
def test_no_text_breaks_it(texts: list[str]) -> None:
    assert all(reason for _, reason in address_faults(texts))
    assert all(isinstance(guard_url_fault(text), str) for text in texts)
