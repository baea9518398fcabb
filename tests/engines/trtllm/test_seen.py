"""What is read of TensorRT-LLM's objects, of either generation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engines.trtllm.rows import Scheduled
from engines.trtllm.seen import request_of, scheduled_of, told_of
from engines.trtllm.tables import Tables


def request(**fields: Any) -> SimpleNamespace:
    """An `LlmRequest` with what each version has, and more."""
    always = {"request_id": 7, "context_current_position": 4, "get_tokens": lambda beam: [beam, 1]}
    return SimpleNamespace(**always | fields)


def data(request: int, *blocks: int, position: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        request_id=request,
        new_block_ids=list(blocks),
        computed_position=position,
        num_scheduled_tokens=1,
        new_tokens=[5],
    )


@pytest.mark.parametrize(
    ("fields", "salt"),
    [
        ({"cache_salt": "a", "cache_salt_id": 9}, "a"),
        ({"cache_salt": None, "cache_salt_id": 9}, 9),
        ({"cache_salt_id": 2**64 - 1}, 2**64 - 1),
        ({"cache_salt_id": None}, None),
        ({"cache_salt": ["a"]}, None),
        ({}, None),
    ],
)
def test_the_salt_or_its_number(fields: dict[str, Any], salt: str | int | None) -> None:
    assert request_of(request(**fields), [1], None).salt == salt


@pytest.mark.parametrize(
    ("fields", "client"),
    [
        ({"py_client_id": 3, "client_id": 4}, 3),
        ({"py_client_id": None, "client_id": 4}, 4),
        ({"client_id": 0}, 0),
        ({}, None),
    ],
)
def test_the_servers_name_for_it(fields: dict[str, Any], client: int | None) -> None:
    assert request_of(request(**fields), [1], None).client == client


def test_what_was_found_in_the_cache() -> None:
    assert request_of(request(), [1], 2).computed_tokens == 2
    assert request_of(request(), [1], 0).computed_tokens == 0
    assert request_of(request(), [1], None).computed_tokens == 4


def test_its_prompt_and_its_adapter() -> None:
    assert request_of(request(), [1], 0)[4:] == (0, [0, 1], 0)
    assert request_of(request(lora_task_id=6), [1], 0).adapter == 6
    assert request_of(request(lora_task_id=None), [1], 0).adapter == 0


def test_each_request_of_a_step_is_handed_on() -> None:
    output = SimpleNamespace(new_requests=[data(1, 4)], cached_requests=[data(2, position=9)])
    assert list(scheduled_of(output)) == [
        Scheduled(1, [4], 0, 1, [5]),
        Scheduled(2, [], 9, 1, [5]),
    ]


def test_a_field_that_is_missing_is_an_error_and_no_guess() -> None:
    broken = data(1, 4)
    del broken.num_scheduled_tokens
    with pytest.raises(AttributeError):
        list(scheduled_of(SimpleNamespace(new_requests=[broken], cached_requests=[])))


def test_of_an_id_that_comes_again_the_ranks_know_nothing() -> None:
    """What it gains is told against the list that it had before."""
    tables = Tables()
    first = SimpleNamespace(new_requests=[data(1, 4, 5), data(2, 6)], cached_requests=[])
    tables.told(told_of(first, {1, 2}))
    again = SimpleNamespace(new_requests=[], cached_requests=[data(1, 9), data(2, 7)])
    tables.told(told_of(again, {1}))
    blocks, counts = tables.of([1, 2])
    assert counts.tolist() == [0, 2]
    assert blocks[1].tolist() == [6, 7]
    tables.told(told_of(SimpleNamespace(new_requests=[], cached_requests=[data(1, 8)]), set()))
    assert tables.of([1])[1].tolist() == [0]
