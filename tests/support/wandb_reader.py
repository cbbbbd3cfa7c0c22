"""Read what wandb wrote offline: the tables and the history of a run."""

import json
import struct
import time
from pathlib import Path

import wandb
from wandb.proto import wandb_internal_pb2


def folder_of(run_id):
    (folder,) = Path(wandb.setup().settings.wandb_dir).glob(f"offline-run-*-{run_id}")
    return folder


def tables(run_id):
    """Return the rows of each increment: `{("rollouts/from_step_000001", 0): [row, …]}`."""
    rows_by_increment = {}
    for path in sorted(folder_of(run_id).glob("files/media/table/**/*.table.json")):
        key, number, _ = f"{path.parent.name}/{path.name}".rsplit("_", 2)
        table = json.loads(path.read_text())
        rows_by_increment[key, int(number)] = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    return rows_by_increment


def rows(run_id):
    """Return the rows of all tables of a run."""
    return [row for increment in tables(run_id).values() for row in increment]


def records(path, block=32768):
    """Yield the complete records of wandb's own file. wandb's process may still be writing the last one.

    The file is a LevelDB log, whose blocks contain chunks of checksum, length, kind and data. wandb has no reader for
    it in Python.
    """
    data, position, content = path.read_bytes(), 7, b""
    while position + 7 <= len(data):
        if block - position % block < 7:
            position += block - position % block
            continue
        length, kind = struct.unpack("<HB", data[position + 4 : position + 7])
        if not kind or position + 7 + length > len(data):
            return
        content += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in {1, 4}:  # a complete record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(content)
            content = b""
            yield record


def history(run_id):
    """Return the rows of the run's history, as soon as wandb's own process has written the end of the run."""
    until = time.monotonic() + 120
    while True:
        run_records = list(records(folder_of(run_id) / f"run-{run_id}.wandb"))
        if any(record.HasField("exit") for record in run_records) or time.monotonic() > until:
            break
        time.sleep(0.05)
    logged = (record.history.item for record in run_records if record.history.item)
    return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items} for items in logged]
