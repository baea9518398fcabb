"""Tokens that keys mint: what is in one can't be changed, and it never is more than the key."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from gateway.identity.scopes import ALL, DELEGABLE, UnknownScope, parse, text
from gateway.identity.tokens import MAX_LEN, PREFIX, Grant, mint, narrowed, read
from gateway.store.principal import Principal, granted

KEY = b"k" * 32
GRANT = Grant(id="tk_1", secret=b"s" * 12, expires=1_800_000_000, scopes=frozenset({"inference"}))

scopes = st.frozensets(st.sampled_from(sorted(ALL)))
models = st.none() | st.frozensets(st.sampled_from(["a", "b", "@cf/c"]))


def test_a_token_says_what_it_was_minted_with() -> None:
    token = mint(KEY, GRANT)
    assert token.startswith(PREFIX)
    assert re.fullmatch(r"[\w.-]+", token)
    assert read(KEY, token) == GRANT


@given(scopes, models, st.none() | st.just("https://a.example"))
def test_whatever_it_was(
    scopes: frozenset[str], models: frozenset[str] | None, origin: str | None
) -> None:
    grant = Grant("tk_2", b"\0" * 12, 1, scopes, models, origin)
    assert read(KEY, mint(KEY, grant)) == grant


def test_another_installation_s_token_is_none() -> None:
    assert read(b"x" * 32, mint(KEY, GRANT)) is None


@given(st.data())
def test_a_changed_token_is_none(data: st.DataObject) -> None:
    token = mint(KEY, GRANT)
    at = data.draw(st.integers(len(PREFIX), len(token) - 1))
    other = data.draw(st.characters(max_codepoint=255).filter(lambda c: c != token[at]))
    assert read(KEY, token[:at] + other + token[at + 1 :]) is None
    assert read(KEY, token[:at]) is None
    assert read(KEY, token[:at] + other + token[at:]) is None


@given(st.text(max_size=200))
def test_any_other_text_is_none(rest: str) -> None:
    assert read(KEY, PREFIX + rest) is None


def test_one_that_is_too_long_isn_t_looked_at() -> None:
    many = frozenset(f"model-{i}" for i in range(MAX_LEN))
    assert read(KEY, mint(KEY, Grant("tk_1", b"", 1, frozenset(), many))) is None


@given(scopes, scopes, models, models, st.none() | st.integers(0, 2**60), st.integers(0, 2**40))
def test_a_token_never_may_more_than_its_key(
    has: frozenset[str],
    wants: frozenset[str],
    key_models: frozenset[str] | None,
    token_models: frozenset[str] | None,
    key_ends: int | None,
    ends: int,
) -> None:
    key = Principal("tn", "acme", "key_1", scopes=has, models=key_models, expires_at=key_ends)
    found = narrowed(key, Grant("tk_1", b"", ends, wants, token_models))
    assert found.scopes <= has & wants & DELEGABLE
    assert found.expires_at is not None
    assert found.expires_at <= ends * 1_000_000
    assert key_ends is None or found.expires_at <= key_ends
    if key_models is not None:
        assert found.models is not None
        assert found.models <= key_models
    if token_models is not None:
        assert found.models is not None
        assert found.models <= token_models
    assert (found.tenant_id, found.key_id, found.token_id) == ("tn", "key_1", "tk_1")


def test_scopes_are_read_and_written() -> None:
    assert parse(["usage:read", "inference"]) == {"usage:read", "inference"}
    assert granted(text(DELEGABLE)) == DELEGABLE
    assert granted("admin") == ALL
    assert granted("") == frozenset()
    assert granted("inference of:another:version") == {"inference"}
    with pytest.raises(UnknownScope, match="'all' is not a scope: use admin, inference, "):
        parse(["all", "inference"])
