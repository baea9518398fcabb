"""`[[models]] engine = "tensorrt-llm"`: what is taken, and what is refused, where and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.trtllm import manifest
from runtime import config_file
from runtime.config.models import FOREIGN_KEYS
from runtime.config_file import Given, parse

PRICE = 'price = { input = "0", output = "0" }\n'
MODEL = '[[models]]\nid = "m"\nengine = "tensorrt-llm"\n' + PRICE
GUARD = 'guard_url = "http://127.0.0.1:9000"\n'
SECRET = 'guard_secret = "G"\n'
HOOK = 'version = "1.3.0rc22"\n'
OFF = "guard = false\n"
CONTEXT = '[models.trt.context]\nurls = ["gpu-1:8001"]\n{}'
APART = CONTEXT + '[models.trt.generation]\nurls = ["gpu-2:8001"]\n'


def faults(trt: str = GUARD, more: str = "", after: str = "") -> dict[str, str]:
    """By path below the model."""
    report = parse(f"{MODEL}{more}[models.trt]\n{trt}{after}", "", Given()).report
    assert len(report.errors) == len({fault.path for fault in report.errors}), report.errors
    return {fault.path.removeprefix("models[0]."): fault.message for fault in report.errors}


@pytest.mark.parametrize(
    ("trt", "more", "after"),
    [
        (GUARD, "", ""),
        (HOOK, "", ""),
        (OFF, "", ""),
        (GUARD + SECRET, "", ""),
        ('guard_url = "http://gpu-1:9000"\n' + SECRET, "", ""),
        (GUARD, 'url = "http://10.0.0.5:8000/v1"\nupstream_model = "x"\n', ""),
        (GUARD, 'url = "https://trt.example.com/v1"\napi_key_secret = "K"\n', ""),
        (GUARD, 'path = "/on/another/machine"\n', ""),
        (GUARD, 'cache = "salted"\n', ""),
        (OFF, 'cache = "shared-accepted"\n', ""),
        (OFF + "block_reuse = false\n", 'cache = "off"\n', ""),
        (GUARD + 'gpu = "blackwell"\nkv_dtype = "nvfp4"\n', "", ""),
        (GUARD + "tensor_parallel = 8\nexpert_parallel = 4\n", "", ""),
        (GUARD + "max_seq_len = 8192\nmax_num_tokens = 8192\nmax_batch_size = 64\n", "", ""),
        (OFF + "host_cache_bytes = 1073741824\npartial_reuse = true\n", "", ""),
        (OFF + 'version = "1.3.0rc22"\noverlap_scheduler = true\n', "", ""),
        (OFF + "chunked_prefill = true\nmax_seq_len = 8192\nmax_num_tokens = 512\n", "", ""),
        (OFF + "pipeline_parallel = 2\n", "", ""),
        (OFF + 'kv_manager = "v2"\nversion = "1.4.0rc1"\n', "", ""),
        (GUARD + "extra = { stream_interval = 2, kv_cache_config = { max_tokens = 1 } }\n", "", ""),
        (GUARD + "extra = { cuda_graph_config = { max_batch_size = 64 } }\n", "", ""),
        (GUARD + "extra = { max_beam_width = 1, enable_attention_dp = false }\n", "", ""),
        (OFF + "extra = { speculative_config = { decoding_type = 'NGram' } }\n", "", ""),
        (OFF + "version = '1.3.0rc29'\nextra = { kv_connector_config = { connector = 'kvbm' } }\n",
         'cache = "shared-accepted"\n', ""),
        (OFF, "", APART.format("tensor_parallel = 4\n")),
        (OFF + 'kv_dtype = "fp8"\n', "", APART.format('path = "/one"\nkv_dtype = "fp8"\n')),
    ],
)  # fmt: skip
def test_what_would_work_is_taken(trt: str, more: str, after: str) -> None:
    assert faults(trt, more, after) == {}


WITHOUT_GUARD = "blinds the guard"
PUBLIC = "is a public address, called in plain text"
REFUSED = {
    # what a release can't do
    "no version": ('version = "latest"\n', "", "", "trt.version", "is no release"),
    "below the floor": (GUARD + 'version = "1.2.0"\n', "", "", "trt.version", "1.2.1 is the first"),
    "overlap races": (OFF + "overlap_scheduler = true\n", "", "", "trt.overlap_scheduler", "15546"),
    "overlap races in V2": (
        OFF + 'version = "1.4.0rc1"\noverlap_scheduler = true\nkv_manager = "v2"\n', "", "",
        "trt.overlap_scheduler", "16088",
    ),
    "chunks corrupt": (
        OFF + 'version = "1.3.0rc11"\nchunked_prefill = true\n', "", "",
        "trt.chunked_prefill", "12673",
    ),
    # what the guard can't watch
    "host cache": (GUARD + "host_cache_bytes = 1\n", "", "", "trt.host_cache_bytes", WITHOUT_GUARD),
    "partial reuse": (GUARD + "partial_reuse = true\n", "", "", "trt.partial_reuse", WITHOUT_GUARD),
    "V2": (GUARD + 'kv_manager = "v2"\n', "", "", "trt.kv_manager", WITHOUT_GUARD),
    "pipeline": (
        GUARD + "pipeline_parallel = 2\n", "", "", "trt.pipeline_parallel", WITHOUT_GUARD
    ),
    "overlap": (
        HOOK + "overlap_scheduler = true\n", "", "", "trt.overlap_scheduler", WITHOUT_GUARD
    ),
    "chunks": (GUARD + "chunked_prefill = true\n", "", "", "trt.chunked_prefill", WITHOUT_GUARD),
    "apart": (HOOK, "", APART.format(""), "trt.context", WITHOUT_GUARD),
    "no salts, off": (
        GUARD + "block_reuse = false\n", 'cache = "off"\n', "", "cache", "by their salts"
    ),
    "no salts, shared": (GUARD, 'cache = "shared-accepted"\n', "", "cache", "by their salts"),
    # how the gateway hears of it
    "no hook": ("", "", "", "trt.guard_url", "1.2.1 can't end a request from within"),
    "guard at ftp": ('guard_url = "ftp://x"\n', "", "", "trt.guard_url", "expected the http(s)"),
    "guard in public": ('guard_url = "http://9.9.9.9"\n', "", "", "trt.guard_url", PUBLIC),
    "url without a guard": (OFF + GUARD, "", "", "trt.guard_url", "means nothing without"),
    "secret without a guard": (
        OFF + 'guard_secret = "G"\n', "", "", "trt.guard_secret", "means nothing without the guard"
    ),
    "secret for nobody": (
        HOOK + 'guard_secret = "G"\n', "", "", "trt.guard_secret", "without a `guard_url`"
    ),
    "not a secret's name": (
        GUARD + 'guard_secret = "hunter 2"\n', "", "", "trt.guard_secret", "the name of a secret"
    ),
    # how much
    "no memory": (GUARD + "memory_fraction = 0\n", "", "", "trt.memory_fraction", "over 0"),
    "all and more": (GUARD + "memory_fraction = 1.1\n", "", "", "trt.memory_fraction", "up to 1"),
    "a block of 24": (
        GUARD + "tokens_per_block = 24\n", "", "", "trt.tokens_per_block", "a power of 2"
    ),
    "prompts over a step": (
        GUARD + "max_seq_len = 8192\nmax_num_tokens = 4096\n", "", "",
        "trt.max_num_tokens", "issue 4441",
    ),
    "less than a block": (GUARD + "max_seq_len = 16\n", "", "", "trt.max_seq_len", "a block, 32"),
    "a batch over a step": (
        GUARD + "max_batch_size = 64\nmax_num_tokens = 32\n", "", "",
        "trt.max_batch_size", "each of 64",
    ),
    "experts over more": (
        GUARD + "tensor_parallel = 4\nexpert_parallel = 3\n", "", "",
        "trt.expert_parallel", "must divide 4",
    ),
    "no GPUs": (GUARD + "tensor_parallel = 0\n", "", "", "trt.tensor_parallel", "from 1 to"),
    # what the GPU can't
    "NVFP4 cache on Hopper": (
        GUARD + 'kv_dtype = "nvfp4"\n', "", "", "trt.kv_dtype", "hopper has no cache in nvfp4"
    ),
    # where
    "public url": (GUARD, 'url = "http://9.9.9.9/v1"\n', "", "url", PUBLIC),
    "no url": (GUARD, 'url = "x"\n', "", "url", "http(s) URL"),
    "reused after all": (OFF, 'cache = "off"\n', "", "cache", "`block_reuse` is true"),
    "launched, no path": (GUARD + 'python = "/x"\n', "", "", "path", "is missing"),
    "launched, not here": (
        GUARD + 'image = "x"\n', 'path = "/nowhere"\n', "", "path", "there is no folder /nowhere"
    ),
    # prompts and answers apart
    "prompts alone": (
        OFF, "", '[models.trt.context]\nurls = ["a:1"]\n', "trt.generation.urls", "is missing"
    ),
    "answers alone": (
        OFF, "", '[models.trt.generation]\nurls = ["a:1"]\n', "trt.context.urls", "is missing"
    ),
    "about whom": (
        OFF, "", "[models.trt.context]\ntensor_parallel = 2\n", "trt.context.urls", "which servers"
    ),
    "unequal caches": (
        OFF + 'kv_dtype = "fp8"\n', "", APART.format('kv_dtype = "bf16"\n'),
        "trt.generation.kv_dtype", "moves no KV between caches that differ",
    ),
    "caches nobody knows": (
        OFF, "", APART.format('path = "/elsewhere"\n'), "trt.generation.kv_dtype", "say it"
    ),
    "a cache nobody knows": (
        OFF, "", APART.format('kv_dtype = "bf16"\n'), "trt.generation.kv_dtype", "say it"
    ),
    "one server twice": (
        OFF, "", APART.replace("gpu-2", "gpu-1").format(""),
        "trt.generation.urls[0]", "is there twice",
    ),
    "no address": (
        OFF, "", APART.replace("gpu-2:8001", "http://gpu-2").format(""),
        "trt.generation.urls[0]", "expected host:port",
    ),
    "public server": (
        OFF, "", APART.replace("gpu-2", "9.9.9.9").format(""), "trt.generation.urls[0]", PUBLIC
    ),
    "a part's batch": (
        OFF, "", APART.format("max_batch_size = 64\nmax_num_tokens = 32\n"),
        "trt.context.max_batch_size", "each of 64",
    ),
    "no list": (
        OFF, "", '[models.trt.context]\nurls = "a:1"\n', "trt.context.urls", "expected a list"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_work_or_not_be_safe_is_refused_with_its_reason(name: str) -> None:
    trt, more, after, path, reason = REFUSED[name]
    found = faults(trt, more, after)
    assert list(found) == [path], found
    assert reason in found[path]


SAID = "leave it out here"
EXTRA = {
    "kv_cache_config.dtype": ('"fp8"', SAID),
    "kv_cache_config.tokens_per_block": ("64", SAID),
    "kv_cache_config.host_cache_size": ("0", SAID),
    "kv_cache_config.use_kv_cache_manager_v2": ("true", SAID),
    "kv_cache_config.enable_partial_reuse": ("true", SAID),
    "kv_cache_config.free_gpu_memory_fraction": ("0.5", SAID),
    "cache_transceiver_config.backend": ('"UCX"', SAID),
    "tensor_parallel_size": ("2", SAID),
    "pipeline_parallel_size": ("2", SAID),
    "max_batch_size": ("2", SAID),
    "disable_overlap_scheduler": ("false", SAID),
    "enable_chunked_prefill": ("true", SAID),
    "model": ('"other"', SAID),
    "backend": ('"tensorrt"', "no other has"),
    "skip_tokenizer_init": ("true", "as text"),
    "max_beam_width": ("4", "one answer"),
    "kv_connector_config": ('{ connector = "lmcache" }', "the guard is the connector"),
    "speculative_config": ('{ decoding_type = "MTP" }', WITHOUT_GUARD),
    "context_parallel_size": ("2", WITHOUT_GUARD),
    "enable_attention_dp": ("true", WITHOUT_GUARD),
    "post_processor_hook": ('"mine.Hook"', WITHOUT_GUARD),
    "scheduler_config.capacity_scheduler_policy": ('"MAX_UTILIZATION"', "lose their blocks"),
    "kv_cache_config.max_attention_window": ("[4096]", WITHOUT_GUARD),
    "kv_cache_config.sink_token_length": ("4", WITHOUT_GUARD),
    "kv_cache_config.disk_cache_size": ("1", WITHOUT_GUARD),
    "kv_cache_config": ("1", "expected a table"),
    "scheduler_config": ('"x"', "expected a table"),
}


def test_an_extra_value_that_is_no_setting_is_refused() -> None:
    found = faults(OFF + "extra = { moe_config = { a = [1, { b = 2026-01-01 }] } }\n")
    assert found == {"trt.extra.moe_config": "no setting is a date"}


def test_an_extra_key_that_the_release_lacks_is_refused_and_where_nobody_knows_told() -> None:
    """It would end as it starts. Of newer releases not all keys are known."""
    extra = "extra = { kv_cache_config = { pages = 1 }, stream_interval = 'x' }\n"
    assert faults(OFF + extra).keys() == {
        "trt.extra.kv_cache_config.pages",
        "trt.extra.stream_interval",
    }
    newer = OFF + 'version = "1.4.0rc1"\n' + extra
    assert faults(newer).keys() == {"trt.extra.stream_interval"}


@pytest.mark.parametrize("key", EXTRA)
def test_an_extra_key_that_contradicts_the_rest_is_refused(key: str) -> None:
    value, reason = EXTRA[key]
    found = faults(f"{GUARD}extra.{key} = {value}\n")
    assert list(found) == [f"trt.extra.{key}"]
    assert reason in found[f"trt.extra.{key}"]


def test_a_launch_takes_a_venv_or_an_image(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    found = faults(f'{GUARD}python = "/x"\nimage = "y"\n', f'path = "{tmp_path}"\n')
    assert found == {"trt.image": "a launch takes `python` or `image`, not both"}


def test_cuda_graphs_are_tuned_only_where_there_are_any() -> None:
    (found,) = faults(GUARD + "cuda_graphs = false\nextra = { cuda_graph_config = {} }\n")
    assert found == "trt.extra.cuda_graph_config"


def test_a_connector_that_knows_no_salts_is_refused_where_tenants_are_kept_apart() -> None:
    found = faults(OFF + "extra = { kv_connector_config = { connector_module = 'x' } }\n")
    assert list(found) == ["trt.extra.kv_connector_config"]
    assert "given another's" in found["trt.extra.kv_connector_config"]


def test_what_could_not_be_rendered_is_refused_whatever_no_rule_knew() -> None:
    router = APART.format('router = "kv_cache_aware"\n')
    (found,) = faults(
        OFF + "extra = { kv_cache_config = { event_buffer_max_size = 1 } }\n", after=router
    ).items()
    assert found[0] == "trt.extra"
    assert "event_buffer_max_size" in found[1]


SERVER = '[[models.servers]]\nurl = "http://{0}:8000/v1"\nguard_url = "{1}"\n'


def test_each_of_several_servers_has_a_guard_of_its_own() -> None:
    two = SERVER.format("a", "http://a:9000") + SERVER.format("b", "http://b:9000")
    assert faults(SECRET, after=two) == {}
    assert list(faults(GUARD + SECRET, after=two)) == ["trt.guard_url"]
    twice = SERVER.format("a", "http://a:9000") + SERVER.format("b", "http://a:9000")
    assert list(faults(after=twice, trt=SECRET)) == ["servers[1].guard_url"]
    one = SERVER.format("a", "http://a:9000") + SERVER.format("b", "")
    assert list(faults(after=one, trt=SECRET)) == ["servers[1].guard_url"]
    assert faults(after=one, trt=HOOK + SECRET) == {}, (
        "where the guard ends requests by itself, it may"
    )
    public = SERVER.format("a", "http://9.9.9.9:9000") + SERVER.format("9.9.9.9", "http://b")
    assert list(faults(after=public, trt=SECRET)) == ["servers[1].url", "servers[0].guard_url"]


HERE = ("http://127.0.0.1:9000", "http://localhost:9", "http://[::1]:9", "http://127.9.9.9")
ELSEWHERE = ("http://gpu-1:9000", "https://gpu-1/guard", "http://10.0.0.5:9000", "http://[fd00::1]")


@pytest.mark.parametrize("url", HERE + ELSEWHERE)
def test_a_launcher_on_another_machine_asks_for_a_secret(url: str) -> None:
    """Strangers there could take up all its followers, and the gateway would hear nothing."""
    expected = [] if url in HERE else ["trt.guard_secret"]
    assert list(faults(f'guard_url = "{url}"\n')) == expected
    assert list(faults("", after=SERVER.format("a", url))) == expected
    assert faults(f'guard_url = "{url}"\n{SECRET}') == {}


def test_what_was_recorded_of_a_release_counts_more_than_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where it has no hook after all, the gateway must hear of the guard."""
    monkeypatch.setattr(manifest, "has", lambda version, key: False)
    assert list(faults(HOOK)) == ["trt.guard_url"]
    monkeypatch.setattr(manifest, "has", lambda version, key: True)
    assert faults("") == {}


def test_secrets_are_asked_for_by_name() -> None:
    text = f'{MODEL}api_key_secret = "K"\n[models.trt]\n{GUARD}guard_secret = "G"\n'
    assert parse(text, "", Given()).secrets == {
        "K": ["models[0].api_key_secret"],
        "G": ["models[0].trt.guard_secret"],
    }


def test_a_secret_in_place_of_its_name_is_not_shown() -> None:
    (message,) = faults(GUARD + 'guard_secret = "s3cret-!"\n').values()
    assert "s3cret" not in message


@pytest.mark.parametrize("key", FOREIGN_KEYS["tensorrt-llm"])
def test_keys_of_our_own_hosts_mean_nothing_there(key: str) -> None:
    values = {"source": '"smollm2-135m-instruct"', "options": "{ a = 1 }", "kind": '"trtllm"'}
    value = values.get(key, "1")
    assert "means nothing" in faults(more=f"{key} = {value}\n")[key]


@pytest.mark.parametrize("engine", ["embedded", "fake", "openai"])
def test_its_keys_mean_nothing_elsewhere(engine: str) -> None:
    rest = 'url = "http://x"\nkind = "vllm"\n' if engine == "openai" else ""
    rest += 'source = "smollm2-135m-instruct"\n' if engine == "embedded" else ""
    text = f'[[models]]\nid = "m"\nengine = "{engine}"\n{rest}[models.trt]\n'
    (fault,) = parse(text, "", Given()).report.errors
    assert (fault.path, fault.message[:13]) == ("models[0].trt", "means nothing")


def test_an_environment_has_its_own() -> None:
    """Its models stand in place of the top's, with all that they say."""
    text = (
        f"{MODEL}[models.trt]\n{GUARD}"
        '[[env.staging.models]]\nid = "m"\nengine = "tensorrt-llm"\n'
        '[env.staging.models.trt]\nguard = false\nkv_dtype = "${KV}"\n'
        '[env.staging.vars]\nKV = "fp8"\n'
    )
    top, staging = parse(text, "", Given()).file, parse(text, "staging", Given()).file
    assert top is not None
    assert staging is not None
    assert (top.models[0].trt.guard, top.models[0].trt.kv_dtype) == (True, "auto")
    assert (staging.models[0].trt.guard, staging.models[0].trt.kv_dtype) == (False, "fp8")
    wrong = parse(text.replace("guard = false", "host_cache_bytes = 1"), "", Given()).report
    assert {fault.path for fault in wrong.errors} == {
        "env.staging.models[0].trt.host_cache_bytes",
        "env.staging.models[0].trt.guard_url",
    }


def test_a_fault_in_one_key_hides_no_other_and_invents_none() -> None:
    found = faults(GUARD + 'kv_dtype = 8\nhost_cache_bytes = 1\nversion = 2\nguard = "yes"\n')
    assert set(found) == {"trt.kv_dtype", "trt.version", "trt.guard"}


def test_a_checkpoint_elsewhere_is_told_of_but_no_fault(tmp_path: Path) -> None:
    text = f'{MODEL}path = "/elsewhere"\n[models.trt]\n{GUARD}'
    report = config_file.parse(text, "", folder=tmp_path).report
    assert not report.errors
    assert [fault.path for fault in report.warnings] == ["models[0].path"]


def test_one_that_is_launched_from_here_is_told_of_once(tmp_path: Path) -> None:
    text = f'{MODEL}path = "/elsewhere"\n[models.trt]\npython = "/p/bin/python"\n{GUARD}'
    report = config_file.parse(text, "", folder=tmp_path).report
    assert [fault.path for fault in report.errors] == ["models[0].path"]
    assert not report.warnings


def test_what_the_gateway_sees_in_it() -> None:
    file = parse(f"{MODEL}[models.trt]\n{GUARD}", "", Given()).file
    assert file is not None
    (model,) = file.models
    assert (model.is_attached, model.server_kind) == (True, "trtllm")
    assert model.urls == ("http://127.0.0.1:8000/v1",)
    assert model.attached[0].guard_url == "http://127.0.0.1:9000"
