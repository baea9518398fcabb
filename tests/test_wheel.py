"""What is installed is what runs: the wheel holds all it needs, and works on its own.

With a compiler it holds the native module, whose every kernel keeps to its own instruction set;
without one it is the same wheel without the module.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
NEEDED = {"avx2": {"avx2", "fma", "f16c"}}
NEEDED["avx512"] = {f"avx512{part}" for part in ("f", "bw", "vl", "dq", "_vnni", "_bf16")}
NEEDED["amx"] = NEEDED["avx512"] | {"amx_tile", "amx_int8", "amx_bf16", "gfni", "avx512vbmi"}
SAYS_ISAS = (
    "import json; from engines.kernels.native import module; print(json.dumps(module.isas()))"
)
KERNELS = re.compile(r"_(avx\w+|amx)\.cpp$")  # each named for its instruction set
WIDE = re.compile(r"%[yz]mm\d")

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Built:
    """A wheel, unpacked, and the objects that its module was linked from."""

    folder: Path
    names: set[str]

    @property
    def objects(self) -> dict[str, Path]:
        """Our own, by the names of their sources."""
        found = (self.folder / "build").rglob("_native.dir/engines/native/*.cpp.o")
        return {path.name.removesuffix(".o"): path for path in found}

    def python(self, code: str, *words: str) -> str:
        """What Python says, with the unpacked wheel on its path."""
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            cwd=self.folder,
            env={"PYTHONPATH": str(self.folder / "site"), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def bulkhead(self, *words: str) -> str:
        return self.python("from gateway.cli import main; main()", *words)


def build(folder: Path, **env: str) -> Built:
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    kept = ["-C", f"build-dir={folder / 'build'}", "--wheel-dir", str(folder)]
    subprocess.run([*pip, *kept, str(REPO)], env=dict(os.environ) | env, check=True)
    (wheel,) = folder.glob("bulkhead-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
        return Built(folder, set(archive.namelist()))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("no C++ compiler to build the native module with")
    return build(tmp_path_factory.mktemp("wheel"))


def modules(names: set[str]) -> list[str]:
    return [name for name in names if re.match(r"engines/_native.*\.so$", name)]


def test_the_wheel_holds_all_it_needs(built: Built) -> None:
    """Built from the source, unpacked elsewhere, it migrates a store and finds its config."""
    assert {
        "config/bulkhead.toml",
        "config/models/smollm2-135m-instruct.toml",
        "engines/build/fetch.py",
    } <= built.names
    assert not [name for name in built.names if name.startswith(("tests/", "benchmarks/"))]
    assert "Created tenant acme" in built.bulkhead("tenants", "create", "acme")
    assert "Next: cd gate" in built.bulkhead("init", "gate")
    assert "is good" in built.bulkhead("check", "--strict", "--config", "gate/bulkhead.toml")


def test_the_wheel_holds_the_native_module_and_none_of_its_sources(built: Built) -> None:
    (module,) = modules(built.names)
    assert not [name for name in built.names if name.endswith((".cpp", ".h"))]
    says = "from engines.kernels.native import module; print(module.__file__)"
    assert built.python(says).strip() == str(built.folder / "site" / module)


def test_the_module_finds_what_this_cpu_has_when_it_runs(built: Built) -> None:
    """The system's own list of the CPU's features, against the module's."""
    line = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    here = set(line[1].split()) if line else set()
    expected = [isa for isa in ("amx", "avx512", "avx2") if NEEDED[isa] <= here]
    found = json.loads(built.python(SAYS_ISAS))
    if "amx" not in found:  # the system may refuse it, or the compiler's assembler not know it
        expected = [isa for isa in expected if isa != "amx"]
    assert found == [*expected, "scalar"]


def test_only_the_kernels_of_an_instruction_set_hold_its_instructions(built: Built) -> None:
    """All else runs on any x86-64: the module starts there, and picks what the CPU has."""
    assert "cpu.cpp" in built.objects
    for name, path in built.objects.items():
        code = said("objdump", "-d", "--no-show-raw-insn", path)
        wide = set(WIDE.findall(code))
        if not KERNELS.search(name):
            assert not wide, f"{name} holds {wide}"
        elif name.endswith("_avx2.cpp"):
            assert "%zmm" not in code, name


def test_the_linker_can_t_mix_instruction_sets(built: Built) -> None:
    """Of an inline function that several objects hold it keeps one copy, whoever calls it.

    So a kernel's object holds none that another has too: its helpers are in an unnamed namespace,
    and it calls nothing of the standard library that isn't inlined.
    """
    held = Counter[str]()
    of_kernels: dict[str, set[str]] = {}
    for name, path in built.objects.items():
        weak = {row.split(" ", 2)[2] for row in said("nm", "-C", path).splitlines() if " W " in row}
        held.update(weak)
        if KERNELS.search(name):
            of_kernels[name] = weak
    for name, weak in of_kernels.items():
        theirs = [it for it in weak if held[it] > 1 or "bulkhead::" not in it.split("(")[0]]
        assert not theirs, f"{name}: {theirs}"


def test_without_a_compiler_it_is_the_same_wheel_without_the_module(tmp_path: Path) -> None:
    without = build(tmp_path, CXX="/bin/false")
    assert modules(without.names) == []
    assert {"engines/kernels/native.py", "config/bulkhead.toml"} <= without.names
    says = "from engines.kernels.native import IS_BUILT; print(IS_BUILT)"
    assert without.python(says) == "False\n"
    assert "Created tenant acme" in without.bulkhead("tenants", "create", "acme")


def said(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
