"""A package `tensorrt_llm` with the few names that the guard meets, as two generations have them.

Written from what is known of its interface: names, signatures and fields, and no code of it.
"earlier" is 1.2's: the connector in its old place, salts as numbers, no hook. "later" is 1.3's.
"""

from __future__ import annotations

from pathlib import Path

GENERATIONS = ("earlier", "later")

WORKER = """
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import List, Optional


class KvCacheConnectorWorker(ABC):
    def __init__(self, llm_args):
        self._llm_args = llm_args
        self._metadata = None
        super().__init__()

    def bind_connector_meta(self, metadata):
        self._metadata = metadata

    def get_connector_meta(self):
        return self._metadata

    def _clear_connector_meta(self):
        self._metadata = None

    def register_forward_pass_callable(self):
        pass

    @abstractmethod
    def register_kv_caches(self, kv_cache_tensor): ...

    @abstractmethod
    def start_load_kv(self, stream): ...

    @abstractmethod
    def wait_for_layer_load(self, layer_idx, stream): ...

    @abstractmethod
    def save_kv_layer(self, layer_idx, stream): ...

    @abstractmethod
    def wait_for_save(self, stream): ...

    @abstractmethod
    def get_finished(self, finished_gen_req_ids, started_loading_req_ids): ...


class KvCacheConnectorScheduler(ABC):
    def __init__(self, llm_args):
        self._llm_args = llm_args
        super().__init__()

    @abstractmethod
    def build_connector_meta(self, scheduler_output): ...

    @abstractmethod
    def get_num_new_matched_tokens(self, request, num_computed_tokens): ...

    @abstractmethod
    def request_finished(self, request, cache_block_ids): ...

    @abstractmethod
    def update_state_after_alloc(self, request, block_ids): ...
"""

EARLIER = f"""{WORKER}

@dataclass
class RequestData:
    request_id: int
    new_tokens: List[int]
    new_block_ids: List[int]
    computed_position: int
    num_scheduled_tokens: int


@dataclass
class SchedulerOutput:
    new_requests: List[RequestData] = field(default_factory=list)
    cached_requests: List[RequestData] = field(default_factory=list)
"""

LATER = f"""{WORKER}
    def request_finished_by_layer_group(self, request, cache_block_ids_by_layer_group):
        [cache_block_ids] = cache_block_ids_by_layer_group
        return self.request_finished(request, cache_block_ids)

    def update_state_after_alloc_by_layer_group(self, request, block_ids_by_layer_group):
        [block_ids] = block_ids_by_layer_group
        self.update_state_after_alloc(request, block_ids)

    def wait_for_initialization(self):
        return


@dataclass
class RequestData:
    request_id: int
    new_tokens: List[int]
    new_block_ids: List[int]
    computed_position: int
    num_scheduled_tokens: int
    block_hashes: List[int] = field(default_factory=list)
    priorities: Optional[List[int]] = None
    cache_salt: Optional[str] = None
    new_block_ids_by_layer_group: List[List[int]] = field(default_factory=list)


@dataclass
class SchedulerOutput:
    new_requests: List[RequestData] = field(default_factory=list)
    cached_requests: List[RequestData] = field(default_factory=list)
    attention_dp_rank: Optional[int] = None
"""

HOOK = """
from dataclasses import dataclass
from typing import List, Optional


@dataclass
class PostProcessorHookChunk:
    request_id: int
    output_index: int
    text_diff: str
    text: str
    token_ids_diff: List[int]
    is_final: bool
    aborted: bool
    streaming: bool


@dataclass
class PostProcessorHookVerdict:
    action: str
    text: str = ""
    reason: Optional[str] = None


def emit(text):
    return PostProcessorHookVerdict(action="emit", text=text)


def terminate(reason):
    return PostProcessorHookVerdict(action="terminate", reason=reason)
"""

ATTENTION = """
class TrtllmAttentionMetadata:
    def __init__(self, table):
        self.host_table = table.clone()
        self.kv_cache_block_offsets = table
        self.request_ids = None

    def prepare(self):
        self.kv_cache_block_offsets.copy_(self.host_table)
"""


def write_stub(folder: Path, generation: str) -> None:
    """The package, below `folder`."""
    connector = "connectors/" if generation == "later" else ""
    files = {
        f"_torch/pyexecutor/{connector}kv_cache_connector.py": (
            LATER if generation == "later" else EARLIER
        ),
        "_torch/attention_backend/trtllm.py": ATTENTION,
    }
    if generation == "later":
        files["executor/postprocessor_hook.py"] = HOOK
    package = folder / "tensorrt_llm"
    for name, text in files.items():
        file = package / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for directory in [package, *(path for path in package.rglob("*") if path.is_dir())]:
        (directory / "__init__.py").touch()
