"""Which events a tail wants."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.admin.filters import Filter, parse
from gateway.admin.problems import BadParameter

EVENT: dict[str, Any] = {
    "result": "ok",
    "request_id": "req_1",
    "model": "echo",
    "tenant": "tn_1",
    "tenant_name": "acme",
    "path": "/v1/chat/completions",
    "host": None,
    "status": 200,
}


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        (Filter(), True),
        (Filter(results=("ok",)), True),
        (Filter(results=("error", "ok")), True),
        (Filter(results=("error",)), False),
        (Filter(model="echo"), True),
        (Filter(model="ech"), False),
        (Filter(tenant="acme"), True),
        (Filter(tenant="tn_1"), True),
        (Filter(tenant="acm"), False),
        (Filter(search="CHAT/comp"), True),
        (Filter(search="200"), True),
        (Filter(search="result"), False),  # a name, no value
        (Filter(search="nobody"), False),
        (Filter(model="echo", tenant="other"), False),
    ],
)
def test_every_condition_must_hold(wanted: Filter, shown: bool) -> None:
    assert wanted.wants(EVENT) is shown


def test_an_event_without_a_model_or_tenant_has_neither() -> None:
    refused = {"result": "error", "status": 401}
    assert Filter().wants(refused)
    assert not Filter(model="echo").wants(refused)
    assert not Filter(tenant="acme").wants(refused)


def test_sampling_draws_by_the_request_so_that_everybody_sees_the_same() -> None:
    events = [{"request_id": f"req_{n}"} for n in range(4000)]
    half, tenth = Filter(sampling_rate=0.5), Filter(sampling_rate=0.1)
    seen = [e for e in events if half.wants(e)]
    assert 1800 < len(seen) < 2200
    assert seen == [e for e in events if Filter(sampling_rate=0.5).wants(e)]
    fewer = [e for e in events if tenth.wants(e)]
    assert 300 < len(fewer) < 500
    assert all(e in seen for e in fewer)


def test_a_query_string_is_a_filter() -> None:
    query = [("status", "ok"), ("status", "error"), ("model", "m"), ("tenant", "t")]
    query += [("search", "s"), ("sampling_rate", "0.25")]
    assert parse(query) == Filter(("ok", "error"), "m", "t", "s", 0.25)
    assert parse([]) == Filter()


@pytest.mark.parametrize(
    "query",
    [("status", "fine"), ("sampling_rate", "0"), ("sampling_rate", "-1"), ("sampling_rate", "nan")],
)
def test_what_is_no_filter_is_refused(query: tuple[str, str]) -> None:
    with pytest.raises(BadParameter, match=f"^{query[0]}: "):
        parse([query])
