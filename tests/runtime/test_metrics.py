"""Counters as Prometheus reads them: by its own parser, and by the grammar of the format."""

from __future__ import annotations

import re

import pytest

from engines.api import Stats
from runtime.metrics import FAMILIES, Host, text

ODD = 'a"b\\c\nd'  # a quote, a backslash and a line's end
STATS = Stats(
    steps=7,
    running=2,
    preempted=3,
    drafted_tokens=9,
    accepted_tokens=8,
    pages={"free": 10, "active": 4, "quarantined": 2},
    tag_pages_checked=1234,
    tag_check_s=0.25,
    mismatches={"before/stale": 2, "after/domain": 1, "before/slot": 5},
    integrity_retries=1,
    integrity_aborts=3,
    integrity_aborts_streamed=2,
    scrubbed={"pages": 64, "mismatches": 1, "residues": 2, "canaries": 3},
    limbo_age_s=1.5,
    retirement="x",
)
LABELS = {"host": "host-1", "model": ODD}
TOLD = text([Host(LABELS, STATS), Host({"host": "host-2", "model": "m"}, None)])
COMMENT = re.compile(r"# (HELP [a-z_]+ \S.*|TYPE [a-z_]+ (counter|gauge))")
LABEL = r'[a-z_]+="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"([a-z_]+)(\{{{LABEL}(,{LABEL})*\}})? (\d+(\.\d+)?(e-?\d+)?)")


def value(name: str, **labels: str) -> float:
    """Of the one series that has these labels."""
    marks = [f'{key}="{value}"' for key, value in labels.items()]
    (line,) = [
        line
        for line in TOLD.splitlines()
        if line.startswith(f"{name}{{") and all(mark in line for mark in marks)
    ]
    return float(line.rpartition(" ")[2])


def test_counters_are_told_under_their_names() -> None:
    assert value("bulkhead_host_up", host="host-1") == 1
    assert value("bulkhead_host_up", host="host-2") == 0
    assert value("kv_tag_pages_checked_total") == 1234
    assert value("kv_tag_mismatch_total", phase="before", kind="stale") == 2
    assert value("kv_tag_mismatch_total", phase="after", kind="domain") == 1
    assert value("kv_tag_mismatch_total", phase="after", kind="null") == 0
    assert value("kv_write_guard_reject_total") == 5
    assert value("kv_pages", state="active") == 4
    assert value("kv_limbo_age_seconds_max") == 1.5
    assert value("engine_drafted_tokens_total") == 9
    assert value("engine_accepted_tokens_total") == 8
    assert value("kv_quarantine_pages") == 2
    assert value("kv_scrub_pages_total") == 64
    assert value("kv_scrub_mismatch_total") == 1
    assert value("kv_scrub_residue_total") == 2
    assert value("kv_canary_fail_total") == 3
    assert value("kv_integrity_aborts_total", streamed="true") == 2
    assert value("kv_integrity_aborts_total", streamed="false") == 1
    assert value("kv_integrity_retries_total") == 1
    assert value("kv_check_seconds_total") == 0.25
    assert value("engine_retiring") == 1
    assert value("engine_preemptions_total") == 3


def test_each_line_is_of_the_format_and_each_family_stands_together() -> None:
    families: list[str] = []
    for line in TOLD.splitlines():
        if line.startswith("#"):
            assert COMMENT.fullmatch(line), line
            continue
        found = SAMPLE.fullmatch(line)
        assert found, line
        if families[-1:] != [found[1]]:
            families.append(found[1])
    assert len(families) == len(set(families))
    assert set(families) == {"bulkhead_host_up"} | {family.name for family in FAMILIES}
    assert TOLD.endswith("\n")


def test_counters_end_in_total() -> None:
    assert all((f.kind == "counter") == f.name.endswith("_total") for f in FAMILIES)


def test_prometheus_own_parser_reads_it() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    found = {family.name: family for family in parser.text_string_to_metric_families(TOLD)}
    assert len(found) == len(FAMILIES) + 1
    (checked,) = found["kv_tag_pages_checked"].samples
    assert (checked.labels, checked.value) == (LABELS, 1234)
    assert found["kv_pages"].type == "gauge"


def test_a_host_that_is_gone_has_its_counters_alone() -> None:
    told = text([Host(LABELS, STATS, is_gone=True)])
    (line,) = [one for one in told.splitlines() if 'phase="after",kind="domain"' in one]
    assert line.endswith(" 1")
    assert not any(name in told for name in ("kv_pages{", "engine_retiring{", "host_up{"))


def test_no_host_is_no_series() -> None:
    assert all(line.startswith("#") for line in text([]).splitlines())
