"""Rendering into a folder again: what no longer belongs goes, and nothing that isn't ours."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from engines.trtllm.commands import Laid
from engines.trtllm.rendered import Rendered
from engines.trtllm.rewritten import LIST, Gone, rewrite

FIRST = {"serve.yaml": "one", "python/engines/a.py": "a", "python/engines/b.py": "b"}


def found(files: dict[str, str], links: dict[str, str] | None = None) -> Rendered:
    return Rendered(files, links or {}, Laid("/x", {}))


def names(folder: Path) -> set[str]:
    inside = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return {str(path.relative_to(folder)) for path in inside} - {LIST}


def test_what_no_longer_belongs_is_removed_and_told(tmp_path: Path) -> None:
    first = found(FIRST, {"checkpoint/model.safetensors": "/models/m"})
    assert rewrite(first, tmp_path) == Gone((), ())
    assert rewrite(first, tmp_path) == Gone((), ()), "the same again"
    gone = rewrite(found({"context.yaml": "two", "python/engines/b.py": "c"}), tmp_path)
    expected = ("checkpoint/model.safetensors", "python/engines/a.py", "serve.yaml")
    assert gone == Gone(expected, ())
    assert names(tmp_path) == {"context.yaml", "python/engines/b.py"}
    assert not (tmp_path / "checkpoint").exists()
    assert rewrite(found({}), tmp_path).removed == ("context.yaml", "python/engines/b.py")
    assert names(tmp_path) == set()


def test_what_others_put_there_or_changed_stays(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    rewrite(found(FIRST), tmp_path)
    (tmp_path / "serve.yaml").write_text("mine now")
    (tmp_path / "python/engines/a.py").unlink()
    (tmp_path / "python/engines/a.py").symlink_to("/etc/hostname")
    (tmp_path / "python/engines/b.py").unlink()
    os.mkfifo(tmp_path / "python/engines/b.py")  # which nobody waits for
    assert rewrite(found({}), tmp_path) == Gone((), tuple(sorted(FIRST)))
    assert names(tmp_path) == {"notes.txt", *FIRST}
    assert rewrite(found({}), tmp_path) == Gone((), ()), "theirs from now on"


@pytest.mark.parametrize("listed", ["", "[]", "{", "{}", '{"serve.yaml": 5}', "[" * 100_000])
def test_without_a_good_list_nothing_is_removed(listed: str, tmp_path: Path) -> None:
    rewrite(found(FIRST), tmp_path)
    (tmp_path / LIST).write_text(listed)
    assert rewrite(found({"context.yaml": ""}), tmp_path) == Gone((), ())
    assert names(tmp_path) == {"context.yaml", *FIRST}


def test_a_list_never_leads_out_of_its_folder(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    for one in (outside, folder):
        rewrite(found({"a": "x"}), one)
    digest = json.loads((folder / LIST).read_text())["a"]
    (folder / "behind").symlink_to(outside)
    listed = ["../outside/a", str(outside / "a"), "behind/a", ".", ""]
    (folder / LIST).write_text(json.dumps(dict.fromkeys(listed, digest)))
    assert rewrite(found({}), folder) == Gone((), ())
    assert (outside / "a").read_text() == "x"


@pytest.mark.parametrize("name", ["./a", "b//../a", "b/./a", "x\0y/z", "\ud800/q", ""])
def test_names_that_we_never_write_are_passed_over(name: str, tmp_path: Path) -> None:
    """They would be the file that was written just now, or none."""
    rewrite(found({"a": "x", "b/a": "x"}), tmp_path)
    listed = json.loads((tmp_path / LIST).read_text())
    (tmp_path / LIST).write_text(json.dumps({name: listed["a"], **listed}))
    assert rewrite(found({"a": "x", "b/a": "x"}), tmp_path) == Gone((), ())
    assert names(tmp_path) == {"a", "b/a"}


def test_what_was_begun_is_on_the_list_however_it_ends(tmp_path: Path) -> None:
    rewrite(found({"serve.yaml": "one"}), tmp_path)
    (tmp_path / "context.yaml").mkdir()
    with pytest.raises(OSError, match=r"context\.yaml"):
        rewrite(found({"a.yaml": "", "context.yaml": ""}), tmp_path)
    (tmp_path / "context.yaml").rmdir()
    assert rewrite(found({}), tmp_path).removed == ("a.yaml", "serve.yaml")
