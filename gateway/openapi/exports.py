"""What exports of usage take and answer, be they a tenant's or the operator's."""

from __future__ import annotations

from gateway.export_query import CONTENT_TYPES, MAX_SEQ, SEQ_BOUND
from gateway.openapi.document import Schema, json_answer, query
from gateway.openapi.shapes import SignedManifest
from gateway.usage.export import FORMATS, GRANULARITIES, VERSIONS
from gateway.usage_period import MAX_TIME_S

TIME: Schema = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": MAX_TIME_S},
        {"type": "string", "format": "date-time"},
    ]
}
PERIOD = (
    query("start_time", TIME, "unix seconds, or RFC 3339; by default 30 days ago"),
    query("end_time", TIME, "exclusive; by default now"),
)
FORM = (
    query("format", {"enum": list(FORMATS)}, "csv unless told"),
    query("focus_version", {"enum": list(VERSIONS)}, "of focus and parquet"),
    query("granularity", {"enum": list(GRANULARITIES)}, "of focus and parquet"),
    query(
        "bound",
        {"type": "integer", "minimum": 0, "maximum": MAX_SEQ},
        f"the last record that counts, as {SEQ_BOUND} tells it",
    ),
)
BOUND: Schema = {SEQ_BOUND: {"schema": {"type": "string"}, "required": True}}
FILE: Schema = {
    "description": "A file. One that breaks has no end in HTTP.",
    "content": {
        kind.partition(";")[0]: {"schema": {"type": "string"}} for kind in CONTENT_TYPES.values()
    },
    "headers": BOUND,
}
MANIFEST = json_answer(SignedManifest) | {"headers": BOUND}
