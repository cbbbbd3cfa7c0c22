"""The same secret in other shapes: in a terminal's colours, escaped, cut into lines, as a number, under other names."""

from __future__ import annotations

import json
import re

import pytest
from redacting import KEY, SECRETS, redacted, text
from rollout_hookspecs import Image, Rollout, ToolCall

from rollout_plugins.plugins.redact import Redact

COLOURED = {
    "a colour": "\x1b[32m{}\x1b[0m",
    "a colour after a word": "key\x1b[01;31m{}\x1b[0m",
    "grep --color": "\x1b[01;31m\x1b[K{}\x1b[m\x1b[K",
    "a reset by tput": "\x1b(B\x1b[m{}",
    "the one-byte form": "\x9b31m{}\x9b0m",
    "repr": "'\\x1b[31m{}\\x1b[0m'",
    "JSON": '"\\u001b[31m{}\\u001b[0m"',
    "JSON inside JSON": '"\\\\u001b[31m{}"',
    "a shell": "\\033[1;31m{}\\e[0m",
    "no escape character left": "[31m{}[0m",
    "a hyperlink": "\x1b]8;;https://x\x1b\\{}\x1b]8;;\x1b\\",
    "a query": "?key%3D{}",
    "a query in a query": "?key%253D{}",
    "a mail": "key=3D{}",
    "bytes": "b'\\x00{}\\x00'",
    "octal": "\\000{}",
    "bold Markdown": "__{}",
    "Markdown": "_{}",
    "a removed line of a diff": "-{}\n+{}",
}


@pytest.mark.parametrize("around", COLOURED.values(), ids=COLOURED)
@pytest.mark.parametrize("rule", [rule for rule in SECRETS if rule != "private_key"])
def test_a_key_is_found_after_whatever_a_person_does_not_take_for_part_of_it(rule, around):
    plugin = Redact(rules=[rule])
    for secret in SECRETS[rule]:
        assert text(around.format(secret, secret), plugin) == around.format(*[f"[REDACTED:{rule}]"] * 2)


@pytest.mark.parametrize("rule", [rule for rule in SECRETS if rule != "private_key"])
def test_a_key_that_markdown_puts_in_italics_is_found(rule):
    for secret in SECRETS[rule]:
        assert secret not in text(f"use _{secret}_ here", Redact(rules=[rule]))


@pytest.mark.parametrize("unseen", ["\x1b[m\x1b[K", "\\u001b[m\\u001b[K", "\u200b", "\u00ad"])
@pytest.mark.parametrize("rule", [rule for rule in SECRETS if rule != "private_key"])
def test_a_key_of_which_only_a_part_is_coloured_is_found_and_what_is_around_stays(rule, unseen):
    plugin = Redact(rules=[rule])
    for secret in SECRETS[rule]:
        broken = secret[:6] + unseen + secret[6:12] + unseen + secret[12:]
        assert (
            text(f"\u200b{unseen}key {broken} end{unseen}", plugin)
            == f"\u200b{unseen}key [REDACTED:{rule}] end{unseen}"
        )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("password=\x1b[32mhunter22\x1b[0m", "password=\x1b[32m[REDACTED:assigned]\x1b[0m"),
        ('\x1b[34;1m"password"\x1b[0m:\x1b[0;32m"hunter two"\x1b[0m', "named"),
        ("Authorization: \x1b[1mBearer\x1b[0m abcdefghijklmnopqrstuvwx", "bearer"),
        ("\x1b[4mpostgres://bob:hun\x1b[24mter2@db/x", "\x1b[4mpostgres://bob:[REDACTED:url_password]@db/x"),
        ("password%3Dhunter22", "password%3D[REDACTED:assigned]"),
    ],
)
def test_other_secrets_in_colour_are_found_too(before, after):
    new = text(before)
    assert new == after or f"[REDACTED:{after}]" in new
    assert not re.search("hunter|mnop", new)


def test_a_secret_of_the_environment_is_found_in_colour(monkeypatch):
    monkeypatch.setenv("TEAM_TOKEN", "n0-known-form")
    assert text("now n0-\x1b[1mknown\x1b[0m-form") == "now [REDACTED:environment]"


@pytest.mark.parametrize(
    "ordinary",
    [
        "\x1b[32mok\x1b[0m 3 passed", "\x1b[1msk-learn\x1b[0m and hf_hub_download", "[1] ghost_in_the_shell",
        "a_sk-test and task-sk-abcdefghijklmnopqrstuvwxyz0123", "snake_case_with_many_parts_and_1234567890_digits",
        "_emphasised_ and __bold__ text", "def _gh_token_of(self): ...", "x = a_hf_model_name_1234567890123456789012345678901",
        "-sk- is not a key", "deadbeef" * 8, "sha256:" + "0123456789abcdef" * 4, "क\u200dष 👩\u200d💻",
        "%3Dabc%20def", "iVBORw0KGgo" * 100, "AAAA_BBBB-CCCC" * 50,
    ],
)  # fmt: skip
def test_ordinary_text_with_such_signs_stays(ordinary):
    rollout = Rollout(id="r", completion=({"role": "assistant", "content": ordinary},), columns={"a": [ordinary]})
    assert Redact().on_rollout(rollout) is None


# --- names and numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["db_password", "OPENAI_API_KEY", "DB-Password", "dbPassword", "PGPASSWORD", "x-api-key", "API key", "jwt.secret"],
)
@pytest.mark.parametrize("value", ["hunter two", "x", 12345678, 123456.0])
def test_a_name_that_ends_like_a_secrets_is_one_in_a_dict_and_in_text_that_shows_it(name, value):
    columns = redacted(columns={"login": {name: value, "user": "bob"}}).columns
    assert columns["login"] == {name: "[REDACTED:named]", "user": "bob"}
    for shown in (json.dumps({name: value}), repr({name: value}), json.dumps(json.dumps({name: value}))):
        new = text(shown)
        assert str(value) not in new.replace("db", "").replace("jwt", "") or value == "x"
        assert "[REDACTED:" in new
    arguments = json.dumps({name: value})
    call = redacted(tool_calls=(ToolCall(name="f", arguments=arguments),)).tool_calls[0]
    assert json.loads(call.arguments) == {name: "[REDACTED:named]"}


@pytest.mark.parametrize("value", [True, False, 0, 8, 64, 0.5, None, float("nan"), {"type": "string"}, ["x"], "", []])
def test_flags_lengths_and_schemas_under_such_names_stay(value):
    shown = json.dumps({"password": value if isinstance(value, int) else None})
    rollout = Rollout(id="r", columns={"password": value, "db_password": value}, completion=(shown,))
    assert Redact().on_rollout(rollout) is None


@pytest.mark.parametrize("name", ["password_hint", "secretary", "passwords_seen", "tokens", "author", "keyboard"])
def test_names_that_only_begin_like_a_secrets_stay(name):
    assert (
        Redact().on_rollout(Rollout(id="r", columns={name: "a value"}, completion=(json.dumps({name: "a"}),))) is None
    )


def test_an_own_pattern_is_found_in_numbers_too():
    columns = {"ssn": 123456789, "list": [123456789, 5], "float": 123456789.0, 123456789: "key", "half": 0.123456789}
    call = ToolCall(name="f", arguments={"ssn": 123456789}, result={"ssn": 123456789}, seconds=123456789.0)
    given = {"columns": columns, "tool_calls": (call,), "time": 1763000000.0, "rewards": {"r": 123456789.0}}
    plugin = Redact(patterns={"ssn": r"\b\d{9}\b"})
    new = redacted(plugin, **given)
    token = "[REDACTED:ssn]"
    assert new.columns == {"ssn": token, "list": [token, 5], "float": token, token: "key", "half": 0.123456789}
    assert new.tool_calls == (
        ToolCall(name="f", arguments={"ssn": token}, result={"ssn": token}, seconds=123456789.0),
    )
    assert (new.time, new.rewards) == (1763000000.0, {"r": 123456789.0})
    assert plugin.on_rollout(new) is None
    assert redacted(columns=columns).columns is columns


def test_a_number_that_is_a_secret_of_the_environment_goes(monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", "8675309123")
    plugin = Redact()
    assert redacted(plugin, columns={"n": 8675309123, "m": 1}).columns == {"n": "[REDACTED:environment]", "m": 1}


def test_a_huge_number_costs_nothing():
    assert Redact(patterns=[r"\d{9}"]).on_rollout(Rollout(id="r", columns={"n": 10**5000, "x": float("inf")})) is None


# --- private keys --------------------------------------------------------------------------------------------------

BODY = [(f"{n}MIIEowIBAAKCAQEA" * 4)[:64] for n in range(1, 13)] + ["Yb3c=="]
HEADER, FOOTER = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
LINES = [HEADER, *BODY, FOOTER]
PROSE = "A PEM file holds base64 text between two markers, which tell what it is. " * 60
TOKEN = "[REDACTED:private_key]"


def test_a_mere_mention_of_a_header_erases_nothing():
    for mention in (
        f"It begins with `{HEADER}`. ",
        f"{HEADER} ... {FOOTER} ",
        f"{HEADER}\nbase64 data\n",
        f"`{FOOTER}`",
    ):
        assert text(mention + PROSE) == mention + PROSE
        assert text(PROSE + mention + PROSE) == PROSE + mention + PROSE


def test_a_key_goes_and_the_text_around_it_stays():
    key = "\n".join(LINES)
    assert text(f"{PROSE}\n{key}\n{PROSE}{HEADER} {PROSE}{key}") == f"{PROSE}\n{TOKEN}\n{PROSE}{HEADER} {PROSE}{TOKEN}"


@pytest.mark.parametrize(
    "joined",
    [
        "\n".join, "\r\n".join, " ".join, "\\n".join, "\\\\n".join, "\n    ".join, "\n> ".join, "\n+".join, repr, json.dumps,
        lambda lines: "\n".join(f"{n:6}\t{line}" for n, line in enumerate(lines, 1)),
        lambda lines: "\n".join(f'"{line}\\n"' for line in lines),
        lambda lines: json.dumps({"key": "\n".join(lines)}),
        lambda lines: json.dumps(lines, indent=2),
        lambda lines: "\x1b[32m" + "\x1b[0m\n\x1b[32m".join(lines) + "\x1b[0m",
    ],
)  # fmt: skip
@pytest.mark.parametrize("page", [slice(None), slice(5), slice(5, None), slice(0, -1), slice(-3, None)])
def test_a_key_is_found_however_its_lines_are_joined_and_on_either_page(joined, page):
    new = text(f"before {joined(LINES[page])} after")
    assert new.startswith("before ")
    assert TOKEN in new
    assert not any(line[:20] in new for line in BODY)
    assert "after" in new


def test_other_kinds_of_private_keys_go():
    attributes = f"{HEADER}\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0123456789ABCDEF\n\n" + "\n".join(LINES[1:])
    assert text(f"a {attributes} b") == f"a {TOKEN} b"
    block = "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: GnuPG v2\n\n" + "\n".join([*BODY, "=njUN"])
    assert text(f"a\n{block}\n-----END PGP PRIVATE KEY BLOCK-----\nb") == f"a\n{TOKEN}\nb"


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("page", [slice(None), slice(5), slice(5, None)])
def test_a_key_as_a_list_of_lines_goes_line_by_line(kind, page):
    lines = LINES[page]
    value = kind(["before", *lines, {"after": f"x {KEY}"}, "after all"])
    plugin = Redact()
    new = redacted(plugin, columns={"file": value}).columns["file"]
    assert new == kind(["before", *[TOKEN] * len(lines), {"after": "x [REDACTED:openai]"}, "after all"])
    assert plugin.on_rollout(Rollout(id="r", columns={"file": new})) is None
    assert redacted(Redact(rules=["openai"]), columns={"file": kind(lines)}).columns["file"] == kind(lines)


def test_a_list_of_lines_that_only_mentions_a_header_stays():
    lines = ["What is this?", HEADER, "It is the first line", "", FOOTER, "of a key."]
    assert redacted(columns={"file": lines}).columns["file"] is lines


def test_many_headers_take_linear_time():
    redacted(
        completion=(HEADER * 30_000, f"{HEADER}\n{'A' * 20}\n" * 20_000, ("B" * 20 + "\n") * 50_000 + FOOTER[:-1])
    )


# --- addresses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("postgres://bob:pa/ss@db/x", "postgres://bob:[REDACTED:url_password]@db/x"),
        ("postgres://bob:pa,ss'word@db/x", "postgres://bob:[REDACTED:url_password]@db/x"),
        ("postgres://bob@corp.com:hunter2@db/x", "postgres://bob@corp.com:[REDACTED:url_password]@db/x"),
        (r"postgres:\/\/bob:hunter2@db\/x", r"postgres:\/\/bob:[REDACTED:url_password]@db\/x"),
        (r"postgres:\\/\\/bob:hunter2@db", r"postgres:\\/\\/bob:[REDACTED:url_password]@db"),
        ('{"url": "mysql://a:p/w/1@db", "x": "y@z"}', '{"url": "mysql://a:[REDACTED:url_password]@db", "x": "y@z"}'),
    ],
)
def test_the_password_of_an_address_goes_whatever_is_in_it(before, after):
    assert text(f"see {before} there") == f"see {after} there"


@pytest.mark.parametrize(
    "address",
    [
        "http://localhost:8080/path?x=a@b", "redis://localhost:6379/0,a@b", "see http://a:b/c@d", "ssh://git@github.com:22/x",
        "git+ssh://git@github.com:org/repo.git@v1.2", "'http://h:8080','a@b'", "http://{host}:{port}/a@b", "http://$H:$P/x@y",
        "https://unpkg.com/react@18.2.0/umd/react.js", "https://en.wikipedia.org/wiki/File:Name/x", "C:\\Users:me@here",
    ],
)  # fmt: skip
def test_addresses_without_a_password_stay(address):
    assert text(address) == address


# --- fields by name ------------------------------------------------------------------------------------------------

RESULT = {
    "user": {"ssn": "123-45-6789", "name": "Bob"},
    "rows": [{"SSN": 123456789}, {"ssn": {"area": 1}}, {"ssn": None}],
}


@pytest.mark.parametrize("shown", [json.dumps, repr, lambda value: json.dumps(value, indent=4)])
def test_a_name_reaches_into_the_json_of_a_tools_result(shown):
    result = f"Result: {shown(RESULT)} ok"
    new = redacted(
        Redact(fields=["**.ssn"]),
        completion=({"role": "tool", "content": result},),
        tool_calls=(ToolCall(name="f", arguments={}, result=result),),
        images=(Image(hash="h", note="x"),),
    )
    for text_of in (new.completion[0]["content"], new.tool_calls[0].result):
        assert "123" not in text_of
        assert text_of.count("[REDACTED:field]") == (3 if shown is not repr else 2)
        assert "Bob" in text_of
    if shown is not repr:
        assert json.loads(new.tool_calls[0].result[8:-3])["user"] == {"ssn": "[REDACTED:field]", "name": "Bob"}
        assert new.tool_calls[0].result.replace('"[REDACTED:field]"', "") == re.sub(
            r'(?<="ssn": )("[^"]+"|\{[^}]+\})|(?<="SSN": )\d+', "", result
        )


def test_a_name_reaches_into_json_inside_json():
    result = json.dumps({"text": json.dumps({"ssn": "123", "n": 1})})
    new = text(result, Redact(fields=["**.ssn"]))
    assert json.loads(json.loads(new)["text"]) == {"ssn": "[REDACTED:field]", "n": 1}


def test_a_path_goes_on_inside_json_text():
    result = json.dumps({"user": {"ssn": "123"}, "n": 1})
    new = redacted(
        Redact(fields=["tool_calls.*.result.user.ssn"]), tool_calls=(ToolCall(name="f", arguments={}, result=result),)
    )
    assert json.loads(new.tool_calls[0].result) == {"user": {"ssn": "[REDACTED:field]"}, "n": 1}


def test_names_in_text_that_never_ends_take_linear_time():
    plugin = Redact(fields=["**.ssn"])
    for attack in ('"ssn": [', '"ssn": "', "'ssn': '", '"ssn": {"ssn": ', '\\"ssn\\": \\"', '"ssn": -'):
        text(attack * 20_000, plugin)
