"""The page that is shipped is what its sources give, with the licences of what is in it; and everybody can use it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from chromium import browser, needs_chromium
from report_rig import fill, seen

import rollout_plugins.web
from rollout_plugins import open_run
from rollout_plugins.report import write_report

pytestmark = pytest.mark.slow

HERE = Path(rollout_plugins.web.__file__).parent
SOURCES, BUILT = HERE / "page", HERE / "static"
needs_node = pytest.mark.skipif(
    not (shutil.which("node") and shutil.which("npm")), reason="no node and npm on this machine"
)


UNREACHABLE = "ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ERR_SOCKET_TIMEOUT|E403"


def run(folder, *words):
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def page_folder(tmp_path_factory):
    """The sources with what they are built from, as `npm ci` installs it."""
    folder = tmp_path_factory.mktemp("built") / "page"
    shutil.copytree(SOURCES, folder, ignore=shutil.ignore_patterns("node_modules"))
    quick = ("--no-audit", "--no-fund", "--prefer-offline", "--fetch-retries=1", "--fetch-timeout=60000")
    done = run(folder, "npm", "ci", "--ignore-scripts", *quick)
    if done.returncode and (why := re.search(UNREACHABLE, done.stderr)):
        pytest.skip(f"npm cannot reach its registry: {why[0]}")
    assert done.returncode == 0, done.stderr
    return folder


@needs_node
def test_building_again_gives_the_same_bytes(page_folder):
    done = run(page_folder, "npm", "run", "build")
    assert done.returncode == 0, done.stdout + done.stderr
    for path in BUILT.iterdir():
        assert (page_folder.parent / "static" / path.name).read_bytes() == path.read_bytes(), (
            f"{path.name}: npm ci && npm run build"
        )


@needs_node
def test_the_sources_are_formatted(page_folder):
    done = run(page_folder, "npx", "prettier", "--check", "src", "build.mjs")
    assert done.returncode == 0, done.stdout + done.stderr


def test_versions_are_exact_and_nothing_names_a_registry():
    package = json.loads((SOURCES / "package.json").read_text())
    for version in {**package["dependencies"], **package["devDependencies"]}.values():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert "resolved" not in (SOURCES / "package-lock.json").read_text()


def test_licences_of_everything_bundled_are_kept():
    kept = (BUILT / "LICENSES.txt").read_text()
    for name in json.loads((SOURCES / "package.json").read_text())["dependencies"]:
        assert re.search(rf"^{name} \d", kept, re.MULTILINE)
    assert kept.count("Copyright") >= 4


def test_no_markup_is_ever_made_of_text():
    for path in (SOURCES / "src").iterdir():
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function|dangerously", path.read_text()
        ), path.name


@needs_node
@needs_chromium
def test_axe_finds_nothing_to_complain_about(page_folder, tmp_path):
    fill(tmp_path / "shop", range(1, 9))
    seen(tmp_path / "seen", count=2)
    for name in ("shop", "seen"):
        write_report(open_run(tmp_path / name), tmp_path / f"{name}.html")
    ids = {
        name: next(iter(open_run(tmp_path / name).rollouts(where="failed_calls > 0" if name == "shop" else None))).id
        for name in ("shop", "seen")
    }
    axe = (page_folder / "node_modules" / "axe-core" / "axe.min.js").read_text()
    with browser(tmp_path / "browser") as page:
        for colours in ("light", "dark"):
            page.media(colours=colours)
            for name, fragment in (
                ("shop", ""),
                ("shop", f"#rollout={ids['shop']}"),
                ("shop", f"#rollout={ids['shop']}&view=group"),
                ("shop", f"#rollout={ids['shop']}&view=time"),
                ("seen", f"#rollout={ids['seen']}"),
            ):
                page.open(tmp_path / f"{name}.html", fragment)
                page.eval("document.querySelectorAll('details').forEach(one => one.open = true)")
                page.eval(axe)
                found = page.eval(
                    "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v => [v.id, v.impact, v.nodes.map(n => n.html.slice(0, 160) + ' ' + n.failureSummary.slice(0, 200)).slice(0, 3)]))"
                )
                assert not found, (colours, name, fragment, json.dumps(found, indent=1))
