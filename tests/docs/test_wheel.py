"""What people install has everything that the repository has."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[2]


def test_the_wheel_holds_the_whole_package_and_not_what_the_reports_page_was_built_with(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    names = ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    held = {name for name in names if ".dist-info/" not in name}
    assert held == {*_files("rollout_plugins", ROOT), *_files("rollout_hookspecs", ROOT / "hookspecs")}


def _files(package: str, root: Path) -> set[str]:
    found = (path.relative_to(root) for path in (root / package).rglob("*") if path.is_file())
    left_out = ("__pycache__", "web/page/")
    return {path.as_posix() for path in found if not any(part in path.as_posix() for part in left_out)}
