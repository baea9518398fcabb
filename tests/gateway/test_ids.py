"""Ids of our own."""

import re

from gateway.ids import new_id


def test_an_id_is_its_prefix_and_a_ulid() -> None:
    assert re.fullmatch(r"ur_[0-7][0-9A-HJKMNP-TV-Z]{25}", new_id("ur"))


def test_ids_of_one_process_differ_and_sort_in_the_order_they_were_made() -> None:
    ids = [new_id("ur") for _ in range(5000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
