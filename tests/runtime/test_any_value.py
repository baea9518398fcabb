"""Any value of any key: the check refuses it or takes it, and never breaks."""

from __future__ import annotations

from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest

from runtime import config_file
from runtime.config.sections import FileSettings

VALUES = ["0", "-1", "1", "1.5", "nan", "true", '""', '"x"', '"a/b"', "[]", "{}", "[1]", "[[]]",
          '[""]', '["a", "a"]', "[{}]", "[{}, 1]", "{ a = 1 }", "2026-11-01", "12:00:00", '"${V}"',
          '"${GONE}"', '"${"', '"\\u0000"', "9223372036854775807", '"https://x"']  # fmt: skip


def keys(struct: type[msgspec.Struct], before: str = "") -> list[str]:
    """Every key of the file, as the start of an inline table: `models = [{ price = { input`."""
    found = []
    for name, hint in get_type_hints(struct).items():
        found.append(f"{before}{name}")
        kind = get_args(hint)[0] if get_args(hint) else hint
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            opening = " = [{ " if get_args(hint) else " = { "
            found += keys(kind, f"{before}{name}{opening}")
    return found


@pytest.mark.parametrize("key", keys(FileSettings))
def test_no_value_of_any_key_breaks_the_check(key: str, tmp_path: Path) -> None:
    """Rules across keys are asked whatever the keys hold; they must bear it."""
    closing = "".join({"{": " }", "[": "]"}[c] for c in reversed(key) if c in "{[")
    for value in VALUES:
        for head in ("", "[env.a]\n"):
            text = f"{head}{key} = {value}{closing}\n[vars]\nV = {value.replace('${', '')}\n"
            if not key.startswith("vars"):
                config_file.parse(text, "", folder=tmp_path)
                config_file.parse(text, "a", folder=tmp_path)


def test_all_keys_are_tried() -> None:
    assert {"models = [{ price = { input", "server = { tls = { cert", "routes"} <= set(
        keys(FileSettings)
    )
