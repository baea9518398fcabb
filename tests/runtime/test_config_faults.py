"""Broken config files: every fault with its path and its sentence, all at once, nothing started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli.commands import main
from runtime.settings import ConfigError, parse

MODEL = '[[models]]\nid = "m"\nengine = "fake"\n'
ATTACHED = '[[models]]\nid = "a"\nengine = "openai"\nkind = "vllm"\nurl = "http://x/v1"\n'

PORT = "expected a whole number from 1 to 65535, found "
SECONDS = "expected a number over 0 up to 86400, found "
PRICE = 'expected a decimal in quotes, at most six places and a million, such as "0.10", found '
ENGINE = 'expected one of "embedded", "openai", "tensorrt-llm", "fake", found '
ID = "expected letters, digits and @ . _ / - , up to 128, the first no punctuation but @, found "
SECRET = "expected the name of a secret: letters, digits and _ , the first no digit, found "
CRON = 'expected five fields (minute, hour, day, month, weekday), such as "0 3 * * *"'
NO_MODEL = "no model is configured; add a [[models]] table"
PEM = "can't be read (No such file or directory)"

# What it is, the file, and for each path what its message begins with.
BROKEN: list[tuple[str, str, dict[str, str]]] = [
    # not TOML
    ("half a line", "name = ", {"": "not valid TOML: Invalid value (at end of document)"}),
    ("a key twice", 'name = "a"\nname = "b"\n', {"": "not valid TOML: Cannot overwrite a value"}),
    ("a table twice", "[server]\n[server]\n", {"": "not valid TOML: Cannot declare ('server',)"}),
    ("half a string", 'name = "bulk', {"": "not valid TOML: Unterminated string"}),
    # no models
    ("nothing at all", "", {"models": NO_MODEL}),
    ("no model", 'name = "x"\nmodels = []\n', {"models": NO_MODEL}),
    ("models of a wrong type", 'models = "x"\n',
     {"models": 'expected a list of tables, found the text "x"'}),
    ("a single table of models", '[models]\nid = "x"\n',
     {"models": "expected a list of tables, found a table"}),
    ("a model that is a word", 'models = ["x"]\n',
     {"models[0]": 'expected a table, found the text "x"'}),
    # models
    ("a model without id and engine", "[[models]]\n",
     {"models[0].id": "is missing", "models[0].engine": "is missing"}),
    ("an unknown engine", '[[models]]\nid = "m"\nengine = "vllm"\n',
     {"models[0].engine": ENGINE + 'the text "vllm"'}),
    ("a mistyped engine", '[[models]]\nid = "m"\nengine = "embeded"\n',
     {"models[0].engine": ENGINE + 'the text "embeded"; did you mean "embedded"?'}),
    ("an id with a space", '[[models]]\nid = "a b"\nengine = "fake"\n',
     {"models[0].id": ID + 'the text "a b"'}),
    ("an empty id", '[[models]]\nid = ""\nengine = "fake"\n', {"models[0].id": ID + 'the text ""'}),
    ("an id with a line end", '[[models]]\nid = "m\\n"\nengine = "fake"\n',
     {"models[0].id": ID + 'the text "m\\n"'}),
    ("an id used twice", MODEL + MODEL, {"models[1].id": "'m' is used twice"}),
    ("an id used thrice", MODEL * 3, {"models[1].id": "'m' is", "models[2].id": "'m' is"}),
    ("an attached engine without url", '[[models]]\nid = "m"\nengine = "openai"\nkind = "vllm"\n',
     {"models[0].url": "an attached engine needs the http(s) URL of its /v1"}),
    ("a url of another scheme", ATTACHED.replace("http:", "file:"),
     {"models[0].url": "an attached engine needs the http(s) URL"}),
    ("keys of another engine", ATTACHED + 'source = "s"\nmin_hosts = 1\n',
     {"models[0].source": 'means nothing to an engine "openai"; leave it out',
      "models[0].min_hosts": 'means nothing to an engine "openai"; leave it out'}),
    ("more hosts kept than allowed", MODEL + "min_hosts = 3\nmax_hosts = 2\n",
     {"models[0].min_hosts": "is more than `max_hosts`"}),
    ("weights from nowhere", '[[models]]\nid = "m"\nengine = "embedded"\n',
     {"models[0].source": ""}),
    ("weights from two places",
     '[[models]]\nid = "m"\nengine = "embedded"\nsource = "s"\npath = "/p"\n',
     {"models[0].source": ""}),
    ("no answer tokens", MODEL + "default_max_tokens = 0\n",
     {"models[0].default_max_tokens": "expected a whole number of 1 or more, found 0"}),
    ("a number in text", MODEL + 'max_waiting = "many"\n',
     {"models[0].max_waiting": 'expected a whole number of 0 or more, found the text "many"'}),
    ("a fraction of a host", MODEL + "max_hosts = 1.5\n",
     {"models[0].max_hosts": "expected a whole number of 1 or more, found 1.5"}),
    ("a date that isn't", MODEL + 'released = "soon"\n',
     {"models[0].released": 'expected a date, such as 2026-11-01, found the text "soon"'}),
    ("a boolean in text", MODEL + '[observability]\nenabled = "yes"\n',
     {"observability.enabled": 'expected true or false, found the text "yes"'}),
    ("options of a wrong type", MODEL + "options = 3\n",
     {"models[0].options": "expected a table, found 3"}),
    ("a price as a number", MODEL + "price = { input = 0.1, output = 1 }\n",
     {"models[0].price.input": PRICE + "0.1", "models[0].price.output": PRICE + "1"}),
    ("a key instead of a secret's name", ATTACHED + 'api_key_secret = "sk-canary-1"\n',
     {"models[0].api_key_secret": SECRET + "another text (not shown: it may be the secret"}),
    ("a secret that isn't there", ATTACHED + 'api_key_secret = "NOT_SET"\n',
     {"models[0].api_key_secret": "the secret NOT_SET is not set: store it with `bulkhead secret "
      "put NOT_SET`, or set the environment variable NOT_SET, or for `bulkhead dev` write "}),
    ("a card that isn't there", MODEL + 'card = "mine.toml"\n', {"models[0].card": ""}),
    # listeners
    ("a port in text", '[server]\nport = "8787"\n' + MODEL,
     {"server.port": PORT + 'the text "8787"'}),
    ("a port over the range", "[server]\nport = 65536\n" + MODEL, {"server.port": PORT + "65536"}),
    ("a port below it", "[server]\nport = -1\n" + MODEL, {"server.port": PORT + "-1"}),
    ("a boolean as port", "[server]\nport = true\n" + MODEL, {"server.port": PORT + "true"}),
    ("a list as port", "[server]\nport = [1]\n" + MODEL, {"server.port": PORT + "a list"}),
    ("an admin port below none", "[admin]\nport = -1\n" + MODEL,
     {"admin.port": "expected a port, or 0 for none, found -1"}),
    ("a server that is a list", "server = []\n" + MODEL,
     {"server": "expected a table, found a list"}),
    ("a certificate without its key", '[server.tls]\ncert = "c.pem"\n' + MODEL,
     {"server.tls.key": "is missing beside `cert`"}),
    ("certificates that aren't there",
     '[server]\nport = 0\ntls = { cert = "c.pem", key = "k.pem" }\n' + MODEL,
     {"server.port": PORT + "0", "server.tls.cert": "", "server.tls.key": ""}),
    ("an old TLS", '[server.tls]\nmin_version = "1.1"\n' + MODEL,
     {"server.tls.min_version": 'expected one of "1.2", "1.3", found the text "1.1"'}),
    ("an open node", "[node]\nport = 9000\n" + MODEL, {"node.tls": "a node on a port needs"}),
    ("a remote node without TLS", '[[nodes]]\nurl = "http://x"\n' + MODEL,
     {"nodes[0].url": "expected an https:// URL", "nodes[0].tls.cert": "a remote node asks for"}),
    # limits and times
    ("a tiny body limit", "[limits]\nmax_body_bytes = 1\n" + MODEL,
     {"limits.max_body_bytes": "expected a whole number from 1024 to 67108864, found 1"}),
    ("no time at all", "[relay]\nidle_s = 0\n" + MODEL, {"relay.idle_s": SECONDS + "0"}),
    ("endless time", "[relay]\nidle_s = inf\n" + MODEL, {"relay.idle_s": SECONDS + "inf"}),
    ("no number", "[relay]\nidle_s = nan\n" + MODEL, {"relay.idle_s": SECONDS + "nan"}),
    ("time in words", '[hosts]\nstart_s = "2m"\n' + MODEL,
     {"hosts.start_s": SECONDS + 'the text "2m"'}),
    ("a share over the whole", "[observability]\nhead_sampling_rate = 1.5\n" + MODEL,
     {"observability.head_sampling_rate": "expected a number from 0 to 1, found 1.5"}),
    ("a share that is no number", "[observability]\nhead_sampling_rate = nan\n" + MODEL,
     {"observability.head_sampling_rate": "expected a number from 0 to 1, found nan"}),
    ("a level that isn't", '[observability]\nlevel = "warn"\n' + MODEL,
     {"observability.level": 'expected one of "debug", "info", "warning", "error", found the text '
      '"warn"; did you mean "warning"?'}),
    # jobs
    ("a bad cron expression",
     '[triggers]\ncrons = [{ cron = "61 * * * *", run = "backup", to = "b" }]\n' + MODEL,
     {"triggers.crons[0].cron": CRON + "; bad minute"}),
    ("a cron with seconds",
     '[triggers]\ncrons = [{ cron = "0 0 3 * * *", run = "backup", to = "b" }]\n' + MODEL,
     {"triggers.crons[0].cron": CRON + ", found 6"}),
    ("jobs that lack what they need",
     '[triggers]\ncrons = [{ cron = "0 3 * * *", run = "backup" }, '
     '{ cron = "0 3 * * *", run = "usage-export" }, { cron = "0 3 * * *", run = "warm" }]\n'
     + MODEL,
     {"triggers.crons[0].to": 'is missing: "backup" needs it',
      "triggers.crons[1].to": 'is missing: "usage-export" needs it',
      "triggers.crons[2].model": 'is missing: "warm" needs it'}),
    ("warming what isn't there",
     '[triggers]\ncrons = [{ cron = "0 3 * * *", run = "warm", model = "mm" }, '
     '{ cron = "0 3 * * *", run = "warm", model = "a" }]\n' + MODEL + ATTACHED,
     {"triggers.crons[0].model": "there is no model 'mm'; did you mean \"m\"?",
      "triggers.crons[1].model": "'a' is an attached server's: no host"}),
    # alerts
    ("a webhook that can't be called", '[alerts]\nurl = "ftp://x"\nsecret = "HERE"\n' + MODEL,
     {"alerts.url": "expected an http:// or https:// URL"}),
    ("a webhook without a secret", '[alerts]\nurl = "https://x/y"\n' + MODEL,
     {"alerts.secret": "is missing beside `url`: what is sent is signed with it"}),
    ("a webhook whose secret isn't there",
     '[alerts]\nurl = "https://x/y"\nsecret = "GONE"\n' + MODEL,
     {"alerts.secret": "the secret GONE is not set"}),
    # who calls
    ("a proxy that is no network",
     '[server]\ntrusted_proxies = ["10.0.0.0/8", "unix", "10.0.0.1/8", "proxy", 7]\n' + MODEL,
     {"server.trusted_proxies[2]": "'10.0.0.1/8' has bits set beyond its prefix: write 10.0.0.0/8",
      "server.trusted_proxies[3]": "'proxy' is no network: write 203.0.113.0/24",
      "server.trusted_proxies[4]": "expected a text, found 7"}),
    ("an issuer of nothing", "[[issuers]]\n" + MODEL,
     {"issuers[0].issuer": "is missing", "issuers[0].audiences": "is missing",
      "issuers[0].tenant": "is missing: name a tenant, or the claim that says which"}),
    ("an issuer whose keys are nowhere",
     '[[issuers]]\nissuer = "accounts"\naudiences = []\nalgorithms = []\ntenant = "t"\n' + MODEL,
     {"issuers[0].jwks_url": "is missing: only an issuer whose name is an https:// URL tells it",
      "issuers[0].audiences": "is empty: name what the tokens are for",
      "issuers[0].algorithms": "is empty: name those that the issuer signs with"}),
    ("an issuer with too much",
     '[[issuers]]\nissuer = "a|b"\naudiences = ["x"]\nalgorithms = ["HS256", "none"]\n'
     'jwks_url = "http://x/keys"\njwks_file = "k"\ntenant = "t"\ntenant_claim = "org"\n'
     'scopes = ["all"]\nleeway_s = 3600\n' + MODEL,
     {"issuers[0].issuer": "expected up to 255 visible characters, without |",
      "issuers[0].algorithms[0]": 'expected one of "RS256"',
      "issuers[0].algorithms[1]": 'expected one of "RS256"',
      "issuers[0].jwks_url": "expected an https:// URL",
      "issuers[0].jwks_file": "",
      "issuers[0].tenant_claim": "there is a `tenant` already; leave one of them out",
      "issuers[0].scopes[0]": 'expected one of "inference"',
      "issuers[0].leeway_s": "expected a number from 0 to 60, found 3600"}),
    ("tenants of a claim that isn't named, and keys that aren't there",
     '[[issuers]]\nissuer = "https://x"\naudiences = ["x"]\ntenant = "t"\n'
     'tenants = { a = "t" }\njwks_file = "keys.json"\n' + MODEL,
     {"issuers[0].tenants": "is about what a claim says: name it as `tenant_claim`",
      "issuers[0].jwks_file": "there is no file "}),
    ("two issuers of one name",
     '[[issuers]]\nissuer = "https://x"\naudiences = ["x"]\ntenant = "t"\n' * 2 + MODEL,
     {"issuers[1].issuer": "'https://x' is used twice"}),
    # limits
    ("a limit below none and one too large",
     "[limits.per_tenant]\nrpm = -1\n[limits.per_key]\ntpm = 1_000_000_000_001\n" + MODEL,
     {"limits.per_tenant.rpm": "expected a whole number from 0 to 1000000000000, found -1",
      "limits.per_key.tpm": "expected a whole number from 0 to 1000000000000"}),
    ("a limit that fails in a way there isn't", '[limits.redis]\nfail = "open"\n' + MODEL,
     {"limits.redis.fail": 'expected one of "local", "closed", found the text "open"'}),
    ("a Redis by HTTP", '[limits.redis]\nurl = "https://x:6379"\n' + MODEL,
     {"limits.redis.url": "expected a redis://, rediss:// or unix:// URL"}),
    ("a Redis at no port", '[limits.redis]\nurl = "redis://x:99999"\n' + MODEL,
     {"limits.redis.url": "expected a redis://, rediss:// or unix:// URL"}),
    ("a Redis in no database", '[limits.redis]\nurl = "redis://x/one"\n' + MODEL,
     {"limits.redis.url": "expected a redis://, rediss:// or unix:// URL"}),
    ("a user of a Redis without a password", '[limits.redis]\nurl = "redis://u@x"\n' + MODEL,
     {"limits.redis.password_secret": "is missing beside the user in `url`"}),
    ("a Redis with its password", '[limits.redis]\nurl = "redis://:canary@x/0"\n' + MODEL,
     {"limits.redis.url": "a password doesn't belong here; name its secret in `password_secret`"}),
    ("a Redis whose password isn't there",
     '[limits.redis]\nurl = "redis://x"\npassword_secret = "REDIS_PASSWORD"\n' + MODEL,
     {"limits.redis.password_secret": "the secret REDIS_PASSWORD is not set"}),
    ("limits of one model twice, and of one that isn't there",
     '[[tenants]]\nname = "t"\nlimits = [{ rpm = 1 }, { tpm = 1 }, { model = "x", rpm = 1 }]\n'
     + MODEL,
     {"tenants[0].limits[1].model": "'all models' has limits already",
      "tenants[0].limits[2].model": "there is no model 'x'"}),
    # tenants and routes
    ("two tenants of one name", '[[tenants]]\nname = "t"\n[[tenants]]\nname = "t"\n' + MODEL,
     {"tenants[1].name": "'t' is used twice"}),
    ("an origin with a path",
     '[[tenants]]\nname = "t"\norigins = ["https://a.example", "https://a.example/x"]\n' + MODEL,
     {"tenants[0].origins[1]": "expected an origin as browsers send it"}),
    ("a route without a path", 'routes = ["ai.example.com"]\n' + MODEL,
     {"routes[0]": 'has no path; write "ai.example.com/*" for all of it'}),
    ("routes that are a text", 'routes = "ai.example.com/*"\n' + MODEL,
     {"routes": 'expected a list, found the text "ai.example.com/*"'}),
    # secrets and variables
    ("a required secret that isn't there", '[secrets]\nrequired = ["HERE", "GONE"]\n' + MODEL,
     {"secrets.required[1]": "the secret GONE is not set"}),
    ("a variable that isn't there",
     '[vars]\nUPSTREAM = "http://x"\n' + ATTACHED.replace("http://x", "${UPSTREEM}"),
     {"models[0].url": "there is no variable `UPSTREEM`: set it in [vars], or with --var "
      "UPSTREEM:VALUE; did you mean `UPSTREAM`?"}),
    ("a variable of a wrong type", '[vars]\nPORT = "http"\n[server]\nport = "${PORT}"\n' + MODEL,
     {"server.port": PORT + 'the text "${PORT}", which is "http"'}),
    ("a character that no name has", MODEL + 'card = "\\u0000.toml"\n',
     {"models[0].card": "a text can't hold the character U+0000"}),
    # environments
    ("a fault in an environment that isn't chosen",
     MODEL + '[env.staging.server]\nport = "x"\n[env.production]\nname = "P"\n',
     {"env.staging.server.port": PORT + 'the text "x"',
      "env.production.name": "expected lowercase letters, digits, _ and - , the first no -"}),
    ("an environment without models", MODEL + "[env.staging]\nmodels = []\n",
     {"env.staging.models": NO_MODEL}),
    ("an environment that is a word", 'env = { staging = "x" }\n' + MODEL,
     {"env.staging": "expected a table, [env.staging]"}),
    ("an environment with a bad name", MODEL + "[env.'../x']\n",
     {'env."../x"': "an environment's name is made of lowercase letters"}),
    ("environments that are a list", "env = []\n" + MODEL,
     {"env": "expected a table of environments, such as [env.staging]"}),
    # many at once
    ("a name with capitals", 'name = "Bulkhead"\n' + MODEL, {"name": "expected lowercase letters"}),
    ("faults in four sections",
     'name = ""\n[server]\nport = "x"\n[relay]\nidle_s = -1\n' + MODEL + "price = { input = 1 }\n",
     {"name": "expected lowercase", "server.port": PORT, "relay.idle_s": SECONDS,
      "models[0].price.input": PRICE}),
    ("faults in two models", '[[models]]\nid = 1\nengine = "x"\n[[models]]\nengine = "fake"\n',
     {"models[0].id": ID + "1", "models[0].engine": ENGINE, "models[1].id": "is missing"}),
    ("faults of shape and of meaning",
     '[server]\nport = "x"\n' + MODEL + MODEL + '[[models]]\nid = "c"\nengine = "openai"\n'
     'kind = "vllm"\n'
     'api_key_secret = "NOT_SET"\n[[models]]\nid = "d"\nengine = "magic"\n',
     {"server.port": PORT, "models[1].id": "'m' is used twice", "models[2].url": "an attached",
      "models[2].api_key_secret": "the secret NOT_SET", "models[3].engine": ENGINE}),
]  # fmt: skip

broken = pytest.mark.parametrize(
    ("text", "expected"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN]
)


@broken
def test_every_fault_is_told_at_once_and_nothing_is_started(
    text: str, expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERE", "a-secret")
    monkeypatch.chdir(tmp_path)
    Path("bulkhead.toml").write_text(text)
    done = CliRunner().invoke(main, ["check", "--json", "--env", ""])
    assert done.exit_code == 3
    told = json.loads(done.stdout)
    found = {fault["path"]: fault["message"] for fault in told["errors"]}
    assert found.keys() == expected.keys()
    assert len(told["errors"]) == len(expected)
    for path, beginning in expected.items():
        assert found[path].startswith(beginning), path
    assert "canary" not in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["bulkhead.toml"]


@broken
def test_the_tree_has_every_message(text: str, expected: dict[str, str]) -> None:
    """What a person is shown is no less than what a script gets."""
    try:
        parse(text, "a.toml")
    except ConfigError as told:
        tree = str(told)
        assert tree.startswith("a.toml\n✗ ")
        for fault in told.report.errors:
            assert fault.message in tree
            assert fault.path.rpartition(".")[2] in tree


@pytest.mark.parametrize(
    ("text", "path", "hint"),
    [
        ('nmae = "x"\n' + MODEL, "nmae", "did you mean `name`?"),
        ("[server]\nprot = 1\n" + MODEL, "server.prot", "did you mean `port`?"),
        (MODEL + 'souce = "x"\n', "models[0].souce", "did you mean `source`?"),
        (
            MODEL + 'price = { inptu = "1", input = "0" }\n',
            "models[0].price.inptu",
            "did you mean `input`?",
        ),
        (MODEL + "[env.x.server]\nprot = 1\n", "env.x.server.prot", "did you mean `port`?"),
        (MODEL + "[env.x]\nenv = {}\n", "env.x.env", "means something only at the top; ignored"),
        ("zzz = 1\n" + MODEL, "zzz", "unknown key, ignored"),
        ('"a b" = 1\n' + MODEL, '"a b"', "unknown key, ignored"),
    ],
)
def test_an_unknown_key_is_a_warning_that_says_what_was_meant(
    text: str, path: str, hint: str
) -> None:
    _, report = parse(text, "x")
    assert [w.path for w in report.warnings] == [path]
    assert report.warnings[0].message.endswith(hint)


def test_whom_to_believe_at_a_redis_means_nothing_without_tls() -> None:
    redis = '[limits.redis]\nurl = "{}://x"\ntls = {{ ca = "ca.pem" }}\n'
    assert parse(redis.format("rediss") + MODEL, "x")
    with pytest.raises(ConfigError, match=r"limits\.redis\.tls: is of a rediss:// URL alone"):
        parse(redis.format("redis") + MODEL, "x")


def test_warnings_are_told_beside_faults() -> None:
    with pytest.raises(ConfigError, match="1 warning\n  └─ nmae: unknown key"):
        parse('nmae = "x"\n', "x")
