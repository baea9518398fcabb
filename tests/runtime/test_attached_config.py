"""What the configuration must say of servers attached by URL, and of models that fall back."""

from __future__ import annotations

import pytest

from runtime.config_file import Given, parse

URL = 'url = "http://x/v1"\n'
SERVER = '[[models.servers]]\nurl = "http://{0}/v1"\n'


def model(more: str, id_: str = "m", engine: str = "openai") -> str:
    return f'[[models]]\nid = "{id_}"\nengine = "{engine}"\n{more}'


def faults(text: str) -> dict[str, str]:
    report = parse(text, "", Given()).report
    return {fault.path: fault.message for fault in report.errors}


@pytest.mark.parametrize(
    "more",
    [
        'kind = "vllm"\n', 'kind = "sglang"\n', 'kind = "trtllm"\n', 'kind = "llamacpp"\n',
        'kind = "trtllm"\ntokenizer = "llama"\n',
        'cache = "salted"\n', 'cache = "off"\n', 'cache = "shared-accepted"\n',
        'kind = "dynamo"\ncache = "salted"\nextra_body = { nvext = { agent_hints = {} } }\n',
        'kind = "vllm"\ncache = "off"\nextra_body = { cache_salt = "one" }\n',
    ],
)  # fmt: skip
def test_a_server_whose_cache_is_known_is_taken(more: str) -> None:
    assert faults(model(URL + more)) == {}


def test_a_server_whose_cache_nobody_knows_is_refused() -> None:
    """The safe default: what can't be kept apart is never shared in silence."""
    (fault,) = faults(model(URL)).items()
    assert fault[0] == "models[0].cache"
    assert '"shared-accepted"' in fault[1]


def test_dynamo_s_caches_depend_on_what_stands_behind_it() -> None:
    (fault,) = faults(model(URL + 'kind = "dynamo"\n')).items()
    assert fault[0] == "models[0].cache"
    assert "SGLang" in fault[1]


@pytest.mark.parametrize(
    ("more", "path"),
    [
        (URL + 'kind = "dynamo"\ncache = "salted"\nextra_body = { nvext = { cache_salt = "" } }\n',
         "models[0].extra_body.nvext.cache_salt"),
        (URL + 'kind = "dynamo"\ncache = "off"\nextra_body = { nvext = 1 }\n',
         "models[0].extra_body.nvext"),
        (URL + 'kind = "llamacpp"\ncache = "salted"\n', "models[0].cache"),
        (URL + 'kind = "vllm"\nextra_body = { cache_salt = "x" }\n',
         "models[0].extra_body.cache_salt"),
        (URL + 'kind = "vllm"\nextra_body = { stream = true }\n', "models[0].extra_body.stream"),
        (URL + 'kind = "vllm"\nextra_body = { n = 4 }\n', "models[0].extra_body.n"),
        (URL + 'kind = "vlm"\n', "models[0].kind"),
        (URL + 'kind = "vllm"\ntokenizer = "llama"\n', "models[0].tokenizer"),
        (URL + 'kind = "vllm"\n' + SERVER.format("y"), "models[0].servers"),
        ('kind = "vllm"\n' + SERVER.format("y") + SERVER.format("y"), "models[0].servers[1].url"),
        ('kind = "vllm"\n' + SERVER.format("y") + "weight = 0\n", "models[0].servers[0].weight"),
        ('kind = "vllm"\n[[models.servers]]\nurl = "y"\n', "models[0].servers[0].url"),
        ('kind = "vllm"\n', "models[0].url"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_told_where_it_stands(more: str, path: str) -> None:
    assert list(faults(model(more))) == [path]


def test_a_key_of_one_of_several_servers_is_a_secret_like_any() -> None:
    text = model('kind = "vllm"\n' + SERVER.format("y") + 'api_key_secret = "ONE"\n')
    assert parse(text, "", Given()).secrets == {"ONE": ["models[0].servers[0].api_key_secret"]}


EURO = 'price = { currency = "EUR" }\n'


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (model('fallback = ["n"]\n', engine="fake"), "models[0].fallback[0]"),
        (model('fallback = ["m"]\n', engine="fake"), "models[0].fallback[0]"),
        (model('fallback = ["n", "n"]\n', engine="fake") + model("", "n", "fake"),
         "models[0].fallback[1]"),
        (model('fallback = ["n"]\n', engine="fake") + model(EURO, "n", "fake"),
         "models[0].fallback[0]"),
    ],
    ids=["nobody", "itself", "twice", "another currency"],
)  # fmt: skip
def test_a_model_falls_back_to_others_that_cost_the_same_money(text: str, path: str) -> None:
    assert list(faults(text)) == [path]
    good = model('fallback = ["n"]\n', engine="fake") + model("", "n", "fake")
    assert faults(good) == {}
