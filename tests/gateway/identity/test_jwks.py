"""A JWKS document: which of its keys may verify what."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm

from gateway.identity.jwks import RSA_ALGORITHMS, BadKeySet, keys_of
from tests.gateway.identity.signing import (
    ED,
    K1,
    P256,
    P384,
    P521,
    RSA_KEY,
    WEAK_RSA,
    document,
    jwk,
)

FITTING = [
    (RSA_KEY, RSA_ALGORITHMS),
    (P256, {"ES256"}),
    (P384, {"ES384"}),
    (P521, {"ES512"}),
    (ED, {"EdDSA"}),
]
EVERY = {
    *RSA_ALGORITHMS,
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "HS256",
    "HS512",
    "none",
    "ES256K",
    "",
}


@pytest.mark.parametrize(("key", "algorithms"), FITTING)
def test_a_key_verifies_what_is_of_its_type_and_nothing_else(
    key: Any, algorithms: set[str]
) -> None:
    keys = keys_of(document(jwk(key)))
    assert {name for name in EVERY if keys.find("one", name)} == algorithms


def test_a_key_that_names_its_algorithm_verifies_that_alone() -> None:
    keys = keys_of(document(jwk(RSA_KEY, alg="RS512")))
    assert {name for name in EVERY if keys.find("one", name)} == {"RS512"}


@pytest.mark.parametrize(
    "entry",
    [
        {"kty": "oct", "kid": "one", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"},
        jwk(RSA_KEY, use="enc"),
        jwk(RSA_KEY, key_ops=["sign"]),
        jwk(RSA_KEY, key_ops="verify"),
        jwk(RSA_KEY, d="AQAB"),
        json.loads(RSAAlgorithm.to_jwk(RSA_KEY)) | {"kid": "one", "key_ops": ["verify"]},
        json.loads(OKPAlgorithm.to_jwk(ED)) | {"kid": "one"},
        jwk(WEAK_RSA),
        jwk(K1),
        jwk(RSA_KEY, kid=7),
        jwk(RSA_KEY, n="!"),
        jwk(RSA_KEY, n=None),
        jwk(P256, crv="P-384"),
        jwk(P256, x="AA"),
        jwk(ED, crv="X25519"),
        {"kty": ["RSA"]},
        {"kid": "one"},
        "RSA",
        None,
    ],
)
def test_a_key_that_is_good_for_nothing_is_left_out(entry: Any) -> None:
    with pytest.raises(BadKeySet, match="no key that can verify"):
        keys_of(document(entry))
    assert keys_of(document(entry, jwk(ED, "two"))).find("two", "EdDSA") is not None


def test_a_key_is_found_by_its_id_or_as_the_only_one() -> None:
    keys = keys_of(document(jwk(RSA_KEY, "one"), jwk(P256, "two"), jwk(ED, None)))
    assert keys.find("two", "ES256") is not None
    assert keys.find(None, "ES256") is not None
    assert keys.find("one", "ES256") is None
    assert keys.find("../two", "ES256") is None
    assert keys.find("", "EdDSA") is not None
    twice = keys_of(document(jwk(RSA_KEY, "one"), jwk(RSA_KEY, "one")))
    assert twice.find("one", "RS256") is None
    assert twice.find(None, "RS256") is None


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b'{"keys": {}}', b'{"keys": []}',
                                  b"\xff\xfe", b"[" * 100_000, b"null"])  # fmt: skip
def test_what_is_no_key_set_is_told(text: bytes) -> None:
    with pytest.raises(BadKeySet):
        keys_of(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.sampled_from([RSA_KEY, P256, ED]), st.data())
def test_whatever_an_entry_holds_nothing_else_is_raised(key: Any, data: st.DataObject) -> None:
    entry = jwk(key)
    name = data.draw(st.sampled_from(sorted(entry)))
    entry[name] = data.draw(json_values)
    with suppress(BadKeySet):
        keys_of(json.dumps({"keys": [entry]}).encode())
