"""Ids of our own."""

from __future__ import annotations

import re
import time

from gateway.ids import new_id


def test_an_id_is_its_prefix_and_a_ulid() -> None:
    assert re.fullmatch(r"ur_[0-7][0-9A-HJKMNP-TV-Z]{25}", new_id("ur"))


def test_ids_of_one_process_differ_and_sort_in_the_order_they_were_made() -> None:
    ids = [new_id("ur") for _ in range(5000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)


def test_the_time_is_in_the_first_ten_digits() -> None:
    """Crockford's alphabet, most significant digit first, as the ULID's definition has it."""
    milliseconds = 0
    for digit in new_id("ur").removeprefix("ur_")[:10]:
        milliseconds = milliseconds * 32 + "0123456789ABCDEFGHJKMNPQRSTVWXYZ".index(digit)
    assert abs(milliseconds - time.time_ns() // 10**6) < 5000
