"""Write the parts of the documentation that the code and the benchmarks know best.

    python docs/generate.py          # every part that takes no training
    python docs/generate.py --all    # these too, which takes minutes

A generated part stands between `<!-- generated: NAME ARGUMENT -->` and `<!-- /generated -->`, in the README or in any
page of docs/. NAME is a function in PARTS. The tests fail when a part is not what its function returns.
"""

import argparse
import ast
import contextlib
import inspect
import io
import os
import re
import string
import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path

import pyarrow as pa
from rollout_hookspecs import _records, hooks

from rollout_plugins import RolloutPluginCallback, RolloutRecorder, StoredRun, open_run
from rollout_plugins.checks import built_in_checks
from rollout_plugins.checks.base import NEEDS
from rollout_plugins.cli import main as cli
from rollout_plugins.hosts import HOSTS, kit
from rollout_plugins.reading.filters import RolloutFilters
from rollout_plugins.reading.health import RunHealth
from rollout_plugins.store import schema
from rollout_plugins.trainers import Trainers

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PART = re.compile(r"(<!-- generated: ([\w-]+)(?: ([^>]+?))? -->\n).*?(<!-- /generated -->)", re.DOTALL)
SLOW = ("beside",)
"""Parts that train something; the tests compare them on their own."""


# --- from the code ----------------------------------------------------------------------------------------------------

OBJECTS = {
    "RolloutPluginCallback": RolloutPluginCallback,
    "RolloutRecorder": RolloutRecorder,
    "run": StoredRun,
    "run.health": RunHealth,
    "open_run": open_run,
}
PLUGINS = {"plugins": ("Images", "Metrics", "Alerts", "Dedup", "Cap", "Redact"), "checks": ("Checks",), "sinks": ("Trackio", "Wandb", "Console", "Jsonl", "Scout"), "remote": ("Mirror", "Retain")}  # fmt: skip


def arguments(name: str) -> str:
    """A table of an object's arguments, from its signature and the `Args:` of its docstring."""
    kind = OBJECTS[name]
    said = dict(
        re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", inspect.getdoc(kind).partition("Args:\n")[2], re.MULTILINE)
    )
    rows = [
        f"| `{parameter.name}` | {default(parameter)} | {' '.join(said[parameter.name].split())} |"
        for parameter in inspect.signature(kind).parameters.values()
    ]
    return "\n".join(["| argument | default | |", "|---|---|---|", *rows])


def default(parameter: inspect.Parameter) -> str:
    return "required" if parameter.default is parameter.empty else f"`{parameter.default!r}`"


def options(folder: str) -> str:
    """The docstring of each plugin or sink, which lists its options with an example for each."""
    parts = []
    for name in PLUGINS[folder]:
        module = f"rollout_plugins.{folder}" if folder == name.lower() else f"rollout_plugins.{folder}.{name.lower()}"
        kind = getattr(import_module(module), name + "Sink" * (folder == "sinks"))
        said = [paragraph(text, kind.__name__) for text in inspect.getdoc(kind).split("\n\n")]
        parts.append("\n\n".join([f"### {kind.__name__}", *said]))
    return "\n\n".join(parts)


def paragraph(text: str, kind: str) -> str:
    """Of a docstring: options become a table, what stands in columns is kept as it is, the rest is prose."""
    if re.match(rf"{kind}\(|\w+ {{2,}}", text):
        return f"```text\n{text}\n```"
    named = re.findall(r"^(\w+): (.+(?:\n    .+)*)", text, re.MULTILINE)
    if not named:
        return text
    rows = []
    for name, said in named:
        lines = [line.strip() for line in said.splitlines()]
        such = [f"`{line}`" for line in lines if line.startswith(f"{kind}(")]
        told = " ".join(line for line in lines if not line.startswith(f"{kind}("))
        rows.append(f"| `{name}` | {told} | {'<br>'.join(such)} |")
    return "\n".join(["| option | | such as |", "|---|---|---|", *rows])


def signature(name: str) -> str:
    """A hook's arguments and what it returns, with their types."""
    call = f"{name}{inspect.signature(getattr(hooks, name))}".replace("'", "")
    return f"```text\n{wrapped(call)}\n```"


def wrapped(call: str) -> str:
    """On lines that a page has room for."""
    return textwrap.fill(call, 84, subsequent_indent="    ", break_on_hyphens=False)


def record(name: str) -> str:
    """A table of a record's fields, from its source."""
    rows = [
        f"| `{item.target.id}` | {code(ast.unparse(item.annotation))} | {initial(item.value)} | {said} |"
        for item, said in fields_of(name)
    ]
    return "\n".join(["| field | type | default | |", "|---|---|---|---|", *rows])


def fields_of(name: str) -> list[tuple[ast.AnnAssign, str]]:
    """A record's fields, with what the docstring below each says."""
    (node,) = [one for one in ast.parse(inspect.getsource(_records)).body if getattr(one, "name", None) == name]
    pairs = zip(node.body, node.body[1:], strict=False)
    return [(item, cell(after.value.value)) for item, after in pairs if isinstance(item, ast.AnnAssign)]


STORED = {
    "": {
        "turns": "How many messages of the completion are the assistant's.",
        "calls": "How many tool calls it has.",
        "failed_calls": "How many of them raised, or named no tool that there is.",
        "rewards": "Reward of each function; null means that it gave none.",
        "tool_calls": "Every call the model asked for, in order: see below.",
        "prompt": "Messages the model was given: see below.",
        "completion": "Messages the rollout added: see below.",
        "images": "Images that left the messages, in order of appearance; `path` is inside the run's folder.",
        "columns": "JSON. The rest of the dataset row; null when there is none.",
        "extra": "JSON. What reward functions gave to `log_extra`, and what else the host knew; null when nothing.",
        "marks": "JSON. Notes by plugins and the library; null when there are none.",
        "rest": "JSON. Fields that did not fit their columns exactly; nearly always null.",
    },
    "MESSAGE": {
        "role": "`user`, `assistant`, `tool`, …",
        "content": "Its text; of several parts, what a person can read of them.",
        "name": "Of a tool's answer: the tool.",
        "reasoning": "What `reasoning_content` says.",
        "tool_calls": "Calls in the message, with arguments as JSON.",
        "rest": "JSON. Whatever the other fields do not say exactly; the message is the two together.",
    },
    "TOOL_CALL": {
        "arguments": "JSON. Arguments with their types, as the model wrote them.",
        "result": "What the model was shown; null where it is the content of the message `completion[reply]`.",
        "rest": "JSON. Fields that did not fit exactly; nearly always null.",
    },
}
"""What columns hold that are not the field of a record as it is."""


def columns(name: str = "") -> str:
    """A table of the columns in a run's files; what a record says of a field of the same name holds for it."""
    fields = schema.SCHEMA if not name else getattr(schema, name)
    said = {item.target.id: text for item, text in fields_of("ToolCall" if name else "Rollout")} | STORED[name]
    rows = [f"| `{field.name}` | {code(sql_type(field.type))} | {said[field.name]} |" for field in fields]
    return "\n".join(["| column | type | |", "|---|---|---|", *rows])


def sql_type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list<{sql_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(field.name for field in kind)}>"
    return str(kind).replace("large_", "").replace("double", "float64")


def initial(value: ast.expr | None) -> str:
    written = ast.unparse(value) if value else ""
    return "required" if not written else "`{}`" if written.startswith("field(") else f"`{written}`"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "&#124;")


def code(text: str) -> str:
    """Code in a table's cell. GitHub and Python-Markdown disagree on a bar between backticks."""
    return f"<code>{cell(text)}</code>" if "|" in text else f"`{text}`"


def methods(argument: str) -> str:
    """Describe some methods and properties: `methods run.rollouts run.health.drops` names them as a caller does."""
    parts = []
    for path in argument.split():
        owner, _, name = path.rpartition(".")
        member = vars(OBJECTS[owner])[name]
        function = member.fget if isinstance(member, property) else member
        call = path if isinstance(member, property) else f"{path}({taken(function)})"
        parts.append(f"### {name}\n\n```text\n{wrapped(call)}\n```\n\n{inspect.getdoc(function)}")
    return "\n\n".join(parts)


def filters() -> str:
    """A table of the filters of `run.rollouts`, from their source."""
    (node,) = ast.parse(inspect.getsource(RolloutFilters)).body
    pairs = zip(node.body, node.body[1:], strict=False)
    rows = [
        f"| `{item.target.id}` | {code(ast.unparse(item.annotation).removesuffix(' | None'))} | {cell(after.value.value)} |"
        for item, after in pairs
        if isinstance(item, ast.AnnAssign)
    ]
    return "\n".join(["| filter | type | |", "|---|---|---|", *rows])


def taken(function: object) -> str:
    return ", ".join(
        f"{'*' * (parameter.kind - 2)}{parameter.name}" if parameter.kind == parameter.VAR_KEYWORD
        else parameter.name if parameter.default is parameter.empty
        else f"{parameter.name}={parameter.default!r}"
        for parameter in list(inspect.signature(function).parameters.values())[1:]
    )  # fmt: skip


def commands() -> str:
    """Every command with its arguments and options, asked of the command line itself."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        cli.main(["--help"])
    names = re.findall(r"^  ([a-z][\w-]*) ", printed.getvalue(), re.MULTILINE)
    return "\n\n".join(command(parser_of(name)) for name in names)


class _Configured(Exception):  # noqa: N818 - not an error
    """Carries a command's parser out of `main`, before it parses anything."""


def parser_of(name: str) -> argparse.ArgumentParser:
    def stop(parser: argparse.ArgumentParser, _: object) -> None:
        raise _Configured(parser)

    original, cli.Parser.read = cli.Parser.read, stop
    try:
        cli.main([name])
    except _Configured as seen:
        return seen.args[0]
    finally:
        cli.Parser.read = original
    raise SystemExit(f"rollouts {name} has no parser")


def command(parser: argparse.ArgumentParser) -> str:
    (_, positional), *others = map(group_of, parser._action_groups)  # noqa: SLF001 - argparse has no public way
    usage = " ".join([parser.prog, "[OPTIONS]", *(placed(action) for action in positional)])
    parts = [
        f"## {parser.prog}",
        f"{parser.description[0].upper()}{parser.description[1:]}.",
        f"```text\n{usage}\n```",
    ]
    for title, actions in [("arguments", positional), *others]:
        if actions:
            rows = [f"| {code(written(action))} | {explained(parser, action)} |" for action in actions]
            parts.append("\n".join([f"| {title} | |", "|---|---|", *rows]))
    return "\n\n".join([*parts, *filter(None, [parser.epilog])])


def group_of(group: argparse._ArgumentGroup) -> tuple[str, list[argparse.Action]]:
    return group.title, [action for action in group._group_actions if action.dest != "help"]  # noqa: SLF001


def placed(action: argparse.Action) -> str:
    return {"?": "[{}]", "+": "{} [{} ...]"}.get(action.nargs, "{}").replace("{}", metavar(action))


def written(action: argparse.Action) -> str:
    takes = "" if action.nargs == 0 else f" {metavar(action)}"
    return ", ".join(action.option_strings) + takes if action.option_strings else metavar(action)


def metavar(action: argparse.Action) -> str:
    if action.choices and not action.metavar:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return str(action.metavar or (action.dest.upper() if action.option_strings else action.dest))


def explained(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = argparse.HelpFormatter(parser.prog)
    text = formatter._expand_help(action) if action.help else ""  # noqa: SLF001 - fills in %(default)s
    return re.sub(r"--[a-z-]+", r"`\g<0>`", cell(text))


HEAD = ["trainer", "messages", "rewards", "advantage", "tools", "images", "groups", "eval", "log-probs", "version"]


def trainers() -> str:
    """What each host says it records, and notes on some; a test trains with each of them and holds it to that."""
    supports = [support for host in (*HOSTS, *Trainers().register_hosts()) for support in host.supports]
    supports.sort(key=lambda support: not support.is_of_trl)
    table = [HEAD, ["---"] * len(HEAD), *map(supported, supports)]
    notes = [f"- {named(support)}: {support.note}." for support in supports if support.note]
    return "\n".join([*(f"| {' | '.join(cells)} |" for cells in table), "", *notes])


def named(support: object) -> str:
    return f"`{support.trainer.removesuffix('Trainer')}`"


def supported(support: object) -> list[str]:
    flags = (getattr(support, name) for name in ("advantage", "tools", "images", "groups", "evaluation"))
    newest = re.search(r"^trl==(\d+\.\d+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)[1]
    trl = f"TRL {newest}" if support.since == newest else f"TRL {support.since} to {support.until or newest}"
    return [
        named(support),
        support.messages,
        support.rewards.replace("none", ""),
        *("✓" if flag else "" for flag in flags),
        support.logprobs,
        (trl if support.is_of_trl else support.since).replace(" ", "&nbsp;"),
    ]


def host_kit() -> str:
    """What `rollout_plugins.hosts.kit` offers, and what an observer has for its subclasses."""
    named = [(name, getattr(kit, name)) for name in kit.__all__ if name != "VERSION"]
    inherited = [(f"Observer.{name}", getattr(kit.Observer, name)) for name in OBSERVER]
    rows = [f"| `{name}` | {cell(inspect.getdoc(one).split(chr(10) * 2)[0])} |" for name, one in named + inherited]
    return "\n".join([f"Version {kit.VERSION} of the kit:", "", "| name | |", "|---|---|", *rows])


OBSERVER = (
    "watch",
    "store_rows",
    "run_rewards",
    "tool_loop",
    "guarded",
    "begin",
    "submit",
    "count_unobserved",
    "is_training",
)


def source(path: str) -> str:
    """A file of the repository, whole."""
    return f"```python\n{(ROOT / path).read_text(encoding='utf-8').rstrip()}\n```"


# --- from what was measured -------------------------------------------------------------------------------------------


def results() -> str:
    return (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")


def tables(kind: str) -> str:
    return re.search(rf"<!-- {kind} -->\n(.*?)\n<!-- /{kind} -->", results(), re.DOTALL)[1]


def benchmarks(kind: str) -> str:
    """All tables of one benchmark, as they were printed."""
    whole = re.sub(r"(?<=\d) (?=(?:us|ms|s|B|kB|MB|GB)\b)", "&nbsp;", tables(kind))
    return re.sub(r"^\*\*(.+)\*\*$", r"### \1", whole, flags=re.MULTILINE)


def numbers() -> str:
    """Three figures for the front page, each with the goal it meets or misses."""
    ours, theirs = (row("capture", "Agents", name)["training thread"] for name in ("rollout-plugins", "TRL table"))
    goal = next(one for one in table("capture", "Goals") if one["name"] == "agents")
    share = f"{float(goal['measured']):.0%}"
    ratios = {name: row("train", "40 steps", name) for name in ("GRPO", "RLOO")}
    said = " and ".join(f"{float(one['steps/s ratio']):.1%} ({name})" for name, one in ratios.items())
    longest = max(1000 / float(one["steps/s without"]) for one in ratios.values())
    asked = row("read", "1,000,000", "filter and sort, first 10")
    figures = [
        (
            f"**{ours}** of the training thread to hand over 512 rollouts of an agent, 9.2 MB of text. TRL's completions "
            f"table takes {theirs}. Goal: {percent(goal['wanted'])} of that; {verdict(goal)} with {share}."
        ),
        (
            f"**{said}** of the steps per second of a run without the callback, on a model so tiny that a step takes "
            f"{longest:.0f} ms at most. Goal: {percent(ratios['GRPO']['wanted'])}; {verdict(*ratios.values())}. "
            "The losses are identical."
        ),
        (
            f"**{asked['first']}** to open a run of a million rollouts, filter and sort it, and get the first ten. Reading "
            f"the same rollouts as JSON lines takes {asked['JSONL read through']}."
        ),
    ]
    return "\n".join(textwrap.fill(line, 119, initial_indent="- ", subsequent_indent="  ") for line in figures)


def goals() -> str:
    """The tables that hold a goal against what was measured."""
    shown = (
        ("capture", "Goals"), ("lock", "Goals: 256"), ("train", "10000 steps"), ("train", "40 steps"),
        ("checks", "Goals: faults"), ("checks", "Goals: false alarms"),
    )  # fmt: skip
    return "\n\n".join(found(kind, title)[0].strip() for kind, title in shown)


def percent(wanted: str) -> str:
    sign, number = wanted.split()
    return f"{'at most' if sign == '<=' else 'at least'} {float(number):.0%}"


def verdict(*rows: dict[str, str]) -> str:
    return "**missed**" if any("MISSED" in one.values() for one in rows) else "met"


def row(kind: str, title: str, name: str) -> dict[str, str]:
    return next(one for one in table(kind, title) if one["name"] == name)


def table(kind: str, title: str) -> list[dict[str, str]]:
    """The rows of one table of the results, by the column's heading; the first column is the row's name."""
    lines = found(kind, title)[1].splitlines()
    (_, *head), _, *rows = [[one.strip() for one in line.strip("|").split("|")] for line in lines]
    return [dict(zip(["name", *head], one, strict=True)) for one in rows]


def found(kind: str, title: str) -> re.Match[str]:
    """A table of the results with its heading; the first group is the table alone."""
    return re.search(rf"^\*\*{title}.*\n\n((?:\|.*\n?)+)", tables(kind), re.MULTILINE)


def beside() -> str:
    """What the comparison with TRL's own table prints."""
    command = [sys.executable, str(ROOT / "examples" / "beside_trl.py")]
    env = {name: value for name, value in os.environ.items() if name != "WANDB_MODE"}  # wandb would print it
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    head, *rows = [[cell(line[:34]), cell(line[34:86]), cell(line[86:])] for line in printed.splitlines()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * 3, *rows])


# --- into the pages ---------------------------------------------------------------------------------------------------


def check_table() -> str:
    """The built-in checks: what each looks for, and what it needs."""
    rows = [
        f"| [`{kind.name}`](#{kind.name}) | {summary_of(kind)} | {', '.join(NEEDS[need].removeprefix('needs ') for need in kind.needs)} |"
        for kind in built_in_checks()
    ]
    return "\n".join(["| check | finds | needs |", "|---|---|---|", *rows])


def summary_of(kind: type) -> str:
    return " ".join(inspect.getdoc(kind).split("\n\n")[0].split())


def check_texts() -> str:
    """Of each built-in check: its docstring, and its advice."""
    parts = []
    for kind in built_in_checks():
        parts += [f"### {kind.name}", inspect.getdoc(kind)]
        if kind.advice:
            parts.append(f"*What to do:* {kind.advice}")
    return "\n\n".join(parts)


def check_template() -> str:
    """The check that `rollouts new-plugin --check` writes."""
    text = (ROOT / "rollout_plugins/scaffold/templates/check.py.txt").read_text()
    words = {"kind": "Brevity", "check": "brevity"}
    return f"```python\n{string.Template(text).substitute(words).rstrip()}\n```"


PARTS = {
    part.__name__: part
    for part in (
        arguments,
        check_table,
        check_template,
        check_texts,
        beside,
        benchmarks,
        columns,
        commands,
        filters,
        goals,
        host_kit,
        methods,
        numbers,
        options,
        record,
        signature,
        source,
        trainers,
    )
}


def fill(text: str, *, only: tuple[str, ...] | None = None) -> str:
    """The page with its generated parts renewed: all of them but the slow ones, or only those."""

    def renewed(found: re.Match[str]) -> str:
        start, name, argument, end = found.groups()
        if name not in PARTS:
            raise SystemExit(f"no generated part is named {name!r}; the parts are {', '.join(PARTS)}")
        if name in SLOW if only is None else name not in only:
            return found[0]
        return f"{start}\n{PARTS[name](*filter(None, [argument]))}\n\n{end}"

    return PART.sub(renewed, text)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the generated parts of the documentation.")
    parser.add_argument("--all", action="store_true", help=f"also the parts that train something: {', '.join(SLOW)}")
    names = tuple(PARTS) if parser.parse_args().all else None
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(fill(text, only=names), encoding="utf-8")


if __name__ == "__main__":
    main()
