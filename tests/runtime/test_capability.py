"""The signed identity of a request: what a host believes, and what it refuses."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from hypothesis import given, strategies as st

from runtime.capability import (
    ISSUER,
    LEEWAY_S,
    LIFE_S,
    MAX_CACHED,
    RENEW_S,
    CapabilityRefused,
    Signer,
    Verifier,
)

SEED = bytes(range(32))


class FakeTime:
    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def signer(time: FakeTime) -> Signer:
    return Signer(SEED, now=time)


@pytest.fixture
def verifier(signer: Signer, time: FakeTime) -> Verifier:
    return Verifier(signer.public_keys(), "m", now=time)


def signed(claims: dict[str, Any], **header: Any) -> str:
    """A token of our own key, with whatever claims."""
    key = Ed25519PrivateKey.from_private_bytes(SEED)
    payload = json.dumps(claims).encode()
    return jwt.PyJWS().encode(payload, key, "EdDSA", headers={"kid": "1"} | header)


def claims_at(now: float, **changes: Any) -> dict[str, Any]:
    claims = {"iss": ISSUER, "sub": "d", "aud": "m", "iat": int(now), "exp": int(now) + LIFE_S}
    return {name: value for name, value in (claims | changes).items() if value is not None}


def test_a_token_names_its_domain(signer: Signer, verifier: Verifier) -> None:
    assert verifier.domain(signer.mint("tenant-a", "m")) == "tenant-a"
    assert verifier.domain(signer.mint("tenant-b", "m")) == "tenant-b"


def test_a_token_is_minted_once_and_renewed_before_it_ends(signer: Signer, time: FakeTime) -> None:
    first = signer.mint("a", "m")
    assert signer.mint("b", "m") != first
    assert signer.mint("a", "n") != first
    time.now += LIFE_S - RENEW_S - 1
    assert signer.mint("a", "m") == first
    time.now += 1
    assert signer.mint("a", "m") != first


def test_a_minted_token_always_has_life_left(signer: Signer, time: FakeTime) -> None:
    verifier = Verifier(signer.public_keys(), "m", now=time)
    for _ in range(200):
        time.now += 0.7
        token = signer.mint("a", "m")
        time.now += RENEW_S - 1
        assert verifier.domain(token) == "a"
        time.now -= RENEW_S - 1


def test_an_expired_token_is_refused_even_if_it_was_believed(
    signer: Signer, verifier: Verifier, time: FakeTime
) -> None:
    token = signer.mint("a", "m")
    assert verifier.domain(token) == "a"
    time.now += LIFE_S + LEEWAY_S - 1
    assert verifier.domain(token) == "a", "clocks may differ a little"
    time.now += 1
    with pytest.raises(CapabilityRefused, match="expired"):
        verifier.domain(token)


def test_a_token_from_the_future_is_refused(
    signer: Signer, verifier: Verifier, time: FakeTime
) -> None:
    time.now += LEEWAY_S + 2
    token = signer.mint("a", "m")
    time.now -= LEEWAY_S + 2
    with pytest.raises(CapabilityRefused, match="future"):
        verifier.domain(token)
    time.now += 2
    assert verifier.domain(token) == "a"


def test_a_token_for_another_model_is_refused(signer: Signer, verifier: Verifier) -> None:
    for model in ("other", "M", "m2", ""):
        with pytest.raises(CapabilityRefused):
            verifier.domain(signer.mint("a", model))


def test_a_token_of_another_key_is_refused(verifier: Verifier, time: FakeTime) -> None:
    for other in (Signer(bytes(32), "1", time), Signer(bytes(32), "2", time)):
        with pytest.raises(CapabilityRefused):
            verifier.domain(other.mint("a", "m"))


def test_keys_rotate_by_their_ids(time: FakeTime) -> None:
    old, new = Signer(SEED, "1", time), Signer(bytes(32), "2", time)
    verifier = Verifier(old.public_keys() | new.public_keys(), "m", now=time)
    assert verifier.domain(old.mint("a", "m")) == verifier.domain(new.mint("a", "m")) == "a"


@pytest.mark.parametrize("name", ["iss", "sub", "aud", "iat", "exp"])
def test_every_claim_is_required(verifier: Verifier, time: FakeTime, name: str) -> None:
    assert verifier.domain(signed(claims_at(time.now))) == "d"
    with pytest.raises(CapabilityRefused):
        verifier.domain(signed(claims_at(time.now, **{name: None})))


BAD_CLAIMS: list[dict[str, Any]] = [
    {"iss": ISSUER + "x"}, {"iss": ISSUER[:-1]}, {"iss": [ISSUER]}, {"aud": ["other"]}, {"aud": 7},
    {"sub": 7}, {"sub": ["d"]}, {"exp": "9999999999"}, {"exp": 1e308}, {"exp": 1000030.5},
    {"iat": "1"}, {"exp": 10**30}, {"exp": -1}, {"iat": -(10**30)}, {"exp": True},
    {"exp": 1_000_000 + LIFE_S + 1}, {"iat": 10**30},
]  # fmt: skip


@pytest.mark.parametrize("changes", BAD_CLAIMS, ids=str)
def test_a_claim_of_a_wrong_kind_is_refused(
    verifier: Verifier, time: FakeTime, changes: dict[str, Any]
) -> None:
    with pytest.raises(CapabilityRefused):
        verifier.domain(signed(claims_at(time.now, **changes)))


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def forged(header: dict[str, Any], claims: dict[str, Any], secret: bytes) -> str:
    """A token made by hand, HMACed with whatever is at hand."""
    head, body = b64(json.dumps(header).encode()), b64(json.dumps(claims).encode())
    mac = hmac.digest(secret, f"{head}.{body}".encode(), hashlib.sha256)
    return f"{head}.{body}.{b64(mac) if secret else ''}"


def test_alg_none_is_refused(verifier: Verifier, time: FakeTime) -> None:
    for alg in ("none", "None", "NONE", "", None):
        token = forged({"alg": alg, "kid": "1", "typ": "JWT"}, claims_at(time.now), b"")
        with pytest.raises(CapabilityRefused):
            verifier.domain(token)


def test_an_hmac_keyed_with_the_public_key_is_refused(
    signer: Signer, verifier: Verifier, time: FakeTime
) -> None:
    raw = signer.public_keys()["1"]
    for secret in (raw.encode(), base64.b64decode(raw)):
        token = forged({"alg": "HS256", "kid": "1"}, claims_at(time.now), secret)
        with pytest.raises(CapabilityRefused):
            verifier.domain(token)


def test_another_algorithm_is_refused(verifier: Verifier, time: FakeTime) -> None:
    key = generate_private_key(65537, 2048)
    token = jwt.encode(claims_at(time.now), key, "RS256", headers={"kid": "1"})
    with pytest.raises(CapabilityRefused):
        verifier.domain(token)


@pytest.mark.parametrize(
    "header",
    [{"kid": "2"}, {"kid": "../1"}, {"kid": ""}, {"jku": "http://x", "kid": "3"}, {"crit": ["x"]}],
    ids=str,
)
def test_a_header_chooses_no_key_but_ours(
    verifier: Verifier, time: FakeTime, header: dict[str, Any]
) -> None:
    with pytest.raises(CapabilityRefused):
        verifier.domain(signed(claims_at(time.now), **header))


def test_a_changed_token_is_refused(signer: Signer, verifier: Verifier) -> None:
    """One changed character anywhere, in a host that knows the genuine one."""
    token = signer.mint("a", "m")
    verifier.domain(token)
    for at in range(0, len(token) - 1, 3):  # the last character's low bits carry nothing
        changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        with pytest.raises(CapabilityRefused):
            verifier.domain(changed)


@given(st.one_of(st.text(), st.binary().map(lambda b: b.decode("latin-1"))))
def test_garbage_is_refused_and_nothing_else(text: str) -> None:
    verifier = Verifier(Signer(SEED).public_keys(), "m")
    for token in (text, f"{text}.{text}.{text}", f"e30.{text}.e30"):
        with pytest.raises(CapabilityRefused):
            verifier.domain(token)


def test_a_refusal_says_nothing_of_the_token(signer: Signer, verifier: Verifier) -> None:
    token = signer.mint("canary", "other")
    with pytest.raises(CapabilityRefused) as told:
        verifier.domain(token)
    assert "canary" not in str(told.value)
    assert token not in str(told.value)


def test_both_caches_are_bounded(signer: Signer, time: FakeTime) -> None:
    verifier = Verifier(signer.public_keys(), "m", now=time)
    for i in range(MAX_CACHED + 10):
        token = signer.mint(f"d{i}", "m")
        if i % 16 == 0:
            assert verifier.domain(token) == f"d{i}"
    assert len(signer._cached) <= MAX_CACHED


def test_a_clock_that_was_set_back_gets_a_new_token(signer: Signer, time: FakeTime) -> None:
    """The old one would come from the future, for as long as the clock was set back."""
    signer.mint("a", "m")
    time.now -= 3600
    verifier = Verifier(signer.public_keys(), "m", now=time)
    assert verifier.domain(signer.mint("a", "m")) == "a"
