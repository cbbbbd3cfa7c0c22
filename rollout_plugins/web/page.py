"""Write the report's file: code, style and compressed data, with a policy that forbids everything else."""

from __future__ import annotations

import base64
import gzip
import json
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from rollout_plugins import __version__
from rollout_plugins.errors import RunError, check_folder, check_replaceable
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.system.files import replace_file
from rollout_plugins.web.data import PanelsOf, Progress, PromptsOf, page_data

LIMIT = 2000
_STATIC = Path(__file__).parent / "static"
_OURS = b'<meta name="generator" content="rollout-plugins'
_HEAD = 2048


class Written(NamedTuple):
    """The result of writing a report."""

    path: Path
    rollouts: int
    matched: int
    bytes: int


def write_page(
    run: StoredRun,
    path: str | Path = "report.html",
    *,
    limit: int = LIMIT,
    panels: PanelsOf,
    prompts: PromptsOf | None = None,
    force: bool = False,
    progress: Progress = lambda *_: None,
    **filters: Any,
) -> Written:
    """Write the file; the options are those of `rollout_plugins.report.write_report`."""
    path = Path(path)
    check_folder(path)
    check_replaceable(path)
    if not force:
        _check_ours(path)
    data = page_data(run, limit=limit, panels=panels, prompts=prompts, progress=progress, **filters)
    page = html(data)
    replace_file(path, lambda target: target.write_bytes(page))
    return Written(path, len(data["rollouts"]), data["matched"], len(page))


def html(data: dict[str, Any]) -> bytes:
    """Return the complete file."""
    script, style = (_STATIC / "page.js").read_text("utf-8"), (_STATIC / "page.css").read_text("utf-8")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    title = escape(f"{data['run']['name']} · rollouts")
    return (
        f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="rollout-plugins {__version__}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript>This report shows its data with a script; allow scripts for this file to see it.</noscript>
<div id="page"></div>
<script id="data" type="application/octet-stream">{_packed(data)}</script>
<script>{script}</script>
</body>
</html>
"""
    ).encode()


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}"


def _packed(data: dict[str, Any]) -> str:
    """Return the data as JSON, gzip and base64, whose characters cannot end the HTML element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _check_ours(path: Path) -> None:
    """Refuse to replace a file that another program or a person wrote."""
    if not path.exists():
        return
    with path.open("rb") as file:
        if _OURS not in file.read(_HEAD):
            raise RunError(f"{path} exists and is not a report: name another file, or replace it with force=True")
