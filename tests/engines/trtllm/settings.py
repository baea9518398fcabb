"""Settings of models that TensorRT-LLM serves, for tests: any that can be said."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from engines.trtllm.settings import TrtServers, TrtSettings

PAIR: dict[str, Any] = {
    "guard": False,
    "context": TrtServers(urls=("ctx-0:8001", "ctx-1:8001")),
    "generation": TrtServers(urls=("gen-0:8002",)),
}
RANKS = st.integers(1, 64)
SIZES = st.integers(0, 1 << 20)
URLS = st.lists(
    st.from_regex(r"[a-z]{1,9}:[1-9][0-9]{0,3}", fullmatch=True), min_size=1, unique=True
)
DTYPES = ("auto", "bf16", "fp8", "nvfp4")
EXTRA = st.dictionaries(
    st.sampled_from(("enable_autotuner", "print_iter_log", "enable_iter_perf_stats")), st.booleans()
) | st.just(
    {"kv_cache_config": {"max_tokens": 4096}, "gpus_per_node": 8, "moe_config": {"no": "on"}}
)


def servers(is_empty: bool) -> st.SearchStrategy[TrtServers]:
    """Of one phase."""
    if is_empty:
        return st.just(TrtServers())
    return st.builds(
        TrtServers,
        urls=URLS.map(tuple),
        path=st.sampled_from(("", "/models/other")),
        kv_dtype=st.sampled_from(("", *DTYPES)),
        tensor_parallel=st.integers(0, 8),
        memory_fraction=st.just(0.0) | st.floats(0.01, 1),
        max_batch_size=SIZES,
        router=st.sampled_from(("", "round_robin", "load_balancing", "kv_cache_aware")),
    )


@st.composite
def any_settings(draw: st.DrawFn) -> TrtSettings:
    """Whatever its types allow; most of it would be refused by the check, and is rendered right."""
    is_whole = draw(st.booleans())
    return TrtSettings(
        version=draw(st.sampled_from(("1.2.1", "1.3.0rc29", "1.4.0rc1"))),
        kv_dtype=draw(st.sampled_from(DTYPES)),
        tokens_per_block=draw(st.sampled_from((16, 32, 64, 128))),
        tensor_parallel=draw(RANKS),
        pipeline_parallel=draw(RANKS),
        expert_parallel=draw(RANKS),
        memory_fraction=draw(st.floats(1e-6, 1)),
        max_batch_size=draw(SIZES),
        max_num_tokens=draw(SIZES),
        max_seq_len=draw(SIZES),
        block_reuse=draw(st.booleans()),
        partial_reuse=draw(st.booleans()),
        host_cache_bytes=draw(SIZES),
        kv_manager=draw(st.sampled_from(("v1", "v2"))),
        overlap_scheduler=draw(st.booleans()),
        cuda_graphs=draw(st.booleans()),
        chunked_prefill=draw(st.booleans()),
        guard=draw(st.booleans()),
        transfer=draw(st.sampled_from(("nixl", "ucx", "mpi", "mooncake"))),
        context=draw(servers(is_whole)),
        generation=draw(servers(is_whole)),
        extra=draw(EXTRA),
    )
