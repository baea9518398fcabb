"""From where a caller calls, whatever stands between us and it."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gateway.identity.networks import MAX_FORWARDED, Proxies, is_inside, parse_address
from runtime.config.networks import BadNetwork, parse_network


def scope(client: tuple[str, int] | None, *forwarded: str) -> dict[str, Any]:
    headers = [(b"x-forwarded-for", value.encode("latin-1")) for value in forwarded]
    return {"client": client, "headers": [(b"host", b"x"), *headers]}


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("203.0.113.7", IPv4Network("203.0.113.7/32")),
        ("203.0.113.0/24", IPv4Network("203.0.113.0/24")),
        ("0.0.0.0/0", IPv4Network("0.0.0.0/0")),
        ("2001:db8::/32", IPv6Network("2001:db8::/32")),
        ("::1", IPv6Network("::1/128")),
        ("::ffff:10.0.0.0/104", IPv4Network("10.0.0.0/8")),
        ("::ffff:10.1.2.3", IPv4Network("10.1.2.3/32")),
        ("::/0", IPv6Network("::/0")),
    ],
)
def test_a_network_is_read(text: str, network: object) -> None:
    assert parse_network(text) == network


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is no network"),
        ("localhost", "is no network"),
        ("10.0.0.0/33", "is no network"),
        ("10.0.0/8", "is no network"),
        ("010.0.0.1", "is no network"),
        ("10.0.0.1/8", "write 10.0.0.0/8, or one address"),
        ("2001:db8::1/32", "write 2001:db8::/32"),
        ("fe80::1%eth0", "names a zone"),
        (" 10.0.0.1", "is no network"),
        ("9" * 5000, "is no network"),
    ],
)
def test_another_text_is_refused_with_what_to_write(text: str, told: str) -> None:
    with pytest.raises(BadNetwork, match=told):
        parse_network(text)


@pytest.mark.parametrize(
    ("address", "networks", "inside"),
    [
        ("203.0.113.7", ["203.0.113.0/24"], True),
        ("203.0.114.7", ["203.0.113.0/24"], False),
        ("::ffff:203.0.113.7", ["203.0.113.0/24"], True),
        ("203.0.113.7", ["::ffff:203.0.113.0/120"], True),
        ("::ffff:203.0.113.7", ["::/0"], False),  # it is an IPv4 address
        ("2001:db8::1%eth0", ["2001:db8::/32"], True),
        ("::1", ["127.0.0.1"], False),
        ("", ["0.0.0.0/0", "::/0"], False),
        ("x", ["0.0.0.0/0", "::/0"], False),
        ("203.0.113.7", [], False),
    ],
)
def test_an_address_is_in_a_network_or_not(address: str, networks: list[str], inside: bool) -> None:
    assert is_inside(parse_address(address), map(parse_network, networks)) == inside


CHAINS = [
    # trusted, peer, X-Forwarded-For, who it is
    ((), "10.0.0.1", ["203.0.113.7"], "10.0.0.1"),  # nobody is believed
    (("10.0.0.0/8",), "192.0.2.1", ["203.0.113.7"], "192.0.2.1"),  # a stranger isn't
    (("10.0.0.0/8",), "10.0.0.1", [], "10.0.0.1"),
    (("10.0.0.0/8",), "10.0.0.1", ["203.0.113.7"], "203.0.113.7"),
    (("10.0.0.0/8",), "::ffff:10.0.0.1", ["203.0.113.7"], "203.0.113.7"),
    (("10.0.0.0/8",), "10.0.0.1", ["203.0.113.7, 10.0.0.2"], "203.0.113.7"),
    (
        ("10.0.0.0/8",),
        "10.0.0.1",
        ["1.1.1.1, 203.0.113.7 , 10.0.0.2"],
        "203.0.113.7",
    ),  # 1.1.1.1 lied
    (("10.0.0.0/8",), "10.0.0.1", ["1.1.1.1", "203.0.113.7", "10.0.0.2"], "203.0.113.7"),  # lines
    (("10.0.0.0/8",), "10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),  # ours all the way
    (("10.0.0.0/8",), "10.0.0.1", ["203.0.113.7:4711"], "203.0.113.7"),
    (("10.0.0.0/8",), "10.0.0.1", ["[2001:db8::7]:4711"], "2001:db8::7"),
    (("10.0.0.0/8",), "10.0.0.1", ["2001:db8::7"], "2001:db8::7"),
    (("10.0.0.0/8",), "10.0.0.1", ["203.0.113.7, unknown"], None),  # a hop that isn't known
    (("10.0.0.0/8",), "10.0.0.1", ["203.0.113.7,"], None),
    (("10.0.0.0/8",), "10.0.0.1", ["203.0.113.7, \xff"], None),
    (("10.0.0.0/8",), "10.0.0.1", ["203.0.113.7, 10.0.0.2" + "0" * 100], None),
    (("10.0.0.0/8",), None, ["203.0.113.7"], None),  # a unix socket has no address
    (("unix",), None, ["203.0.113.7"], "203.0.113.7"),
    (("unix",), None, [], None),
    (("unix",), "192.0.2.1", ["203.0.113.7"], "192.0.2.1"),
    (("unix",), None, ["203.0.113.7, junk"], None),
    (("10.0.0.0/8", "2001:db8::/32"), "2001:db8::1", ["203.0.113.7, 10.0.0.2"], "203.0.113.7"),
]


@pytest.mark.parametrize(("trusted", "peer", "forwarded", "caller"), CHAINS)
def test_who_it_is_behind_proxies(
    trusted: tuple[str, ...], peer: str | None, forwarded: list[str], caller: str | None
) -> None:
    client = (peer, 1234) if peer else None
    found = Proxies(trusted).caller(scope(client, *forwarded))
    assert found == (ip_address(caller) if caller else None)


def test_a_peer_without_a_name_is_one_without_an_address() -> None:
    assert Proxies(("unix",)).caller(scope(("", 0), "203.0.113.7")) == ip_address("203.0.113.7")
    assert Proxies().caller(scope(("", 0), "203.0.113.7")) is None


def test_of_a_list_without_end_the_end_is_read() -> None:
    proxies = Proxies(("10.0.0.0/8",))
    lies = "198.51.100.1," * MAX_FORWARDED
    assert proxies.caller(scope(("10.0.0.1", 1), lies + "203.0.113.7, 10.0.0.2")) == ip_address(
        "203.0.113.7"
    )
    ours = "203.0.113.7," + "10.0.0.2," * MAX_FORWARDED
    assert proxies.caller(scope(("10.0.0.1", 1), ours + "10.0.0.2")) == ip_address("10.0.0.2")


@given(st.lists(st.text(st.characters(max_codepoint=255), max_size=40), max_size=5))
def test_whatever_a_header_says_a_caller_is_found_and_no_stranger_is_believed(
    lines: list[str],
) -> None:
    assert Proxies().caller(scope(("192.0.2.1", 1), *lines)) == ip_address("192.0.2.1")
    found = Proxies(("10.0.0.0/8",)).caller(scope(("10.0.0.1", 1), *lines))
    assert found is None or found == ip_address("10.0.0.1") or any(str(found) for _ in lines)


@given(st.ip_addresses(), st.lists(st.ip_addresses(v=4), max_size=4))
def test_what_a_client_writes_changes_nothing_of_what_our_proxies_saw(
    client: object, lies: list[object]
) -> None:
    header = ", ".join(map(str, [*lies, client, "10.0.0.2"]))
    found = Proxies(("10.0.0.0/29",)).caller(scope(("10.0.0.1", 1), header))
    plain = Proxies(("10.0.0.0/29",)).caller(scope(("10.0.0.1", 1), f"{client}, 10.0.0.2"))
    if not is_inside(parse_address(str(client)), [parse_network("10.0.0.0/29")]):
        assert found == plain == parse_address(str(client))
