"""Secrets are gone before any store or sink sees a rollout, and nothing else is."""

from __future__ import annotations

import json
import re
from dataclasses import fields

import pytest
from hostile import encoded, rollouts
from hypothesis import given
from hypothesis import strategies as st
from redacting import KEY, SECRETS, redacted, text
from rollout_hookspecs import Drop, Image, Placeholder, Rollout, Run, Step, Tokens, ToolCall

from examples import thorough
from rollout_plugins.content.exact_json import encode
from rollout_plugins.errors import SetupError
from rollout_plugins.plugins.redact import NAMES, Redact
from rollout_plugins.plugins.redact.scanner import Scanner
from rollout_plugins.plugins.redact.secrets import RULES

AROUND = [
    "{}",
    "key: {}",
    '"{}"',
    "a={}.",
    "({})",
    "\n{}\n",
    "`{}`",
    "\\n{}\\n",
    "\\u0022{}\\u0022",
    "é{}é",
    "\ud800 {}",
    "\uf8f0{}\uf8f1",
]


@pytest.mark.parametrize("rule", SECRETS)
def test_each_built_in_rule_finds_its_secrets_everywhere(rule):
    plugin = Redact(rules=[rule])
    for secret in SECRETS[rule]:
        for around in ["{}"] if secret.endswith("cut2") else AROUND:
            assert text(around.format(secret), plugin) == around.format(f"[REDACTED:{rule}]")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("postgres://bob:hunter2@db:5432/x", "postgres://bob:[REDACTED:url_password]@db:5432/x"),
        ("https://:p@ss:word@host/", "https://:[REDACTED:url_password]@host/"),
        ("Authorization: Bearer abcdefghijklmnopqrstuvwx", "Authorization: Bearer [REDACTED:bearer]"),
        ("'authorization': 'token 0123456789abcdef'", "'authorization': '[REDACTED:named]'"),
        ('-H "Authorization: Basic dXNlcjpwYXNzd29yZA=="', '-H "Authorization: Basic [REDACTED:bearer]"'),
        ("export WANDB_API_KEY=0123456789abcdef", "export WANDB_API_KEY=[REDACTED:assigned]"),
        ('{"client_secret": "s3cr3t-value"}', '{"client_secret": "[REDACTED:assigned]"}'),
        ('{\\"password\\": \\"hunter22\\"}', '{\\"password\\": \\"[REDACTED:assigned]\\"}'),
        (f"{KEY} {KEY},{KEY}", "[REDACTED:openai] [REDACTED:openai],[REDACTED:openai]"),
    ],
)
def test_only_the_secret_is_replaced(before, after):
    assert text(before) == after


@pytest.mark.parametrize(
    "innocent",
    [
        "sk-learn and hf_hub_download", "the bearer of news", "http://localhost:8080/path?x=a@b", "see http://a:b/c@d",
        "password: required", "token = tokenizer.encode(x)", "eyJ.eyJ.x", "AKIA", "ghost", "-----BEGIN PUBLIC KEY-----",
        "my_token: 5", "a" * 10_000, "", "data:image/png;base64," + "iVBORw0KGgo" * 40,
    ],
)  # fmt: skip
def test_ordinary_text_is_not_modified(innocent):
    rollout = Rollout(id="r", prompt=({"role": "user", "content": innocent},), completion=(innocent,))
    assert Redact().on_rollout(rollout) is None


class Client:
    def __repr__(self):
        return f"Client(key={KEY!r})"


EVERYWHERE = {
    "prompt": ({"role": "user", "content": f"use {KEY}"}, {"role": "user", "content": [{"type": "text", "text": KEY}]}),
    "completion": (
        {"role": "assistant", "reasoning_content": KEY, "tool_calls": [{"function": {"name": "f", "arguments": {"k": [KEY]}}}]},
        {"role": "tool", "content": json.dumps({"env": f"\n{KEY}\n"})},
        KEY,
    ),
    "tool_calls": (ToolCall(name="f", arguments={"k": [KEY], KEY: 1}, result=f"\n{KEY}", error=f"bad {KEY}"), ToolCall(name=KEY, arguments=KEY)),
    "columns": {"a": KEY, "b": [{"c": (KEY, {KEY})}], KEY: 1, KEY.encode(): 1, (KEY, 2): 1, frozenset([KEY]): 1, "bytes": KEY.encode(), "latin": b"\xff " + KEY.encode(), "object": Client()},
    "extra": {"log": [None, {"x": KEY}], "kept": 7},
    "error": f"ValueError: {KEY}",
    "rendered": f"<|user|>{KEY}",
    "images": (Image(hash="h", uri=f"https://x/?key={KEY}"),),
    "marks": {"judge": KEY},
    "rewards": {KEY: 1.0},
    "finish": KEY,
}  # fmt: skip


def test_no_field_lets_a_secret_through():
    assert {
        "prompt",
        "completion",
        "columns",
        "extra",
        "error",
        "rendered",
        "images",
        "tool_calls",
        "marks",
        "rewards",
        "finish",
    } == set(EVERYWHERE)
    new = redacted(**EVERYWHERE)
    for field in fields(new):
        assert "a1B2" not in repr(getattr(new, field.name)), field.name
        assert "a1B2" not in encode(getattr(new, field.name)), field.name
    assert new.extra == {"log": [None, {"x": "[REDACTED:openai]"}], "kept": 7}
    assert new.columns["bytes"] == b"[REDACTED:openai]"
    assert new.columns["latin"] == b"\xff [REDACTED:openai]"
    assert isinstance(new.columns["object"], Placeholder)
    assert new.columns["object"].where == "columns.object"


def test_messages_are_replaced_never_changed():
    message = {"role": "user", "content": [{"type": "text", "text": KEY}, {"type": "text", "text": "b"}]}
    new = redacted(prompt=(message, {"role": "user", "content": "text"}))
    assert message["content"][0]["text"] == KEY
    assert new.prompt[0]["content"][1] is message["content"][1]


def test_keys_that_become_equal_stay_apart():
    new = redacted(columns={KEY: 1, KEY + "b": 2})
    assert new.columns == {"[REDACTED:openai]": 1, "[REDACTED:openai] (2)": 2}
    new = redacted(columns={KEY.encode(): 1, KEY.encode() + b"b": 2})
    assert sorted(new.columns.values()) == [1, 2]


def test_counts_and_marks():
    plugin = Redact()
    call = {"function": {"name": "f", "arguments": {"k": KEY}}}
    new = redacted(
        plugin,
        prompt=({"role": "user", "content": f"{KEY} AKIAIOSFODNN7EXAMPLE"},),
        completion=({"role": "assistant", "tool_calls": [call]},),
        tool_calls=(ToolCall(name="f", arguments={"k": KEY}),),
    )
    assert new.marks == {"redact": "1 aws, 2 openai"}
    assert plugin.rollout_metrics(Step(split="eval")) is None
    assert plugin.rollout_metrics(Step()) == {"redacted/aws": 1, "redacted/openai": 2}
    assert plugin.rollout_metrics(Step()) is None


def test_secrets_that_only_tool_calls_contain_are_counted_too():
    plugin = Redact()
    assert redacted(plugin, tool_calls=(ToolCall(name="f", arguments={"k": KEY}),)).marks == {"redact": "1 openai"}
    assert plugin.rollout_metrics(Step()) == {"redacted/openai": 1}


def test_token_ids_that_spell_a_secret_are_left_out():
    tokens = Tokens(prompt=[1], completion=[2])
    new = redacted(prompt=({"content": KEY},), tokens=tokens)
    assert new.tokens is None
    assert new.marks == {"redact": "1 openai, token ids left out"}
    assert redacted(columns={"a": KEY}, tokens=tokens).tokens is tokens


def test_equal_secrets_get_equal_tokens_over_ranks_and_other_runs_get_others():
    def token(run, secret, **options):
        plugin = Redact(keep_equal=True, **options)
        plugin.on_run_start(Run(id=run))
        return text(secret, plugin)

    assert token("run", KEY) == token("run", KEY)
    assert re.fullmatch(r"\[REDACTED:openai#[0-9a-f]{8}\]", token("run", KEY))
    assert token("run", KEY) != token("run", KEY + "b")
    assert token("run", KEY) != token("other", KEY)
    assert token("run", KEY, salt="s") == token("other", KEY, salt="s") != token("run", KEY)


@thorough
@given(st.sampled_from([secret for all_of in SECRETS.values() for secret in all_of]), st.booleans())
def test_what_was_redacted_is_not_redacted_again(secret, keep_equal):
    plugin = Redact(keep_equal=keep_equal)
    once = redacted(plugin, columns={"a": f"password=hunter2 {secret} http://u:pw1@h"})
    assert plugin.on_rollout(once) is None


def test_own_patterns_by_name_and_as_compiled_ones():
    plugin = Redact(rules=(), patterns={"employee": r"EMP-\d{6}", "name": re.compile(r"bob|alice", re.IGNORECASE)})
    assert text(f"EMP-123456 is Bob {KEY}", plugin) == f"[REDACTED:employee] is [REDACTED:name] {KEY}"
    assert text("ID 77", Redact(patterns=[r"ID \d+"])) == "[REDACTED:pattern]"


@pytest.mark.parametrize("pattern", [r"(a+)+b", r"(a|aa)+b", r"(.*)*b", r"([a-z]+)*\d", r"a*a*a*a*a*b"])
def test_own_patterns_take_linear_time(pattern):
    # Backtracking over this many letters would not end before the test's time limit.
    assert text("a" * 200_000, Redact(rules=(), patterns=[pattern])) == "a" * 200_000


@pytest.mark.parametrize(
    "attack",
    ["eyJ", "eyJaaaaaaaaaaa.", "-----BEGIN PRIVATE KEY-----", "http://a:", "password", "sk-", "Authorization: "],
)  # fmt: skip
def test_built_in_rules_take_linear_time(attack):
    # A tenth of a second for a million characters. Quadratic work would not end before the test's time limit.
    text(attack * (1_000_000 // len(attack)))


def test_built_in_rules_take_linear_time_where_an_address_never_ends():
    text("a://" * 200_000 + ":" * 200_000)


def test_own_function_sees_every_text_after_the_rules():
    plugin = Redact(function=lambda value: value.replace("Falcon", "[PROJECT]"))
    new = redacted(plugin, prompt=({"content": f"Falcon {KEY}"},), columns={"Falcon": ["x Falcon"]})
    assert new.prompt[0]["content"] == "[PROJECT] [REDACTED:openai]"
    assert new.columns == {"[PROJECT]": ["x [PROJECT]"]}
    assert plugin.rollout_metrics(Step())["redacted/function"] == 3


@pytest.mark.parametrize("bad", [lambda value: 1 / 0, lambda value: None])
def test_a_function_that_fails_lets_nothing_through(bad, caplog):
    new = redacted(Redact(function=bad), prompt=({"content": "a secret"},), columns={"n": 1})
    assert new.prompt == ({"[REDACTED:function]": "[REDACTED:function]"},)
    assert len(caplog.records) == 1
    assert "a secret" not in caplog.text


def test_a_search_that_fails_lets_nothing_through(monkeypatch):
    def broken(*_):
        raise MemoryError

    monkeypatch.setattr(Scanner, "scan", broken)
    assert redacted(columns={"a": "a secret"}).columns == {"[REDACTED:unsearchable]": "[REDACTED:unsearchable]"}
    monkeypatch.setattr(Redact, "_redacted", broken)
    with pytest.raises(Drop):
        text("a secret")


PATHS = {
    "columns.email": {"columns": {"email": "[REDACTED:field]", "user": {"email": "b", "n": [1, 2]}}},
    "columns.user.*": {"columns": {"email": "a", "user": {"email": "[REDACTED:field]", "n": "[REDACTED:field]"}}},
    "columns.user.n.1": {"columns": {"email": "a", "user": {"email": "b", "n": [1, "[REDACTED:field]"]}}},
    "*.x": None,
    "**.email": {"columns": {"email": "[REDACTED:field]", "user": {"email": "[REDACTED:field]", "n": [1, 2]}}},
    "prompt.0.content": {"prompt": ({"role": "user", "content": "[REDACTED:field]"},)},
    "error": {"error": "[REDACTED:field]"},
    "columns.nothing.here": {},
}


@pytest.mark.parametrize("path", PATHS)
def test_values_at_a_path_are_replaced_entirely_and_no_others(path):
    values = {
        "prompt": ({"role": "user", "content": "hello"},),
        "columns": {"email": "a", "user": {"email": "b", "n": [1, 2]}},
        "error": "oh",
    }
    if PATHS[path] is None:
        with pytest.raises(SetupError):
            Redact(fields=[path])
        return
    new = redacted(Redact(fields=[path]), **values)
    for name, value in {**values, **PATHS[path]}.items():
        assert getattr(new, name) == value


def test_names_reach_into_arguments_that_are_json_text():
    arguments = json.dumps({"ssn": "123", "user": {"password": "hunter"}, "note": f"\n{KEY}", "n": 1})
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    new = redacted(
        Redact(fields=["**.ssn"]),
        completion=({"role": "assistant", "tool_calls": [call]},),
        tool_calls=(ToolCall(name="f", arguments=arguments),),
    )
    want = {"ssn": "[REDACTED:field]", "user": {"password": "[REDACTED:named]"}, "note": "\n[REDACTED:openai]", "n": 1}
    assert json.loads(new.completion[0]["tool_calls"][0]["function"]["arguments"]) == want
    assert json.loads(new.tool_calls[0].arguments) == want


def test_values_called_password_are_replaced_and_schemas_stay():
    schema = {"password": {"type": "string"}, "api_key": None}
    new = redacted(columns={"login": {"Password": "x", "api-key": "y", "apiKey": "z"}, "schema": schema, "secret": ""})
    assert set(new.columns["login"].values()) == {"[REDACTED:named]"}
    assert new.columns["schema"] is schema
    assert redacted(Redact(rules=["openai"]), columns={"password": "x"}).columns == {"password": "x"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{'password': 'hunter two', 'user': 'bob'}", "{'password': '[REDACTED:named]', 'user': 'bob'}"),
        ("done: {'n': [{'api-key': b'abc'}]}", "done: {'n': [{'api-key': b'[REDACTED:named]'}]}"),
        (str({"Secret": "it's \\ mine"}), """{'Secret': "[REDACTED:named]"}"""),
        ('{"password": "a\\"b c", "x": 1}', '{"password": "[REDACTED:named]", "x": 1}'),
        ('{"password": "cut o', '{"password": "[REDACTED:named]'),
        ('{"password": "x ' + KEY + '"}', '{"password": "[REDACTED:named]"}'),
        (json.dumps(json.dumps({"secret": 'a"b\\c\nd'})), json.dumps(json.dumps({"secret": "[REDACTED:named]"}))),
    ],
)
def test_values_called_password_are_replaced_in_text_that_shows_a_dict(before, after):
    assert text(before) == after
    assert text(after) == after
    assert text(before, Redact(rules=["aws"])) == before


def test_schemas_in_text_stay():
    schema = '{"properties": {"password": {"type": "string"}, "secret": null}, "required": ["password"]}'
    assert text(schema) == schema


@pytest.mark.parametrize("start", [b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8", b"BM", b"RIFF1234WEBP"])
def test_bytes_that_start_like_an_image_are_searched(start):
    assert redacted(columns={"b": start + b" " + KEY.encode()}).columns == {"b": start + b" [REDACTED:openai]"}


@pytest.mark.parametrize("start", ["data:image/png;base64,", "DATA:text/plain;base64,", "data: ;base64,aGVsbG8= "])
def test_text_that_starts_like_a_data_uri_is_searched(start):
    assert text(f"{start}{KEY}") == f"{start}[REDACTED:openai]"


@pytest.mark.parametrize(
    "secret", ["n0-known-form", "Quite;Long Without A Number", 'q"\\Eu0te\\Q(.*)', "two\nlines 2", "schl\u00fcssel 1"]
)
def test_values_of_environment_variables_with_secret_names_are_replaced(monkeypatch, secret):
    for name in ("TEAM_API_KEY", "team_token", "SECRET", "DB_PASSWORD"):
        monkeypatch.setenv(name, secret)
        plugin = Redact()
        plugin.on_run_start(Run(id="r", dir="."))
        for around in AROUND:
            assert text(around.format(secret), plugin) == around.format("[REDACTED:environment]")
        assert text(json.dumps({"env": secret}), plugin) == json.dumps({"env": "[REDACTED:environment]"})
        assert text(secret, Redact(rules=["openai"])) == secret
        monkeypatch.delenv(name)


def test_a_variable_that_is_set_before_the_run_starts_is_known(monkeypatch):
    plugin = Redact()
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef" * 2)
    plugin.on_run_start(Run(id="r", dir="."))
    assert text("0123456789abcdef" * 2, plugin) == "[REDACTED:environment]"


def test_the_key_inside_a_connection_string_is_replaced(monkeypatch):
    monkeypatch.setenv(
        "AZURE_STORAGE_CONNECTION_STRING", "AccountName=me;AccountKey=bm90IGEga2V5IDE=;EndpointSuffix=x"
    )
    assert text("key: bm90IGEga2V5IDE=") == "key: [REDACTED:environment]"


def test_paths_words_and_other_variables_stay(monkeypatch):
    for name, value in {
        "GOOGLE_CREDENTIALS": "/etc/keys/google.json",
        "DB_PASSWORD": "postgres",
        "ACCESS_KEY": "abc123",
        "TOKENIZERS_PARALLELISM": "not-a-secret-1",
        "KEYBOARD": "querty-12345",
        "EMPTY_TOKEN": "",
    }.items():
        monkeypatch.setenv(name, value)
        assert text(f"here is {value}") == f"here is {value}"


def test_bytes_called_password_are_replaced():
    assert redacted(columns={"password": b"hunter"}).columns == {"password": "[REDACTED:named]"}


def test_pictures_are_left_alone():
    columns = {"image": encoded(1), "blob": b"\xff\x00" * 20}
    assert Redact().on_rollout(Rollout(id="r", columns=columns)) is None


@thorough
@given(rollouts(), st.text(max_size=5))
def test_anything_survives(rollout, beside):
    new = Redact(function=lambda value: value, fields=["**.type", "columns.*.a"]).on_rollout(rollout) or rollout
    assert len(new.prompt) == len(rollout.prompt)
    assert len(new.columns) == len(rollout.columns)


@thorough
@given(rollouts(), st.sampled_from(["prompt", "completion", "columns", "extra"]))
def test_a_secret_beside_anything_is_found(rollout, field):
    from dataclasses import replace

    old = getattr(rollout, field)
    value = {"x": [f"a {KEY}"]}
    with_secret = {**old, "zz": value} if isinstance(old, dict) else (*old, value)
    new = Redact().on_rollout(replace(rollout, **{field: with_secret}))
    found = getattr(new, field)["zz"] if isinstance(old, dict) else getattr(new, field)[-1]
    assert found == {"x": ["a [REDACTED:openai]"]}


def test_every_rule_has_a_test():
    tested = {*SECRETS, "url_password", "bearer", "assigned", "named", "environment"}
    assert tested == set(NAMES) == {rule.name for rule in RULES} | {"environment"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"rules": ["opnai"]}, ["opnai", "openai"]),
        ({"rules": "openai"}, ["rules='openai'"]),
        ({"patterns": ["("]}, ["'('", "missing )"]),
        ({"patterns": ["(?<=x)y"]}, ["(?<=x)y", "no lookaround"]),
        ({"patterns": {"openai": "x", "y": 3}}, ["built-in", "not a pattern"]),
        ({"patterns": ["x*"]}, ["empty text"]),
        ({"fields": ["metadata.x", "columns", "a..b", "**"]}, ["metadata.x", "entire field", "a..b", "'**'"]),
        ({"function": 3, "keep_equal": 1}, ["function=3", "keep_equal=1"]),
        ({"salt": "x"}, ["keep_equal=True"]),
    ],
)
def test_bad_options_give_one_error_that_names_them_all(options, named):
    with pytest.raises(SetupError) as error:
        Redact(**options)
    assert all(text in str(error.value) for text in named)
