"""Tokens of external issuers: the good ones, and every way to be a bad one."""

from __future__ import annotations

import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, strategies as st

from gateway.identity.claims import (
    MAX_LEN,
    TokenRefused,
    UnknownKey,
    Verified,
    envelope_of,
    looks_like_one,
    verify,
)
from gateway.identity.jwks import KeySet, keys_of
from gateway.identity.scopes import ALL
from runtime.config.issuers import IssuerSettings
from tests.gateway.identity.clock import NOON_S
from tests.gateway.identity.signing import (
    AUDIENCE,
    ED,
    ISSUER,
    KINDS,
    OTHER_RSA,
    P256,
    PUBLIC_PEM,
    RSA_KEY,
    claims,
    document,
    hmac_token,
    jwk,
    settings,
    signed,
    spelled,
    token,
)

KEYS = keys_of(document(jwk(RSA_KEY), jwk(ED, "ed"), jwk(P256, "p256")))


def check(
    text: str, using: IssuerSettings | None = None, keys: KeySet = KEYS, now_s: float = NOON_S + 1
) -> Verified:
    """As `Issuer` does it."""
    if not looks_like_one(text):
        raise TokenRefused("it does not look like a token")
    return verify(text, envelope_of(text), keys, using or settings(), now_s)


def test_a_good_token_speaks_for_its_tenant() -> None:
    found = check(token())
    assert found == Verified(
        "acme", f"{ISSUER}|u1", frozenset({"inference", "models:read", "usage:read"}), NOON_S + 605
    )


@pytest.mark.parametrize("algorithm", KINDS)
def test_each_algorithm_that_is_listed_is_taken(algorithm: str) -> None:
    key = KINDS[algorithm]
    text = token(key=key, algorithm=algorithm)
    keys = keys_of(document(jwk(key)))
    assert check(text, settings(algorithms=(algorithm,)), keys).tenant == "acme"
    with pytest.raises(TokenRefused, match="alg is none"):
        check(text, settings(algorithms=("PS256",)), keys)


PUBLIC_DER = RSA_KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
GOOD = token()
OWN_KEY = {"kid": "one", "jwk": jwk(OTHER_RSA)}

FORGED = {
    "no signature, alg none": spelled({"alg": "none"}, claims()),
    "alg None": spelled({"alg": "None", "kid": "one"}, claims()),
    "alg nOnE with a signature": spelled({"alg": "nOnE", "kid": "one"}, claims(), b"x" * 256),
    "alg none under a real one": spelled({"alg": "none", "kid": "one"}, claims(), b"x"),
    "no alg": spelled({"kid": "one"}, claims()),
    "alg as a list": spelled({"alg": ["RS256"], "kid": "one"}, claims()),
    "alg null": spelled({"alg": None, "kid": "one"}, claims()),
    "HS256 with the public key, PEM": hmac_token(PUBLIC_PEM),
    "HS256 with the public key, DER": hmac_token(PUBLIC_DER),
    "HS256 with its modulus": hmac_token(jwk(RSA_KEY)["n"].encode()),
    "HS256 with nothing": hmac_token(b""),
    "HS256 as RS256": hmac_token(PUBLIC_PEM, "RS256"),
    "the signature gone": GOOD.rpartition(".")[0] + ".",
    "the signature of another": GOOD.rpartition(".")[0]
    + "."
    + token(claims(sub="x")).split(".")[2],
    "another payload": GOOD.split(".")[0]
    + "."
    + token(claims(sub="x")).split(".")[1]
    + "."
    + GOOD.split(".")[2],
    "another's key": token(key=OTHER_RSA),
    "another's key, sent along": token(key=OTHER_RSA, headers=OWN_KEY),
    "another's key, by URL": token(
        key=OTHER_RSA, headers={"kid": "one", "jku": "https://evil.example/jwks"}
    ),
    "another's key, by certificate": token(
        key=OTHER_RSA, headers={"kid": "one", "x5u": "https://evil.example/x", "x5c": ["AA"]}
    ),
    "EdDSA, where RS256 is agreed": token(key=ED, algorithm="EdDSA", headers={"kid": "ed"}),
    "EdDSA under the RSA key's id": token(key=ED, algorithm="EdDSA", headers={"kid": "one"}),
    "ES256 where RS256 is agreed": token(key=P256, algorithm="ES256", headers={"kid": "p256"}),
    "crit": token(headers={"kid": "one", "crit": ["exp"], "exp": 1}),
    "crit, of one that PyJWT knows": token(headers={"kid": "one", "crit": ["b64"], "b64": True}),
    "a detached payload": signed({"alg": "RS256", "kid": "one", "b64": True}, claims()),
    "typ of a logout token": token(headers={"kid": "one", "typ": "logout+jwt"}),
    "typ of a proof": token(headers={"kid": "one", "typ": "dpop+jwt"}),
    "typ as a number": signed({"alg": "RS256", "kid": "one", "typ": 1}, claims()),
    "kid as a path": token(headers={"kid": "../../one"}),
    "kid as SQL": token(headers={"kid": "' OR 1=1--"}),
    "kid as a URL": token(headers={"kid": "https://evil.example/jwks"}),
    "kid of another case": token(headers={"kid": "ONE"}),
    "a long kid": token(headers={"kid": "k" * 257}),
    "kid as a number": signed({"alg": "RS256", "kid": 1}, claims()),
    "a header that is a list": spelled([], claims()),
    "claims that are a list": spelled({"alg": "RS256", "kid": "one"}, []),
    "no claims": spelled({"alg": "RS256", "kid": "one"}, {}),
    "two parts": GOOD.rpartition(".")[0],
    "four parts": GOOD + ".x",
    "five parts, as of an encrypted one": ".".join(["e30"] * 5),
    "nothing but dots": "..",
    "not base64": "!.!.!",
    "too long": token(claims(more="x" * MAX_LEN)),
    "beyond ASCII": GOOD[:-1] + "é",
    "compressed": token(headers={"kid": "one", "zip": "DEF"}, key=OTHER_RSA),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_token_is_refused(name: str) -> None:
    with pytest.raises(TokenRefused):
        check(FORGED[name])


BAD_CLAIMS: dict[str, dict[str, Any]] = {
    "no exp": {"exp": None},
    "exp as a text": {"exp": str(NOON_S + 600)},
    "exp as a float": {"exp": float(NOON_S + 600)},
    "exp without end": {"exp": 1e308},
    "exp infinite": {"exp": float("inf")},
    "exp not a number": {"exp": float("nan")},
    "exp true": {"exp": True},
    "exp as a list": {"exp": [NOON_S + 600]},
    "exp huge": {"exp": 10**400},
    "exp of 2^63": {"exp": 2**63},
    "exp negative": {"exp": -1},
    "exp just past": {"exp": NOON_S - 4},
    "exp far past": {"exp": 1, "iat": 0},
    "exp before iat": {"exp": NOON_S, "iat": NOON_S},
    "a long life": {"exp": NOON_S + 86402},
    "no iat": {"iat": None},
    "iat as a text": {"iat": str(NOON_S)},
    "iat as a float": {"iat": NOON_S + 0.5},
    "iat in the future": {"iat": NOON_S + 100},
    "nbf in the future": {"nbf": NOON_S + 100},
    "nbf as a text": {"nbf": "0"},
    "nbf true": {"nbf": True},
    "nbf as a float": {"nbf": 0.0},
    "no aud": {"aud": None},
    "another aud": {"aud": "bulkhead2"},
    "a prefix of aud": {"aud": "bulk"},
    "aud of another case": {"aud": "Bulkhead"},
    "an empty aud": {"aud": ""},
    "an empty list of auds": {"aud": []},
    "a list of others": {"aud": ["a", "b"]},
    "a list with a number": {"aud": ["bulkhead", 1]},
    "an aud that is a table": {"aud": {"bulkhead": 1}},
    "a list in a list": {"aud": [["bulkhead"]]},
    "no iss": {"iss": None},
    "a prefix of iss": {"iss": ISSUER[:-1], "aud": ["x", AUDIENCE]},
    "a longer iss": {"iss": ISSUER + "/"},
    "iss with a suffix": {"iss": ISSUER + ".evil.example", "aud": ["x", AUDIENCE]},
    "iss as a list": {"iss": [ISSUER]},
    "iss of another case": {"iss": ISSUER.upper()},
    "no sub": {"sub": None},
    "an empty sub": {"sub": ""},
    "sub as a number": {"sub": 7},
    "sub as a list": {"sub": ["u1"]},
    "a long sub": {"sub": "u" * 256},
}


@pytest.mark.parametrize("name", BAD_CLAIMS)
def test_a_token_with_a_bad_claim_is_refused(name: str) -> None:
    text = raw(claims(**BAD_CLAIMS[name]))
    with pytest.raises(TokenRefused):
        check(text)


def raw(said: dict[str, Any]) -> str:
    """Signed all right, whatever it says: PyJWT refuses to write some of it."""
    payload = json.dumps(said).encode()
    return jwt.PyJWS().encode(payload, RSA_KEY, "RS256", headers={"kid": "one", "typ": "JWT"})


@pytest.mark.parametrize("aud", [AUDIENCE, [AUDIENCE], ["https://other", AUDIENCE]])
def test_the_audience_may_be_one_of_several(aud: Any) -> None:
    assert check(token(claims(aud=aud))).tenant == "acme"


@pytest.mark.parametrize("typ", ["JWT", "jwt", "at+jwt", "application/at+jwt"])
def test_access_tokens_may_say_that_they_are(typ: str) -> None:
    assert check(token(headers={"kid": "one", "typ": typ})).tenant == "acme"


def test_headers_that_name_keys_are_not_looked_at() -> None:
    """A good token stays one: some issuers send their certificate along."""
    assert check(token(headers=OWN_KEY)).tenant == "acme"


def test_without_a_kid_the_only_fitting_key_is_meant() -> None:
    assert check(token(headers={})).tenant == "acme"
    several = keys_of(document(jwk(RSA_KEY), jwk(OTHER_RSA, "two")))
    with pytest.raises(UnknownKey):
        check(token(headers={}), keys=several)


def test_clocks_may_be_apart_by_the_leeway_and_no_more() -> None:
    text = token(claims(iat=NOON_S, nbf=NOON_S))
    check(text, now_s=NOON_S - 5)
    check(text, now_s=NOON_S + 604.999)
    for now_s in (NOON_S - 5.001, NOON_S + 605):
        with pytest.raises(TokenRefused):
            check(text, now_s=now_s)
    with pytest.raises(TokenRefused):
        check(text, settings(leeway_s=0.0), now_s=NOON_S + 600)


CLAIMED = {"tenant": "", "tenant_claim": "org"}
MAPPED = CLAIMED | {"tenants": {"org-1": "acme"}}


def test_a_claim_may_name_the_tenant_by_itself_or_through_the_map() -> None:
    assert check(token(claims(org="globex")), settings(**CLAIMED)).tenant == "globex"
    assert check(token(claims(org="org-1")), settings(**MAPPED)).tenant == "acme"


@pytest.mark.parametrize("org", [None, "", 1, True, ["org-1"], {"id": "org-1"}, "acme", "ORG-1"])
def test_a_claim_that_names_no_tenant_is_refused(org: Any) -> None:
    with pytest.raises(TokenRefused, match="tenant"):
        check(token(claims(org=org)), settings(**MAPPED))


@pytest.mark.parametrize(
    ("said", "scopes"),
    [
        ("inference", {"inference"}),
        (["inference", "usage:read"], {"inference", "usage:read"}),
        ("openid profile inference", {"inference"}),
        ("inference keys:write admin", {"inference", "models:read", "usage:read"}),  # of at most
        ("keys:write", set()),
        ("", set()),
        ([], set()),
        (None, set()),
    ],
)
def test_scopes_are_those_of_the_claim_and_never_more_than_the_issuer_s(
    said: Any, scopes: set[str]
) -> None:
    found = check(token(claims(scope=said)), settings(scopes_claim="scope"))
    assert found.scopes == scopes


def test_an_issuer_may_be_let_give_all() -> None:
    assert check(token(), settings(scopes=("admin",))).scopes == ALL


@pytest.mark.parametrize("said", [1, {"inference": True}, [1], ["inference", None]])
def test_scopes_of_another_type_are_refused(said: Any) -> None:
    with pytest.raises(TokenRefused, match="scopes"):
        check(token(claims(scope=said)), settings(scopes_claim="scope"))


def test_required_claims_must_be_just_so() -> None:
    wanted = settings(required_claims={"hd": "example.com", "email_verified": True})
    good = {"hd": "example.com", "email_verified": True}
    bad: list[dict[str, Any]] = [
        *({"hd": "example.org"}, {"hd": None}, {"hd": ["example.com"]}, {"hd": "Example.com"}),
        *({"email_verified": 1}, {"email_verified": "true"}, {"email_verified": False}),
    ]
    assert check(token(claims(**good)), wanted).tenant == "acme"
    for changed in bad:
        with pytest.raises(TokenRefused, match="required"):
            check(token(claims(**good | changed)), wanted)


@given(st.text(max_size=50), st.text(max_size=50), st.binary(max_size=20))
def test_no_text_is_a_token_or_raises_anything_else(a: str, b: str, c: bytes) -> None:
    for text in (f"{a}.{b}.{c.hex()}", spelled(a, b, c), spelled({"alg": a}, {"iss": b}, c)):
        with pytest.raises(TokenRefused):
            check(text)


@given(st.integers(0, len(GOOD) - 1), st.sampled_from("AQgwaz09-_.="))
def test_a_changed_token_is_refused(at: int, other: str) -> None:
    changed = GOOD[:at] + other + GOOD[at + 1 :]
    if changed != GOOD and at < GOOD.rindex(".") + 340:  # the last digits hold spare bits
        with pytest.raises(TokenRefused):
            check(changed)
