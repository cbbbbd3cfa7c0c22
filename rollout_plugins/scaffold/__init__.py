"""Write a new plugin as a small project that can be installed and whose tests pass."""

from __future__ import annotations

import keyword
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from string import Template

from rollout_hookspecs import PROJECT

from rollout_plugins import __version__
from rollout_plugins.engine.installed import DEFAULT_TRACE, DISTRIBUTION
from rollout_plugins.engine.plugin_checks import HOOKS
from rollout_plugins.errors import SetupError, check_folder, suggest
from rollout_plugins.scaffold._snippets import SNIPPETS, Snippet

_TEMPLATES = Path(__file__).parent / "templates"
#: Characters of a line that formatters leave as it is.
_LINE = 119
_KIT = "hostile_rollouts run_plugins scripted_grpo"


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the project, for example rollout-judge")
    parser.add_argument(
        "--hook",
        action="append",
        metavar="HOOK",
        help=f"a hook to start with, may be given again: {', '.join(HOOKS)} (default: on_rollout)",
    )
    parser.add_argument("--check", action="store_true", help="a check, which looks for something wrong in a training")
    parser.add_argument("-o", "--out", type=Path, default=Path(), help="folder to put the project in (default: here)")


def run(options: Namespace) -> None:
    """Run `rollouts new-plugin NAME`."""
    if options.check and options.hook:
        raise SetupError("--check brings its hooks: leave --hook out")
    if options.check:
        written = new_check(options.name, options.out)
    else:
        written = new_plugin(options.name, options.hook or ("on_rollout",), options.out)
    sys.stdout.writelines(f"{path}\n" for path in written)
    sys.stderr.write(f"next: cd {written[0].parent} && pip install -e '.[test]' && pytest && rollouts plugins\n")


def new_plugin(name: str, hooks: Sequence[str] = ("on_rollout",), folder: Path | None = None) -> list[Path]:
    """Create the project `name` in `<folder>/<name>`, and return the files that were written."""
    hooks = _checked_hooks(hooks)
    target, names = _project(name, folder)
    names["hooks"] = " and ".join(filter(None, [", ".join(f"`{hook}`" for hook in hooks[:-1]), f"`{hooks[-1]}`"]))
    snippets = [SNIPPETS[hook] for hook in hooks]
    module = _filled("plugin.py", names | _plugin_parts(snippets, names))
    return _write_project(target, names, module, _filled("test_plugin.py", names | _test_parts(snippets, names)))


def new_check(name: str, folder: Path | None = None) -> list[Path]:
    """Create the project `name` with a check in it, and return the files that were written."""
    target, names = _project(name, folder)
    names |= {"hooks": "a check, which `rollouts check` runs too", "check": names["plugin"].replace("_", "-")}
    return _write_project(target, names, _filled("check.py", names), _filled("test_check.py", names))


def _project(name: str, folder: Path | None) -> tuple[Path, dict[str, str]]:
    """Return where the project will be, and what the templates call its parts."""
    project, module, plugin = _names(name)
    target = (folder or Path()) / project
    check_folder(target)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise SetupError(f"{target} exists already: choose another name, or another folder with -o")
    kind = "".join(part.title() for part in plugin.split("_"))
    version = ".".join(__version__.split(".")[:2])
    return target, {"project": project, "module": module, "plugin": plugin, "kind": kind, "version": version}


def _write_project(target: Path, names: dict[str, str], module: str, tests: str) -> list[Path]:
    files = {
        "pyproject.toml": _filled("pyproject.toml", names),
        "README.md": _filled("README.md", names),
        f"{names['module']}.py": module,
        f"tests/test_{names['module']}.py": tests,
    }
    return [_write(target / path, text) for path, text in files.items()]


def _checked_hooks(hooks: Sequence[str]) -> list[str]:
    """Return the hooks without repetitions, in the order of the contract."""
    for hook in hooks:
        if hook not in HOOKS:
            raise SetupError(f"{hook!r} is not a hook; {suggest(hook, HOOKS)}")
    return [hook for hook in HOOKS if hook in hooks]


def _names(name: str) -> tuple[str, str, str]:
    """Return the names of the distribution, its module and its plugin."""
    if not re.fullmatch(r"[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?", name):
        raise SetupError(f"{name!r} is not a project name: use letters, digits and -, for example rollout-judge")
    project = re.sub(r"[-_.]+", "-", name).lower()
    module = project.replace("-", "_")
    plugin = re.sub(r"^rollouts?_(plugins?_)?", "", module)
    if keyword.iskeyword(module) or find_spec(module) is not None:
        raise SetupError(f"{module!r} is a module of Python or of an installed package: try rollout-{project}")
    plugin_owners = {entry.name: entry.dist.name for entry in entry_points(group=PROJECT) if entry.dist}
    plugin_owners[DEFAULT_TRACE] = DISTRIBUTION
    if plugin in plugin_owners:
        raise SetupError(f"{plugin_owners[plugin]} has a plugin named {plugin!r} already: choose another name")
    return project, module, plugin if plugin[0].isalpha() else module


def _plugin_parts(snippets: Sequence[Snippet], names: dict[str, str]) -> dict[str, str]:
    ours = " ".join(["hookimpl", *(snippet.ours for snippet in snippets)])
    standard = {line for snippet in snippets for line in snippet.standard}
    return {
        "imports": "\n\n".join(filter(None, [_merged(standard), _import("rollout_plugins", ours)])),
        "before": _named("".join(snippet.before for snippet in snippets), names),
        "methods": _named("\n".join(_init_first(snippets)), names).rstrip("\n"),
    }


def _init_first(snippets: Sequence[Snippet]) -> Iterable[str]:
    """Return the methods with `__init__` first, whichever hook's snippet defines it."""
    methods = [snippet.method for snippet in snippets]
    return sorted(methods, key=lambda method: "__init__" not in method)


def _test_parts(snippets: Sequence[Snippet], names: dict[str, str]) -> dict[str, str]:
    ours = " ".join(["open_run", *(snippet.test_ours for snippet in snippets)])
    kit = " ".join([_KIT, *(snippet.test_kit for snippet in snippets)])
    imports = sorted(
        [
            "import pytest",
            f"from {names['module']} import {names['kind']}",
            _import("rollout_plugins", ours),
            _import("rollout_plugins.testing", kit),
        ],
        key=lambda line: (line.startswith("from"), line.split()[1]),
    )
    return {
        "imports": "from pathlib import Path\n\n" + "\n".join(imports),
        "tests": _named("\n\n".join(snippet.test for snippet in snippets), names).rstrip("\n"),
    }


def _import(module: str, names: str) -> str:
    ordered = sorted(set(names.split()), key=_import_order)
    line = f"from {module} import {', '.join(ordered)}"
    return line if len(line) <= _LINE else "\n".join([f"from {module} import (", *(f"    {n}," for n in ordered), ")"])


def _import_order(name: str) -> tuple[bool, str]:
    """Sort names as formatters do: classes before functions."""
    return name[0].islower(), name


def _merged(lines: Iterable[str]) -> str:
    """Return the import lines with one line for each module."""
    names: dict[str, list[str]] = {}
    for line in lines:
        _, module, _, name = line.split()
        names.setdefault(module, []).append(name)
    return "\n".join(_import(module, " ".join(names[module])) for module in sorted(names))


def _named(text: str, names: dict[str, str]) -> str:
    return text.replace("KIND", names["kind"]).replace("NAME", names["plugin"])


def _filled(template: str, names: dict[str, str]) -> str:
    return Template((_TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")).substitute(names)


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
