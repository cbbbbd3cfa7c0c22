"""Store findings as annotations of the rollouts that show them, in `annotations/findings/`.

A file has a column for each check, with the finding's text in the rows of its example rollouts. The findings
themselves, even those without examples, are in the metadata of the file's schema, so that no row has to be read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from rollout_hookspecs import Finding

from rollout_plugins.content.exact_json import replace_surrogates
from rollout_plugins.store.annotations import write_annotations
from rollout_plugins.store.schema import TEXT

PRODUCER = "findings"
METADATA = b"rollout_plugins.findings"
#: The most examples of one finding, so that a check that names thousands of rollouts still gets a small file.
MAX_EXAMPLES = 100
#: Columns of every file of annotations, and those that DuckDB adds.
_TAKEN = frozenset({"id", "filename", "file_row_number"})
_FIELDS = tuple(field.name for field in fields(Finding))


def write_findings(folder: Path, findings: Sequence[Finding]) -> Path:
    """Write new findings into a run's folder."""
    texts: dict[str, dict[str, str]] = {}
    for finding in findings:
        for rollout_id in finding.rollouts[:MAX_EXAMPLES]:
            texts.setdefault(rollout_id, {}).setdefault(column_name(finding.check), finding.text)
    names = dict.fromkeys(column_name(finding.check) for finding in findings)
    columns = {name: pa.array([_cleaned(row.get(name)) for row in texts.values()], TEXT) for name in names}
    table = pa.table({"id": pa.array(map(replace_surrogates, texts), TEXT), **columns})
    return write_annotations(folder, PRODUCER, table, {METADATA: orjson.dumps([to_json(f) for f in findings])})


def column_name(check: str) -> str:
    """Return the column that marks the rollouts of a check: a name that is safe in SQL, and free in its files."""
    name = re.sub(r"[^a-z0-9_-]+", "-", check.lower())[:60].strip("-") or "check"
    return f"check-{name}" if name in _TAKEN else name


def _cleaned(text: str | None) -> str | None:
    """Return the text without characters that UTF-8 cannot encode."""
    return None if text is None else replace_surrogates(text)


def to_json(finding: Finding) -> dict[str, Any]:
    """Return a finding as plain JSON values."""
    values = asdict(finding)
    for name in ("check", "title", "text", "advice"):
        values[name] = replace_surrogates(str(values[name]))
    values["steps"] = [int(step) for step in finding.steps]
    values["rollouts"] = [replace_surrogates(str(rollout_id)) for rollout_id in finding.rollouts[:MAX_EXAMPLES]]
    return values


def findings_of(metadata: Mapping[bytes, bytes] | None) -> list[Finding]:
    """Return the findings in the metadata of an annotation file, without fields that only later versions know."""
    rows = orjson.loads((metadata or {}).get(METADATA, b"[]"))
    return [Finding(**{name: row[name] for name in _FIELDS if name in row}) for row in rows]


def read_findings(folder: Path) -> list[Finding]:
    """Return the findings in a local run's folder, oldest first. Unreadable files are skipped."""
    findings: list[Finding] = []
    for path in sorted((folder / "annotations" / PRODUCER).glob("*.parquet")):
        with suppress(Exception):
            findings += findings_of(pq.read_schema(path).metadata)
    return findings
