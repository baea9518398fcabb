"""One table from every refusal to HTTP."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from gateway import errors
from gateway.errors import TABLE, BadRequest, IntegrityAbort, Refusal, StoreDown, Unavailable


def every(kind: type[Refusal] = Refusal) -> Iterator[type[Refusal]]:
    for sub in kind.__subclasses__():
        if sub.__module__.startswith("gateway"):
            yield sub
            yield from every(sub)


ALL = sorted(every(), key=lambda kind: kind.__name__)


def test_every_refusal_has_its_row_and_every_row_its_refusal() -> None:
    assert set(TABLE) == set(ALL)


def test_every_refusal_stands_in_the_tree_under_its_parent() -> None:
    """The drawing at the top of the module is the truth."""
    parents: dict[str, str] = {}
    path = ["Refusal"]
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^((?:│   |    )*)(?:├── |└── )(\w+)", line)
        if found:
            depth = len(found[1]) // 4
            path[depth + 1 :] = [found[2]]
            parents[found[2]] = path[depth]
    assert parents == {kind.__name__: kind.__bases__[0].__name__ for kind in ALL}


@pytest.mark.parametrize("kind", ALL)
def test_a_body_is_openai_s_error_object_with_all_four_keys(kind: type[Refusal]) -> None:
    fault = kind("what was wrong", param="a.b")
    assert fault.body() == {
        "error": {
            "message": "what was wrong",
            "type": TABLE[kind].type,
            "param": "a.b",
            "code": TABLE[kind].code,
        }
    }
    assert kind("x").body()["error"]["param"] is None
    assert str(fault) == "what was wrong"


@pytest.mark.parametrize("kind", ALL)
def test_status_type_and_code_agree(kind: type[Refusal]) -> None:
    """4xx are the caller's doing, 5xx ours; only what may pass by itself says when to try again."""
    row = TABLE[kind]
    assert 400 <= row.status < 600
    assert (row.type == "server_error") == (row.status >= 500)
    passes = row.status in (429, 503) and kind is not errors.InsufficientQuota  # each its own
    assert (row.retry_after_s is not None) == passes
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", row.code)
    assert issubclass(kind, BadRequest) == (row.status == 400)
    assert issubclass(kind, Unavailable) == (row.status == 503)


def test_codes_are_unique() -> None:
    codes = [row.code for row in TABLE.values()]
    assert len(codes) == len(set(codes))


def test_a_code_may_be_more_precise_than_its_class_s() -> None:
    fault = BadRequest("x", code="invalid_json")
    assert fault.code == fault.body()["error"]["code"] == "invalid_json"
    assert fault.row.status == 400


def test_a_caught_parent_catches_its_children() -> None:
    assert issubclass(IntegrityAbort, Unavailable)
    assert issubclass(StoreDown, Unavailable)
