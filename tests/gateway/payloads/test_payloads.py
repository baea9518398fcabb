"""What a tape holds, and the files it's written to."""

from __future__ import annotations

import datetime
import json
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from gateway.payloads import files
from gateway.payloads.files import PayloadFiles, Played
from gateway.payloads.payloads import Payloads
from gateway.payloads.tape import Tape, said
from gateway.schema import Ask, Turn
from runtime.config.observability import PayloadSettings
from runtime.settings import Settings, parse
from tests.stack import fake_config

FIELDS = {"request_id": "req_1", "key": "key_1", "model": "echo", "status": 200}
DAY = datetime.date(2026, 11, 30)


def event(**choice: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def tape(prompt: str = "hello", max_bytes: int = 1000) -> Tape:
    return Tape("acme", Ask(operation="completion", model="echo", prompt=prompt), 5, max_bytes)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (event(delta={"role": "assistant"}) + event(delta={"content": "a"}), "a"),
        (event(text="a") + event(text="b") + b"data: [DONE]\n\n", "ab"),
        (b": keep-alive\n\n" + event(text="a"), ""),  # nothing is sent before the first event
        (event(text="a") + b'data: {"choices": [{"te', "a"),
        (event(text="a") + b'data: {"error": {"message": "x"}}\n\n', "a"),
        (b'{"choices": [{"message": {"content": "whole"}}]}', "whole"),
        (b'{"choices": [{"text": "plain"}]}', "plain"),
        (b'{"error": {"message": "no"}}', ""),
        (b"", ""),
    ],
)
def test_the_text_of_an_answer(data: bytes, text: str) -> None:
    assert said(data) == text


def test_a_tape_is_bounded_and_says_so() -> None:
    made = tape(max_bytes=len(event(text="a")))
    made.add(event(text="a"))
    assert made.document(FIELDS, 1000)["is_cut"] is False
    made.add(event(text="b"))
    made.add(b"")
    told = made.document(FIELDS, 1000)
    assert (told["answer"], told["is_cut"], told["request_id"]) == ("a", True, "req_1")
    assert made.size < 2000


def test_a_prompt_that_is_too_long_is_left_out() -> None:
    told = tape("x" * 2000).document(FIELDS, 1000)
    assert (told["request"]["prompt"], told["is_cut"]) == (None, True)
    assert tape().document(FIELDS, 1000)["request"]["prompt"] == "hello"


def test_a_chat_is_kept_turn_by_turn() -> None:
    ask = Ask(operation="chat", model="echo", messages=[Turn("user", "hi")], temperature=0.5)
    document = Tape("acme", ask, 5, 1000).document(FIELDS, 1000)
    told = json.loads(msgspec.json.encode(document))["request"]
    assert (told["messages"], told["temperature"]) == ([{"role": "user", "content": "hi"}], 0.5)


def test_a_line_a_request_in_a_file_a_day_that_nobody_else_reads(tmp_path: Path) -> None:
    days = [DAY]
    folder = tmp_path / "payloads"
    written = PayloadFiles(folder, PayloadSettings(days=2), "boot_1", lambda: days[0])
    for _ in range(3):
        written.put(Played(tape(), FIELDS))
    written.close()
    (path,) = folder.iterdir()
    assert path.name == "2026-11-30-boot_1.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["tenant"] for line in lines] == ["acme"] * 3


def test_older_days_are_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("2026-11-28-x.jsonl", "2026-11-29-x.jsonl", "notes.txt", "2026-11-01-x.csv"):
        (tmp_path / name).write_text("")
    written = PayloadFiles(tmp_path, PayloadSettings(days=2), "b", lambda: DAY)
    written.put(Played(tape(), FIELDS))
    written.close()
    found = {path.name for path in tmp_path.iterdir()}
    wanted = {"2026-11-29-x.jsonl", "2026-11-30-b.jsonl", "notes.txt", "2026-11-01-x.csv"}
    assert found == wanted


def test_what_the_disk_does_not_take_is_dropped_and_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with capture_logs() as log:
        written = PayloadFiles(tmp_path / "file" / "folder", PayloadSettings(), "b", lambda: DAY)
        written._drain()
        for _ in range(2):
            written.put(Played(tape("secret-word"), FIELDS))
            written._drain()
        written.close()
    told = [line for line in log if line["event"] == "payloads_dropped"]
    assert [line["number"] for line in told] == [1]
    assert "secret-word" not in str(log)


def test_more_than_memory_may_take_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_QUEUED_BYTES", 2 * tape().size)
    monkeypatch.setattr(files, "EVERY_S", 3600)
    written = PayloadFiles(tmp_path, PayloadSettings(), "b", lambda: DAY)
    with capture_logs() as log:
        for _ in range(5):
            written.put(Played(tape(), FIELDS))
        written.close()
    (path,) = tmp_path.iterdir()
    assert len(path.read_text().splitlines()) == 2
    assert [line["number"] for line in log] == [3]


def settings(folder: Path, tenants: str) -> Settings:
    text = f"{fake_config()}[observability.payloads]\ntenants = {tenants}\n"
    return Settings(
        file=parse(text, "test")[0], config_path=str(folder / "b.toml"), state_dir=folder
    )


async def test_only_tenants_that_are_named_and_only_as_long_as_they_are(tmp_path: Path) -> None:
    payloads = Payloads("b")
    ask = Ask(operation="completion", model="echo", prompt="x")
    assert payloads.tape("acme", ask, 1) is None, "off by default"
    await payloads.keep(settings(tmp_path, '["acme"]'), bool)
    assert payloads.tape("other", ask, 1) is None
    made = payloads.tape("acme", ask, 1)
    assert made is not None
    payloads.put(made, FIELDS)
    payloads.put(None, FIELDS)
    await payloads.keep(settings(tmp_path, "[]"), bool)
    payloads.put(made, FIELDS)
    assert payloads.tape("acme", ask, 1) is None
    await payloads.aclose()
    (path,) = (tmp_path / "payloads").iterdir()
    assert len(path.read_text().splitlines()) == 1


async def test_a_tenant_that_isn_t_there_is_told_of_once(tmp_path: Path) -> None:
    """A name that nobody has keeps nothing, and whoever wrote it waits for its files."""
    payloads = Payloads("b")
    with capture_logs() as logs:
        for names in ('["acme", "acmee"]', '["acme", "acmee"]', '["acme"]'):
            await payloads.keep(settings(tmp_path, names), {"acme"}.__contains__)
    told = [line for line in logs if line["event"] == "payloads_of_nobody"]
    assert [line["tenants"] for line in told] == [["acmee"]]
    await payloads.aclose()
