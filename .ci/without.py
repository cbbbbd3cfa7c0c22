"""Everything but the core can be removed: build the wheel without a part, install it, and run the core's tests.

    python .ci/without.py [PART ...]      in an environment with the `dev` extra; it replaces the project there

A part goes with its entry points and nothing else. Without all of them together, all quick tests of the core run;
without one, those that go through every room. Tests run from a copy, so that nothing but the wheel can be imported.
A test that is about a part says so: `@pytest.mark.needs(part="redact")`.

Nearly all tests look at what they did with `open_run`. Without `reading`, and what is built on it, those run that do
not: real trainings and a loop, whose Parquet files are read by DuckDB and PyArrow.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
READERS = [
    f"cli/{name}.py"
    for name in (
        "annotate", "chosen", "compact", "doctor", "export", "list_runs", "prune", "pull", "push", "report",
        "show", "sql", "stats", "view",
    )
]  # fmt: skip
LEARNERS = ["learn", *(f"cli/{name}.py" for name in ("diff", "prompts", "replay", "rescore", "training_data"))]
PARTS = {
    "images": ["plugins/images"],
    "redact": ["plugins/redact"],
    "checks": ["checks"],
    "alerts": ["plugins/alerts"],
    "scout": ["sinks/scout"],
    "view": ["view"],
    "web": ["web", "report.py"],
    "shapes": ["shapes"],
    "demo": ["demo"],
    "learn": LEARNERS,
    "record": ["record"],
    "remote": ["remote"],
    "trainers": ["trainers"],
    "reading": ["reading", "view", "web", "report.py", "remote", "demo", "testing", *LEARNERS, *READERS],
}
COMMANDS = {
    "view": "view",
    "web": "report",
    "shapes": "import",
    "demo": "demo",
    "learn": "(?:diff|prompts|replay|rescore)",
    "remote": "(?:push|pull|prune)",
    "reading": "(?:annotate|compact|demo|diff|doctor|export|list|prompts|prune|pull|push|replay|report|rescore|show|sql|stats|view)",
}
CORE = ["tests/content", "tests/engine", "tests/hosts", "tests/reading", "tests/store", "tests/system"]
ALONE = [
    "tests/content/test_exact_json.py",
    "tests/content/test_hashing.py",
    "tests/content/test_snapshot.py",
    "tests/content/test_trace.py",
    "tests/engine/test_run_id.py",
    "tests/store/test_recording_alone.py",
    "tests/system",
]
WITHOUT_IMAGES = [  # which the tests of loading have as an example
    "tests/content",
    "tests/hosts/test_hosts.py",
    "tests/reading/test_exporting.py",
    "tests/reading/test_sql.py",
    "tests/store/test_recording_alone.py",
]
THROUGH_EVERY_ROOM = [
    "tests/content/test_trace.py",
    "tests/engine/test_hooks.py",
    "tests/engine/test_installed_plugins.py",
    "tests/engine/test_loading.py",
    "tests/engine/test_scopes.py",
    "tests/hosts/test_hosts.py",
    "tests/reading/test_export_ends.py",
    "tests/reading/test_export_plugins.py",
    "tests/reading/test_exporting.py",
    "tests/reading/test_exports_together.py",
    "tests/reading/test_sql.py",
]
OF_THEIR_OWN = {"images": WITHOUT_IMAGES, "reading": ALONE}
NEEDED = ("rollout_plugins", "hookspecs", "tests", "examples", "README.md", "LICENSE", "pyproject.toml")


def check(parts: list[str], tests: list[str]) -> None:
    started = time.monotonic()
    print(f"\n--- without {', '.join(parts)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        project = copied(Path(folder) / "project")
        for part in parts:
            remove(part, project)
        installed(project)
        listed = subprocess.run(["rollouts", "--help"], check=True, capture_output=True, text=True).stdout
        for part in parts:
            assert not re.search(f"\n  {COMMANDS.get(part, part)} ", listed), listed
        there = " and ".join(["not slow", *(f"not needs(part='{part}')" for part in parts)])
        options = ["-q", "-n", "auto", "-m", there, "-o", "pythonpath=tests/support"]
        subprocess.run([sys.executable, "-m", "pytest", *options, *tests], cwd=project, check=True)
    print(f"--- without {', '.join(parts)}: passed in {time.monotonic() - started:.0f} s", flush=True)


def copied(project: Path) -> Path:
    project.mkdir()
    for source in (ROOT / name for name in NEEDED):
        if source.is_dir():
            skipped = shutil.ignore_patterns("__pycache__", "node_modules")
            shutil.copytree(source, project / source.name, ignore=skipped)
        else:
            shutil.copy(source, project)
    return project


def remove(part: str, project: Path) -> None:
    """The part's modules, its plugin or sink, and the command that is for it alone."""
    for path in PARTS[part]:
        gone = project / "rollout_plugins" / path
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    modules = "|".join(re.escape(path.removesuffix(".py").replace("/", ".")) for path in PARTS[part])
    entry_points = rf'^[\w-]+ = "rollout_plugins\.(?:{modules})[.:"].*\n'
    if part in COMMANDS:
        entry_points += rf'|^{COMMANDS[part]} = "rollout_plugins\.cli\..*\n'
    about = project / "pyproject.toml"
    text, removed = re.subn(entry_points, "", about.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert removed, f"pyproject.toml has no entry point of {part}"
    about.write_text(text, encoding="utf-8")


def installed(project: Path) -> None:
    """Install the wheel, and leave the tests nothing else to import."""
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    wheels = project.with_name("wheels")
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, project], check=True)
    subprocess.run([*pip, "install", "--no-deps", "--force-reinstall", *wheels.iterdir()], check=True)
    for name in ("rollout_plugins", "hookspecs"):
        shutil.rmtree(project / name)


if __name__ == "__main__":
    if not sys.argv[1:]:
        check([part for part in PARTS if part not in OF_THEIR_OWN], CORE)
    for one in sys.argv[1:] or PARTS:
        check([one], OF_THEIR_OWN.get(one, THROUGH_EVERY_ROOM))
