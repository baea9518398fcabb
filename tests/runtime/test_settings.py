"""The config file: every fault with its path, all at once, before anything starts."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from runtime import settings as config
from runtime.models import ModelSettings
from runtime.sections import FileSettings
from runtime.settings import ConfigError, Settings, load, parse

MODEL = '[[models]]\nid = "m"\nengine = "fake"\n'
ATTACHED = '[[models]]\nid = "a"\nengine = "openai"\nurl = "http://x/v1"\n'


def faults(text: str, env: dict[str, str] | None = None, folder: Path | None = None) -> list[str]:
    """The paths that a config is refused with."""
    try:
        if folder is None:
            parse(text, "test.toml")
        else:
            (folder / "test.toml").write_text(text)
            load(folder / "test.toml", folder, environ=env or {})
    except ConfigError as told:
        refused = told
    else:
        return []
    for fault in refused.report.errors:
        assert fault.message in str(refused), "the message lists every fault"
    return [one.path for one in refused.report.errors]


BROKEN: list[tuple[str, str, list[str]]] = [
    ("not TOML", "name = ", [""]),
    ("a key twice", 'name = "a"\nname = "b"\n', [""]),
    ("a table twice", "[server]\n[server]\n", [""]),
    ("half a string", 'name = "bulk', [""]),
    ("nothing at all", "", ["models"]),
    ("no model", 'name = "x"\nmodels = []\n', ["models"]),
    ("models of a wrong type", 'models = "x"\n', ["models"]),
    ("a single table of models", '[models]\nid = "x"\n', ["models"]),
    ("a model that is a word", 'models = ["x"]\n', ["models[0]"]),
    ("a model without id and engine", "[[models]]\n", ["models[0].id", "models[0].engine"]),
    ("an unknown engine", '[[models]]\nid = "m"\nengine = "vllm"\n', ["models[0].engine"]),
    ("an id with a space", '[[models]]\nid = "a b"\nengine = "fake"\n', ["models[0].id"]),
    ("an empty id", '[[models]]\nid = ""\nengine = "fake"\n', ["models[0].id"]),
    ("an id with a line end", '[[models]]\nid = "m\\n"\nengine = "fake"\n', ["models[0].id"]),
    ("an id used twice", MODEL + MODEL, ["models[1].id"]),
    ("an id used thrice", MODEL * 3, ["models[1].id", "models[2].id"]),
    ("an attached engine without url", '[[models]]\nid = "m"\nengine = "openai"\n',
     ["models[0].url"]),
    ("a url of another scheme", ATTACHED.replace("http:", "file:"), ["models[0].url"]),
    ("weights from nowhere", '[[models]]\nid = "m"\nengine = "embedded"\n', ["models[0].source"]),
    ("weights from two places",
     '[[models]]\nid = "m"\nengine = "embedded"\nsource = "s"\npath = "/p"\n',
     ["models[0].source"]),
    ("no answer tokens", MODEL + "default_max_tokens = 0\n", ["models[0].default_max_tokens"]),
    ("a date that isn't", MODEL + 'released = "soon"\n', ["models[0].released"]),
    ("a boolean in text", MODEL + 'cache_salt = "yes"\n', ["models[0].cache_salt"]),
    ("options of a wrong type", MODEL + "options = 3\n", ["models[0].options"]),
    ("a port in text", '[server]\nport = "8787"\n' + MODEL, ["server.port"]),
    ("a port over the range", "[server]\nport = 65536\n" + MODEL, ["server.port"]),
    ("a port below it", "[server]\nport = -1\n" + MODEL, ["server.port"]),
    ("a boolean as port", "[server]\nport = true\n" + MODEL, ["server.port"]),
    ("a tiny body limit", "[limits]\nmax_body_bytes = 1\n" + MODEL, ["limits.max_body_bytes"]),
    ("no time at all", "[relay]\nidle_s = 0\n" + MODEL, ["relay.idle_s"]),
    ("endless time", "[relay]\nidle_s = inf\n" + MODEL, ["relay.idle_s"]),
    ("no number", "[relay]\nidle_s = nan\n" + MODEL, ["relay.idle_s"]),
    ("time in words", '[hosts]\nstart_s = "2m"\n' + MODEL, ["hosts.start_s"]),
    ("a server that is a list", "server = []\n" + MODEL, ["server"]),
    ("a name with capitals", 'name = "Bulkhead"\n' + MODEL, ["name"]),
    ("faults in four sections",
     'name = ""\n[server]\nport = "x"\n[relay]\nidle_s = -1\n' + MODEL + 'price = { input = 1 }\n',
     ["name", "server.port", "relay.idle_s", "models[0].price.input"]),
    ("faults in two models", '[[models]]\nid = 1\nengine = "x"\n[[models]]\nengine = "fake"\n',
     ["models[0].id", "models[0].engine", "models[1].id"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "paths"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_every_fault_is_named_with_its_path(text: str, paths: list[str]) -> None:
    assert faults(text) == paths


BAD_PRICES = ["0.1", "", "-1", "+1", "1e3", "1,5", ".5", "1.", "0.1234567", "1_000", "free", "0x1"]


@pytest.mark.parametrize("price", [f'"{text}"' for text in BAD_PRICES[1:]] + ["0.1", "1", "true"])
def test_a_price_is_a_plain_decimal_in_text(price: str) -> None:
    assert faults(MODEL + f"price = {{ output = {price} }}\n") == ["models[0].price.output"]


@pytest.mark.parametrize("price", ["1000001", "999999999", "0.1\\n", "\\u0661", "1000000.000001"])
def test_a_price_that_the_gateway_can_t_use_is_a_fault_of_the_config(price: str) -> None:
    """What passes here must not break the catalog when the gateway starts."""
    assert faults(MODEL + f'price = {{ input = "{price}" }}\n') == ["models[0].price.input"]


@pytest.mark.parametrize("price", ["0", "0.10", "1000000", "1000000.000000", "0.000001", "3"])
def test_the_gateway_can_use_every_price_that_passes(price: str) -> None:
    from gateway.prices import parse_price

    file, _ = parse(MODEL + f'price = {{ input = "{price}" }}\n', "x")
    assert parse_price(file.models[0].price.input) >= 0


@pytest.mark.parametrize("currency", ["usd", "US", "EURO", "USD\\n", ""])
def test_a_currency_is_three_capitals(currency: str) -> None:
    assert faults(MODEL + f'price = {{ currency = "{currency}" }}\n') == [
        "models[0].price.currency"
    ]


def test_faults_of_meaning_and_of_shape_come_together() -> None:
    """A missing url and a double id aren't hidden by a wrong port, nor by another model's fault."""
    text = (
        '[server]\nport = "x"\n' + MODEL + MODEL
        + '[[models]]\nid = "c"\nengine = "openai"\n'
        + '[[models]]\nid = "d"\nengine = "magic"\n'
    )  # fmt: skip
    assert set(faults(text)) == {
        "server.port", "models[1].id", "models[2].url", "models[3].engine",
    }  # fmt: skip


def test_a_missing_secret_is_told_with_the_other_faults(tmp_path: Path) -> None:
    text = ATTACHED + 'api_key_secret = "NOT_SET"\n' + MODEL + MODEL
    assert set(faults(text, {}, tmp_path)) == {"models[0].api_key_secret", "models[2].id"}


def test_a_missing_secret_names_its_variable(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text(ATTACHED + 'api_key_secret = "THE_KEY"\n')
    for environ in ({}, {"THE_KEY": ""}):
        with pytest.raises(ConfigError, match=r"models\[0\]\.api_key_secret: .*THE_KEY is not set"):
            load(tmp_path / "b.toml", tmp_path, environ=environ)
    settings, _ = load(tmp_path / "b.toml", tmp_path, environ={"THE_KEY": "k"})
    assert settings.secrets == {"THE_KEY": "k"}


@pytest.mark.parametrize(
    ("text", "path", "hint"),
    [
        ('nmae = "x"\n' + MODEL, "nmae", "did you mean `name`?"),
        ("[server]\nprot = 1\n" + MODEL, "server.prot", "did you mean `port`?"),
        (MODEL + 'souce = "x"\n', "models[0].souce", "did you mean `source`?"),
        (MODEL + 'price = { inptu = "1" }\n', "models[0].price.inptu", "did you mean `input`?"),
        ("zzz = 1\n" + MODEL, "zzz", "unknown key, ignored"),
    ],
)
def test_an_unknown_key_is_a_warning_that_says_what_was_meant(
    text: str, path: str, hint: str
) -> None:
    _, report = parse(text, "x")
    assert [w.path for w in report.warnings] == [path]
    assert report.warnings[0].message.endswith(hint)


def test_warnings_are_told_beside_faults() -> None:
    with pytest.raises(ConfigError, match="1 warning\n  └─ nmae: unknown key"):
        parse('nmae = "x"\n', "x")


def test_the_built_in_config_is_the_one_in_the_folder_and_has_no_fault(tmp_path: Path) -> None:
    shipped = Path(config.__file__).parent.parent / "config" / "bulkhead.toml"
    built_in, report = load(environ={}, cwd=tmp_path)
    assert built_in.config_path == ""
    assert report.warnings == []
    assert built_in.file == parse(shipped.read_text("utf-8"), "x")[0]
    assert built_in.file.models[0].released == datetime.date(2024, 11, 1)
    assert built_in.state_dir == tmp_path / ".bulkhead"


def named(path: Path, name: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'name = "{name}"\n' + MODEL)
    return path


def test_arguments_win_over_the_environment_and_that_over_the_folder(tmp_path: Path) -> None:
    here = named(tmp_path / "here" / "bulkhead.toml", "folder").parent
    from_env = named(tmp_path / "env.toml", "environment")
    argument = named(tmp_path / "arg.toml", "argument")
    env = {"BULKHEAD_CONFIG": str(from_env), "BULKHEAD_STATE": str(tmp_path / "env-state")}

    def found(**given: Any) -> tuple[str, Path]:
        settings, _ = load(cwd=here, **given)
        return settings.file.name, settings.state_dir

    assert found(environ={}) == ("folder", here / ".bulkhead")
    assert found(environ=env) == ("environment", tmp_path / "env-state")
    assert found(config=argument, state_dir=tmp_path / "s", environ=env) == (
        "argument",
        tmp_path / "s",
    )


def test_the_config_is_searched_upwards_and_in_config_folders(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    named(tmp_path / "config" / "bulkhead.toml", "far")
    assert load(cwd=deep, environ={})[0].file.name == "far"
    named(tmp_path / "a" / "bulkhead.toml", "near")
    assert load(cwd=deep, environ={})[0].file.name == "near"


def test_a_config_that_isn_t_there_is_told_by_name(tmp_path: Path) -> None:
    for path in (tmp_path / "no.toml", tmp_path):
        with pytest.raises(ConfigError, match="no such file"):
            load(path, environ={})
    with pytest.raises(ConfigError, match=r"no\.toml\n✗ 1 error\n  └─ no such file"):
        load(environ={"BULKHEAD_CONFIG": str(tmp_path / "no.toml")})


def test_a_config_that_isn_t_text_is_a_fault_too(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_bytes(b'name = "\xff"\n')
    with pytest.raises(ConfigError, match="UTF-8"):
        load(tmp_path / "b.toml", environ={})


def test_host_and_port_of_the_environment_win_over_the_file(tmp_path: Path) -> None:
    named(tmp_path / "bulkhead.toml", "x")
    env = {"BULKHEAD_HOST": "0.0.0.0", "BULKHEAD_PORT": "1234"}
    server = load(cwd=tmp_path, environ=env)[0].file.server
    assert (server.host, server.port) == ("0.0.0.0", 1234)
    server = load(cwd=tmp_path, environ={"BULKHEAD_HOST": "", "BULKHEAD_PORT": ""})[0].file.server
    assert (server.host, server.port) == ("127.0.0.1", 8787)


@pytest.mark.parametrize("port", ["http", "70000", "-1", "80.5", "²"])
def test_a_port_of_the_environment_that_can_t_be_is_a_fault(tmp_path: Path, port: str) -> None:
    named(tmp_path / "bulkhead.toml", "x")
    with pytest.raises(ConfigError, match="BULKHEAD_PORT"):
        load(cwd=tmp_path, environ={"BULKHEAD_PORT": port})


def test_no_secret_shows_in_a_repr(tmp_path: Path) -> None:
    settings = Settings(
        file=FileSettings(models=(ModelSettings(id="m", engine="openai", api_key_secret="K"),)),
        config_path="c",
        state_dir=tmp_path,
        secrets={"K": "sk-canary"},
        root_secret="root-canary",
    )
    for text in (repr(settings), str(settings), f"{settings}", repr([settings])):
        assert "canary" not in text


def test_a_child_loads_the_same_settings(tmp_path: Path) -> None:
    """What `child_environment` says is what `load` reads."""
    path = named(tmp_path / "bulkhead.toml", "x")
    env = {"BULKHEAD_HOST": "::1", "BULKHEAD_PORT": "99", "BULKHEAD_DEV": "1"}
    settings, _ = load(path, tmp_path / "s", environ=env)
    again, _ = load(environ=config.child_environment(settings), cwd=Path("/"))
    assert again == settings
