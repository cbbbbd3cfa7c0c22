"""The documentation says what the code says: hooks, arguments, fields, and examples that run."""

import ast
import dataclasses
import inspect
import re
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import rollout_hookspecs
from rollout_hookspecs import PROJECT, _records, hooks

from rollout_plugins.engine.plugin_checks import HOOKS
from rollout_plugins.testing import hostile_rollouts, make_rollout, run_plugins

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import generate

DOCS = ROOT / "docs"
PAGES = {
    path.relative_to(DOCS).with_suffix("").as_posix(): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")
}
HOOKS_PAGE, RECORDS_PAGE, PLUGIN_PAGE = "reference/hooks", "reference/records", "how-to/plugin"
ALIASES = ("Message", "Split", "Finish", "ToolStatus", "Scope", "Severity", "Outcome")


def sections(page):
    """Text by heading."""
    return dict(re.findall(r"^#+ (.+)\n((?:(?!^#).*\n)*)", without_code(PAGES[page]), re.MULTILINE))


def without_code(text):
    return re.sub(r"```.*?```", lambda block: block.group().replace("\n#", "\n "), text, flags=re.DOTALL)


def examples(page):
    return re.findall(r"((?:<!-- test: \w+ -->\n\n?)?)```python\n(.*?)```", PAGES[page], re.DOTALL)


def signature(hook):
    return f"{hook}({', '.join(inspect.signature(getattr(hooks, hook)).parameters)})"


def classes():
    """The records of the contract, from its source."""
    tree = ast.parse(inspect.getsource(_records))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def fields(node):
    """Name, type and default of each field of a class, as written."""
    found = []
    for item in node.body:
        if isinstance(item, ast.AnnAssign):
            default = ast.unparse(item.value) if item.value else None
            shown = "required" if default is None else "`{}`" if default.startswith("field(") else f"`{default}`"
            found.append((item.target.id, ast.unparse(item.annotation), shown))
    return found


def methods(node):
    shown = (item for item in node.body if isinstance(item, ast.FunctionDef) and not item.decorator_list)
    return [item for item in shown if item.name == "__call__" or not item.name.startswith("_")]


def test_every_hook_has_a_heading_with_its_exact_arguments_and_no_other_has():
    headings = [heading for heading in sections(HOOKS_PAGE) if "(" in heading]
    assert headings == [signature(hook) for hook in HOOKS]


def anchor(heading):
    """As GitHub makes them."""
    return "#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_table_names_every_hook_and_links_to_it():
    for hook in HOOKS:
        assert f"| [`{hook}`]({anchor(signature(hook))}) |" in PAGES[HOOKS_PAGE]


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_says_when_where_with_what_and_how_it_fails(hook):
    text = sections(HOOKS_PAGE)[signature(hook)]
    for part in (
        "**When**",
        "**Thread**",
        "**Arguments**",
        "**Returns**",
        "**Order**",
        "**If it fails**",
        "```python",
    ):
        assert part in text, f"{hook} has no {part}"
    for argument in inspect.signature(getattr(hooks, hook)).parameters:
        assert f"`{argument}`" in text


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_an_example_in_its_docstring_and_a_test(hook):
    assert "Example:" in inspect.getdoc(getattr(hooks, hook))
    assert f"def test_hook_{hook}(" in (ROOT / "tests" / "engine" / "test_hooks.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["run", "run.health"])
def test_every_member_of_a_stored_run_is_documented(name):
    page = (ROOT / "docs" / "reference" / "reading.md").read_text(encoding="utf-8")
    members = [member for member in vars(generate.OBJECTS[name]) if not member.startswith("_")]
    assert [member for member in members if f"\n{name}.{member}" not in page] == []


def test_every_record_is_documented():
    assert set(classes()) <= set(sections(RECORDS_PAGE))
    public = {name for name in rollout_hookspecs.__all__ if dataclasses.is_dataclass(getattr(rollout_hookspecs, name))}
    assert public <= set(classes())


@pytest.mark.parametrize("name", [name for name, node in classes().items() if fields(node)])
def test_every_field_has_a_row_with_its_type_and_default(name):
    row = r"^\| `(\w+)` \| (?:`|<code>)(.+?)(?:`|</code>) \| (required|`[^`]*`) \| (.+) \|$"
    rows = re.findall(row, sections(RECORDS_PAGE)[name], re.MULTILINE)
    documented = [(field, kind.replace("&#124;", "|"), default) for field, kind, default, _ in rows]
    assert documented == fields(classes()[name])
    assert all(text.strip() for *_, text in rows)


@pytest.mark.parametrize("name", [name for name, node in classes().items() if methods(node)])
def test_every_method_of_a_host_is_documented(name):
    for method in methods(classes()[name]):
        arguments = [f"{a.arg}: {ast.unparse(a.annotation)}" for a in method.args.args[1:]]
        shown = "emit" if method.name == "__call__" else method.name
        assert f"`{shown}({', '.join(arguments)})`" in sections(RECORDS_PAGE)[name]


@pytest.mark.parametrize("alias", ALIASES)
def test_the_values_of_every_alias_are_listed(alias):
    text = " ".join(PAGES[RECORDS_PAGE].split())
    said = re.search(rf"`{alias}` (?:is )?(?:one of )?(.+?)[.;]", text).group(1)
    kind = getattr(_records, alias)
    values = [f"`{value}`" for value in getattr(kind, "__args__", ()) if isinstance(value, str)]
    assert said == (", ".join(values) if alias != "Message" else "`Mapping[str, Any]`")


def implementers(namespace):
    marked = f"{PROJECT}_impl"
    kinds = [kind for kind in namespace.values() if isinstance(kind, type)]
    return [kind for kind in kinds if any(hasattr(getattr(kind, hook, None), marked) for hook in HOOKS)]


@pytest.mark.parametrize("hook", HOOKS)
def test_the_example_of_every_hook_runs_and_bears_hostile_rollouts(hook, tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", sections(HOOKS_PAGE)[signature(hook)], re.DOTALL)
    namespace = {}
    exec(code, namespace)
    (kind,) = implementers(namespace)
    assert hasattr(getattr(kind, hook), f"{PROJECT}_impl")
    result = run_plugins([kind()], [make_rollout(), make_rollout(split="eval"), *hostile_rollouts()], dir=tmp_path)
    assert len(result.rollouts) == len(hostile_rollouts()) + 2


@pytest.mark.parametrize(("mark", "code"), examples(PLUGIN_PAGE))
def test_the_examples_of_the_tutorial_run(mark, code, tmp_path):
    namespace = {}
    exec(code, namespace)
    for name, value in namespace.items():
        if name.startswith("test_"):
            value(*([tmp_path] if "trl" in mark else []))
    for kind in implementers(namespace):
        run_plugins([kind()], [make_rollout()])


@pytest.mark.parametrize("page", [*PAGES, "../README"])
def test_links_lead_somewhere(page):
    path = DOCS / f"{page}.md"
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", path.read_text(encoding="utf-8")):
        file, _, fragment = target.partition("#")
        other = (path.parent / file).resolve() if file else path
        assert other.exists(), f"{page}: {target}"
        if fragment:
            headings = sections(other.relative_to(DOCS).with_suffix("").as_posix())
            assert f"#{fragment}" in map(anchor, headings), f"{page}: {target}"


def test_the_site_has_every_page():
    named = re.findall(r"^ +- .+: ([\w/-]+)\.md$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(PAGES)


# --- generated parts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if generate.PART.search(text)])
def test_generated_parts_are_what_the_code_says_now(page):
    assert generate.fill(PAGES[page]) == PAGES[page]


@pytest.mark.slow
def test_the_comparison_with_trls_table_is_what_it_prints():
    assert generate.fill(PAGES["beside"], only=("beside",)) == PAGES["beside"]


def test_every_hook_record_and_argument_has_a_generated_part():
    parts = {(name, argument) for text in PAGES.values() for _, name, argument, _ in generate.PART.findall(text)}
    assert {("signature", hook) for hook in HOOKS} <= parts
    assert {("record", name) for name, node in classes().items() if fields(node)} <= parts
    assert {("arguments", "RolloutPluginCallback"), ("arguments", "RolloutRecorder"), ("commands", "")} <= parts


def test_every_plugin_and_sink_of_ours_has_its_options_on_the_page():
    ours = [entry for entry in entry_points(group=PROJECT) if entry.value.startswith("rollout_plugins.")]
    headings = sections("reference/options")
    for entry in ours:
        assert entry.value.partition(":")[2] in headings
        assert f"| `{entry.name}` |" in PAGES["reference/options"]


def test_every_environment_variable_is_on_the_page():
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "rollout_plugins").rglob("*.py")]
    asked = {name for text in sources for name in re.findall(r'\b(?:flag|names|seconds)\("([A-Z_]+)"', text)}
    assert {"DISABLE", "STRICT", "HANG_SECONDS", "END_SECONDS"} <= asked
    for name in asked:
        assert f"| `ROLLOUT_PLUGINS_{name}` |" in PAGES["reference/options"]


def test_every_result_field_of_the_kit_is_documented():
    from rollout_plugins.testing import Result

    for field in dataclasses.fields(Result):
        assert f"| `{field.name}` |" in PAGES[PLUGIN_PAGE]
