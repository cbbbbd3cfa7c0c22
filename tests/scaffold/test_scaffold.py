"""`rollouts new-plugin`: what it writes installs, is found, passes its tests and works in a training run, as it is."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from rollout_plugins.cli.main import main
from rollout_plugins.engine.discover import Plugins
from rollout_plugins.engine.plugin_checks import HOOKS
from rollout_plugins.errors import SetupError
from rollout_plugins.scaffold import new_plugin

ROOT = Path(__file__).parents[2]
EXAMPLES = [ROOT / "examples" / name for name in ("rollout-judge", "rollout-otel", "rollout-words")]


def checked(*command, **more):
    """Standard output of a command that has to succeed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pytest_in(python, *arguments, env, cwd):
    options = ("-q", "-c", os.devnull, "-p", "no:cacheprovider", "--import-mode=importlib", f"--rootdir={cwd}")
    return checked(python, "-m", "pytest", *options, *arguments, env=env, cwd=cwd)


@pytest.fixture(scope="module")
def projects(tmp_path_factory):
    """A project for each hook, and one with all of them."""
    folder = tmp_path_factory.mktemp("projects")
    for hook in HOOKS:
        new_plugin(f"rollout-with-{hook}", [hook], folder)
    new_plugin("rollout-everything", HOOKS, folder)
    return folder


@pytest.mark.slow
def test_generated_tests_pass_whatever_the_hooks_also_without_a_trainer(projects, tmp_path):
    folders = sorted(projects.iterdir())
    assert len(folders) == len(HOOKS) + 1
    blocked = "import sys\nsys.modules.update(dict.fromkeys(['torch', 'transformers', 'trl']))\n"
    (tmp_path / "no_trainer.py").write_text(blocked)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [tmp_path, *folders, ROOT, ROOT / "hookspecs"]))}
    told = pytest_in(sys.executable, "-p", "no_trainer", *folders, env=env, cwd=projects)
    assert f"{3 * len(HOOKS) + 1} passed, {len(folders)} skipped" in told


@pytest.mark.slow
def test_a_type_checker_has_nothing_to_say_of_generated_code(projects):
    env = os.environ | {"MYPYPATH": os.pathsep.join(map(str, [ROOT, ROOT / "hookspecs", *projects.iterdir()]))}
    options = ("--strict", "--follow-imports=silent", "--no-incremental", f"--config-file={ROOT / 'pyproject.toml'}")
    checked(sys.executable, "-m", "mypy", *options, *projects.rglob("*.py"), env=env, cwd=projects)


def test_generated_code_is_formatted_and_clean(projects):
    ruff = [sys.executable, "-m", "ruff"]
    checked(*ruff, "format", "--isolated", "--line-length=119", "--check", ".", cwd=projects)
    checked(
        *ruff, "check", "--isolated", "--line-length=119", "--select=E,F,W,I,B,UP,SIM,RUF,PT,ANN0,ANN2", cwd=projects
    )


@pytest.mark.parametrize("hook", HOOKS)
def test_a_generated_plugin_implements_its_hook_against_the_current_contract(projects, hook, monkeypatch):
    monkeypatch.syspath_prepend(projects / f"rollout-with-{hook}".replace("_", "-"))
    module = __import__(f"rollout_with_{hook}")
    kind = next(value for name, value in vars(module).items() if name == f"With{hook.title().replace('_', '')}")
    manager = Plugins([kind()], autoload=False).manager
    assert len(getattr(manager.hook, hook).get_hookimpls()) == 1


@pytest.mark.parametrize(
    ("name", "files", "entry"),
    [
        ("rollout-judge2", "rollout_judge2", 'judge2 = "rollout_judge2:Judge2"'),
        ("Rollouts.Best_Of", "rollouts_best_of", 'best_of = "rollouts_best_of:BestOf"'),
        ("rollout-plugin-x", "rollout_plugin_x", 'x = "rollout_plugin_x:X"'),
        ("tidy", "tidy", 'tidy = "tidy:Tidy"'),
        ("rollout-2x", "rollout_2x", 'rollout_2x = "rollout_2x:Rollout2X"'),
    ],
)
def test_names_of_project_module_plugin_and_class(tmp_path, name, files, entry):
    written = new_plugin(name, folder=tmp_path)
    assert {path.name for path in written} == {"pyproject.toml", "README.md", f"{files}.py", f"test_{files}.py"}
    text = written[0].read_text()
    assert entry in text
    assert f'name = "{files.replace("_", "-")}"' in text
    compile((written[0].parent / f"{files}.py").read_text(), files, "exec")
    assert f"class {entry.split(':')[1][:-1]}:" in (written[0].parent / f"{files}.py").read_text()


@pytest.mark.parametrize(
    ("name", "hooks", "told"),
    [
        ("../evil", [], "is not a project name"),
        ("", [], "is not a project name"),
        ("-x", [], "is not a project name"),
        ("json", [], "'json' is a module of Python or of an installed package: try rollout-json"),
        ("class", [], "try rollout-class"),
        ("rollout-cap", [], "rollout-plugins has a plugin named 'cap' already"),
        ("rollout-x", ["on_rolout"], "'on_rolout' is not a hook; did you mean 'on_rollout'"),
    ],
)
def test_what_cannot_work_is_refused_with_the_fix_and_writes_nothing(tmp_path, name, hooks, told):
    with pytest.raises(SetupError) as caught:
        new_plugin(name, hooks or ["on_rollout"], tmp_path)
    assert told in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_project_that_is_there_is_not_overwritten(tmp_path, capsys):
    assert main(["new-plugin", "rollout-x", "--out", str(tmp_path)]) == 0
    (tmp_path / "rollout-x" / "rollout_x.py").write_text("mine")
    assert main(["new-plugin", "rollout-x", "--out", str(tmp_path)]) == 1
    assert "exists already: choose another name" in capsys.readouterr().err
    assert (tmp_path / "rollout-x" / "rollout_x.py").read_text() == "mine"


def test_the_command_says_what_it_wrote_and_what_comes_next(tmp_path, capsys):
    main(["new-plugin", "rollout-y", "--hook", "rollout_metrics", "--hook", "on_run_end", "--out", str(tmp_path)])
    told = capsys.readouterr()
    assert [Path(line).relative_to(tmp_path).as_posix() for line in told.out.splitlines()] == [
        "rollout-y/pyproject.toml", "rollout-y/README.md", "rollout-y/rollout_y.py", "rollout-y/tests/test_rollout_y.py",
    ]  # fmt: skip
    assert "pip install -e '.[test]' && pytest && rollouts plugins" in told.err
    text = (tmp_path / "rollout-y" / "rollout_y.py").read_text()
    assert text.index("def rollout_metrics") < text.index("def on_run_end")
    assert "def on_rollout" not in text


DISCOVERED = """
from rollout_plugins import RolloutPluginCallback, open_run
from rollout_plugins.testing import scripted_grpo

def test_installed_plugins_work_in_training_unasked(tmp_path):
    trainer = scripted_grpo(tmp_path, ["42"])
    trainer.add_callback(RolloutPluginCallback(sync=True))
    trainer.train()
    assert [r.extra for r in open_run(tmp_path / "out").rollouts()] == [{"sample/turns": 1}] * 4
    assert trainer.state.log_history[0]["rollouts/sample/calls"] == 0.0
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A new virtual environment that shares this one's packages, with a generated plugin and the examples installed."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("installed")
    new_plugin("rollout-sample", ["on_rollout", "rollout_metrics"], folder)
    venv.create(folder / "env", symlinks=True)
    scheme = {"base": str(folder / "env"), "platbase": str(folder / "env")}
    packages = Path(sysconfig.get_path("purelib", "venv", scheme))
    (packages / "shared.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    python = Path(sysconfig.get_path("scripts", "venv", scheme)) / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-build-isolation")
    checked(*pip, *EXAMPLES, "-e", folder / "rollout-sample")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [ROOT, ROOT / "hookspecs"]))}
    return folder, python, env


def plugins(installed, **more):
    _, python, env = installed
    told = checked(python, "-m", "rollout_plugins.cli.main", "plugins", "--json", env=env | more)
    return {row["name"]: row for row in json.loads(told)}


@pytest.mark.slow
def test_installed_plugins_are_found(installed):
    found = plugins(installed)
    sample = found["sample"]
    assert (sample["source"], sample["version"], sample["status"]) == ("rollout-sample", "0.1.0", "active")
    assert sample["hooks"] == ["on_rollout", "rollout_metrics"]
    assert {name: found[name]["status"] for name in ("judge", "otel")} == {"judge": "active", "otel": "active"}


@pytest.mark.parametrize("by", ["sample", "rollout-sample"])
@pytest.mark.slow
def test_the_environment_disables_a_plugin_before_it_is_imported(installed, by):
    _, python, env = installed
    disabled = {"ROLLOUT_PLUGINS_DISABLE": by}
    assert plugins(installed, **disabled)["sample"]["status"] == "disabled"
    code = (
        "import sys; from rollout_plugins.engine.discover import Plugins; Plugins(); "
        "assert 'rollout_judge' in sys.modules; assert 'rollout_sample' not in sys.modules"
    )
    checked(python, "-c", code, env=env | disabled)


@pytest.mark.slow
def test_installed_projects_pass_their_tests_and_work_in_a_training_run_unasked(installed):
    folder, python, env = installed
    (folder / "test_discovered.py").write_text(DISCOVERED)
    tests = [folder / "rollout-sample" / "tests", *(example / "tests" for example in EXAMPLES)]
    told = pytest_in(python, folder / "test_discovered.py", *tests, env=env, cwd=folder)
    assert "skipped" not in told
