"""What keeping one generation costs, beside what people would otherwise use and beside what is possible at all.

    python -m benchmarks.capture [--full]

Each way runs in a process of its own, forked from one that holds the batch; figures are medians over several calls.
`training thread` is how long the trainer waits (time in which the machine ran something else instead is taken off),
`thread CPU` what it computes meanwhile, `total CPU` everything until the last byte is on disk (threads, sealing to
Parquet, wandb's own process), `durable` the wall time until the files hold the generation and were synced, `peak` how
far resident memory rises in the first call. What the trainer does without any recording is measured and taken off.

For TRL it is the trainer's own `log()` with `log_completions=True`, less the same with False. For us it is the
trainer's `_generate_and_score_completions` with the callback, less the same without it; the generation is given, all
else is real: the wrappers, the tools, the reward functions, the queue, the thread behind it, the files.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

SCRATCH = Path(tempfile.mkdtemp(prefix="capture-"))
os.environ.update(TRACKIO_DIR=str(SCRATCH / "trackio"), WANDB_DIR=str(SCRATCH), WANDB_SILENT="true")
os.environ.update(WANDB_MODE="offline")
warnings.filterwarnings("ignore")

from benchmarks import batches, replay
from benchmarks.batches import Batch
from benchmarks.measure import (
    Clock,
    Peak,
    flush,
    folder_bytes,
    goal,
    main,
    median,
    seconds,
    show,
    size,
    table,
)

Names = tuple[str, ...]
OURS, ALONE, OURS_SINKS = "rollout-plugins", "rollout-plugins, no plugins", "rollout-plugins, trackio, wandb"
TABLE, CONSOLE, TRL_ALL = "TRL table", "TRL table, console", "TRL table, console, trackio, wandb"
COPY, ENCODE, PARQUET = "limit: container copy", "limit: orjson", "limit: Arrow to zstd"
WORK = ("training thread", "thread CPU", "total CPU", "durable", "disk", "peak")


class Probe:
    """Marks the moments of one call that the figures are made of."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}
        self.less = dict.fromkeys(("training thread", "thread CPU", "total CPU"), 0.0)

    def start(self) -> None:
        gc.collect(1)
        self._collections = _full_collections()
        self._clock = Clock()

    def returned(self) -> None:
        wall, thread = self._clock.undisturbed, self._clock.thread
        collections = _full_collections() - self._collections
        self.figures |= {"training thread": wall, "thread CPU": thread, "collections": collections}

    def durable(self, folder: Path) -> None:
        flush(folder)
        self.figures["durable"] = self._clock.wall

    def done(self, folder: Path, before: int = 0) -> None:
        self.figures["total CPU"] = self._clock.cpu
        self.figures["disk"] = folder_bytes(folder) - before
        for name, value in self.less.items():
            self.figures[name] = max(0.0, self.figures[name] - value)

    def without(self, action: Callable[[], object]) -> None:
        """What the trainer's own work costs, to be taken off."""
        rows = []
        for _ in range(5):
            gc.collect(1)
            clock = Clock()
            action()
            rows.append((clock.undisturbed, clock.thread, clock.cpu))
        walls, threads, cpus = (median(column) for column in zip(*rows, strict=True))
        self.less = {"training thread": walls, "thread CPU": threads, "total CPU": cpus}


def _full_collections() -> int:
    """How often the garbage collector has looked at everything."""
    return int(gc.get_stats()[2]["collections"])


# --- ways ---------------------------------------------------------------------------------------------------------


def ours(trainer: Any, batch: Batch, folder: Path, probe: Probe, *, reports: Names = (), **options: Any) -> None:
    from rollout_plugins import RolloutPluginCallback

    generate = partial(trainer._generate_and_score_completions, batch.inputs)
    probe.without(generate)
    trainer.args.report_to = list(reports)
    ended = _start_reporters(reports)
    before = folder_bytes(SCRATCH) - folder_bytes(folder)
    callback = RolloutPluginCallback(dir=folder, trainer=trainer, **options)
    trainer.add_callback(callback)
    trainer.begin()
    (session,) = callback._sessions.values()
    pipeline = session.pipeline
    pipeline.drain(60)
    probe.start()
    trainer._generate_and_score_completions(batch.inputs)
    probe.returned()
    pipeline.request_sync()
    pipeline.drain(600, sinks=False)
    probe.durable(folder)
    pipeline.drain(600)
    trainer.end()
    ended()
    probe.done(SCRATCH, before)
    trainer.remove_callback(callback)
    trainer.args.report_to = []


def trl(
    trainer: Any, batch: Batch, folder: Path, probe: Probe, *, printed: int | None = 0, reports: Names = ()
) -> None:
    (folder / "completions").mkdir(parents=True)
    trainer.args.output_dir = str(folder)
    trainer.num_completions_to_print = printed
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        trainer.log_completions = False
        probe.without(lambda: trainer.log({}))
        trainer.args.report_to = list(reports)
        ended = _start_reporters(reports)
        before = folder_bytes(SCRATCH)
        trainer.log_completions = True
        try:
            probe.start()
            trainer.log({})
            probe.returned()
        finally:
            trainer.log_completions, trainer.args.report_to = False, []
        ended()
        probe.durable(folder)
    probe.done(SCRATCH, before)


def _start_reporters(names: Names) -> Callable[[], None]:
    if "trackio" in names:
        import trackio

        trackio.init(project=f"p{os.getpid()}", auto_log_gpu=False)
    if "wandb" in names:
        import wandb

        wandb.init(project="p", mode="offline", dir=SCRATCH)

    def end() -> None:
        if "trackio" in names:
            trackio.finish()
        if "wandb" in names:
            wandb.finish()

    return end


def verl(trainer: Any, batch: Batch, folder: Path, probe: Probe) -> None:
    """As verl's `_dump_generations`: flat texts, one JSON line each. Decoding them from tokens is not counted."""
    folder.mkdir()
    asked, said = ([_flat(messages) for messages in rows] for rows in (batch.prompts, batch.completions))
    probe.start()
    columns: dict[str, list[Any]] = {
        "input": asked,
        "output": said,
        "gts": [row["answer"] for row in batch.inputs],
        "score": [sum(row) for row in batch.rewards],
        "step": [1] * len(asked),
    }
    lines = [json.dumps({k: v[i] for k, v in columns.items()}, ensure_ascii=False) for i in range(len(asked))]
    (folder / "1.jsonl").write_text("\n".join(lines) + "\n")
    probe.returned()
    probe.durable(folder)
    probe.done(folder)


def _flat(messages: list[dict[str, Any]]) -> str:
    calls = [json.dumps(m["tool_calls"]) if "tool_calls" in m else "" for m in messages]
    return "".join(f"<|{m['role']}|>\n{m['content']}{c}<|end|>\n" for m, c in zip(messages, calls, strict=True))


def trackio_direct(trainer: Any, batch: Batch, folder: Path, probe: Probe) -> None:
    import trackio

    ended = _start_reporters(("trackio",))
    before = folder_bytes(SCRATCH)
    probe.start()
    traces = []
    for i, (prompt, completion) in enumerate(zip(batch.prompts, batch.completions, strict=True)):
        facts = {"reward": sum(batch.rewards[i]), "advantage": batch.advantages[i]}
        messages = [{**m, "content": _shown(m["content"], trackio.Image)} for m in [*prompt, *completion]]
        traces.append(trackio.Trace(messages, metadata=facts))
    trackio.log({"rollouts": traces}, step=1)
    probe.returned()
    ended()
    probe.durable(SCRATCH / "trackio")
    probe.done(SCRATCH, before)


def _shown(content: Any, image: Callable[[Any], Any]) -> Any:
    return content if isinstance(content, str) else [image(b["image"]) if "image" in b else b for b in content]


def wandb_direct(trainer: Any, batch: Batch, folder: Path, probe: Probe) -> None:
    import wandb

    ended = _start_reporters(("wandb",))
    before = folder_bytes(SCRATCH)
    probe.start()
    columns = ["step", "prompt", "completion", "correct", "brief", "advantage", *(["image"] if batch.images else [])]
    rows = []
    for i, completion in enumerate(batch.completions):
        texts = [json.dumps(messages, default=str) for messages in (batch.prompts[i], completion)]
        pictures = [wandb.Image(batch.images[i][0])] if batch.images else []
        rows.append([1, *texts, *batch.rewards[i], batch.advantages[i], *pictures])
    wandb.log({"rollouts": wandb.Table(columns=columns, data=rows)})
    probe.returned()
    ended()
    probe.durable(SCRATCH / "wandb")
    probe.done(SCRATCH, before)


def copy_limit(trainer: Any, batch: Batch, folder: Path, probe: Probe) -> None:
    """New dicts and lists, shared texts: the least that later changes do not show in."""
    folder.mkdir()
    probe.start()
    kept = [_copied(batch.prompts), _copied(batch.completions), _copied(batch.inputs)]
    probe.returned()
    probe.durable(folder)
    probe.done(folder)
    del kept


def _copied(value: Any) -> Any:
    if type(value) is list:
        return [_copied(item) for item in value]
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return value


def orjson_limit(trainer: Any, batch: Batch, folder: Path, probe: Probe) -> None:
    """All of it as JSON once, in memory."""
    import orjson

    folder.mkdir()
    rows = _rows(batch)
    probe.start()
    text = orjson.dumps(rows, default=str)
    probe.returned()
    probe.durable(folder)
    probe.done(folder)
    probe.figures["disk"] = len(text)


def zstd_limit(trainer: Any, batch: Batch, folder: Path, probe: Probe) -> None:
    """A table that is there already, written."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    ready = pa.Table.from_pylist(_rows(batch))
    probe.start()
    pq.write_table(ready, folder / "all.parquet", compression="zstd", compression_level=1)
    probe.returned()
    probe.durable(folder)
    probe.done(folder)


def _rows(batch: Batch) -> list[dict[str, Any]]:
    from trl.trainer.utils import strip_images_from_messages

    return [
        {
            "prompt": strip_images_from_messages(prompt),
            "completion": batch.completions[i],
            "answer": batch.inputs[i]["answer"],
            "difficulty": batch.inputs[i]["difficulty"],
            "correct": batch.rewards[i][0],
            "brief": batch.rewards[i][1],
            "advantage": batch.advantages[i],
        }
        for i, prompt in enumerate(batch.prompts)
    ]


BOTH = ("trackio", "wandb")
WAYS: dict[str, tuple[Callable[..., None], int]] = {
    OURS: (ours, 5),
    ALONE: (partial(ours, autoload=False), 5),
    OURS_SINKS: (partial(ours, reports=BOTH), 2),
    TABLE: (trl, 5),
    CONSOLE: (partial(trl, printed=None), 1),
    TRL_ALL: (partial(trl, printed=None, reports=BOTH), 1),
    "verl-style JSONL": (verl, 5),
    "trackio, called directly": (trackio_direct, 2),
    "wandb, called directly": (wandb_direct, 2),
    COPY: (copy_limit, 5),
    ENCODE: (orjson_limit, 5),
    PARQUET: (zstd_limit, 5),
}
FAST = (OURS, ALONE, TABLE, COPY, ENCODE, PARQUET)


# --- running them -------------------------------------------------------------------------------------------------


def measured(name: str, trainer: Any, batch: Batch) -> dict[str, Any]:
    """The figures of one way, from a process of its own; {"failed": why} when it can't do this batch."""
    return apart(lambda: _figures(name, trainer, batch))


def apart(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What it gives in a process of its own, or why it failed."""
    ours_end, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_child, args=(measure, theirs))
    child.start()
    theirs.close()
    try:
        return dict(ours_end.recv())
    except EOFError:
        return {"failed": f"ended with {child.exitcode}"}
    finally:
        child.join()


def _child(measure: Callable[[], dict[str, Any]], out: Any) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # trackio greets
    try:
        out.send(measure())
    except Exception as error:
        if os.environ.get("TRACE"):
            traceback.print_exc()
        out.send({"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"})
    out.close()
    os._exit(0)


def _figures(name: str, trainer: Any, batch: Batch) -> dict[str, Any]:
    way, times = WAYS[name]
    gc.collect()  # the fork's pages become this process's own
    rows: list[dict[str, float]] = []
    for number in range(times + 1):
        folder, probe = SCRATCH / f"{os.getpid()}-{number}", Probe()
        _without_recording(trainer, batch)
        peak = Peak()
        way(trainer, batch, folder, probe)
        rows.append({**probe.figures, "peak": peak.bytes})
    found: dict[str, Any] = {key: median(row[key] for row in rows[1:]) for key in rows[0]}
    found["peak"] = rows[0]["peak"]  # later calls find memory that the first one left
    found["images"] = len(list(folder.glob("*/media/*")))
    return found


def _without_recording(trainer: Any, batch: Batch) -> None:
    """What the trainer does anyway: the memory of libraries that this takes is not the recording's."""
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        trainer._generate_and_score_completions(batch.inputs)
        trainer.log({})


def cells(found: dict[str, Any]) -> list[str]:
    if "failed" in found:
        return [f"could not: {found['failed']}", *["-"] * (len(WORK) - 1)]
    return [(size if key in {"disk", "peak"} else seconds)(found[key]) for key in WORK]


def compare(trainer: Any, title: str, names: Names, **shape: Any) -> dict[str, dict[str, Any]]:
    batch = batches.make(**shape)
    replay.load(trainer, batch)
    found = {name: measured(name, trainer, batch) for name in names}
    text = f"{shape['rollouts']} rollouts of {shape['turns']} turns, {size(shape['length'])} a message"
    rows = [[name, *cells(figures)] for name, figures in found.items()]
    show(table(f"{title}: {text}, {size(batch.text_bytes)} of text", ("", *WORK), rows))
    return found


def goals(found: dict[str, dict[str, Any]]) -> list[list[str]]:
    def ratio(key: str, one: str, *others: str) -> float:
        if any("failed" in found[name] for name in (one, *others)):
            return float("nan")
        return found[one][key] / sum(found[other][key] for other in others)

    limits = (COPY, ENCODE, PARQUET)
    theirs = CONSOLE if "failed" in found[TRL_ALL] else TRL_ALL
    return [
        goal(f"training thread, of {TABLE}", ratio("training thread", OURS, TABLE), 0.15),
        goal(
            f"training thread with trackio and wandb, of {theirs}", ratio("training thread", OURS_SINKS, theirs), 0.01
        ),
        goal("total CPU, of copy + orjson + zstd", ratio("total CPU", OURS, *limits), 1.5),
        goal("total CPU without plugins, of copy + orjson + zstd", ratio("total CPU", ALONE, *limits), 1.5),
        goal(f"disk, of {TABLE}", ratio("disk", OURS, TABLE), 0.6),
        goal(f"peak memory, of {TABLE}", ratio("peak", OURS, TABLE), 1),
    ]


def wide(found: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Goals of many rollouts at once: there are more objects then than the garbage collector likes."""
    ours, theirs = found[OURS], found[TABLE]
    rows = [goal(f"{key}, of {TABLE}", ours[key] / theirs[key], 0.3) for key in ("training thread", "thread CPU")]
    return [*rows, goal("full garbage collections meanwhile", ours["collections"], 0)]


def vast() -> float:
    """How far memory rises above one rollout of 190 MB while it is kept, in GB."""

    def measure() -> dict[str, Any]:
        from rollout_plugins import RolloutRecorder

        text = batches.Writer(5).text(1_000_000)
        said = [{"role": "assistant", "content": f"{number} {text}"} for number in range(190)]
        peak = Peak()
        with RolloutRecorder(dir=SCRATCH / "vast") as recorder:
            recorder.record(0, [{"prompt": "go on", "completion": said}])
        return {"peak": peak.bytes}

    return float(apart(measure)["peak"]) / 1e9


LONG, ANSWERS = 16_384, 256


def long_answers() -> dict[str, dict[str, Any]]:
    """What `RolloutRecorder(tokens=True)` costs for answers with ids, a mask and log-probabilities, by their form."""
    import numpy as np
    import torch

    forms = {"lists": list, "numpy": np.array, "torch": torch.tensor}
    found = {name: apart(partial(_long_answers, form)) for name, form in forms.items()}
    head = ("token data in", "thread CPU, an answer", "total CPU", "peak, of what is kept")
    rows = [
        [f"could not: {one['failed']}"]
        if "failed" in one
        else [name, seconds(one["thread CPU"]), seconds(one["total CPU"]), f"{one['peak']:.1f}"]
        for name, one in found.items()
    ]
    show(table(f"Long answers: {ANSWERS} of {LONG:,} tokens, tokens=True", head, rows))
    return found


def _long_answers(form: Callable[[Any], Any]) -> dict[str, Any]:
    from rollout_plugins import RolloutRecorder

    dice = batches.Writer(7).dice
    ids = [dice.randrange(150_000) for _ in range(LONG)]
    logprobs = [-dice.random() for _ in range(LONG)]
    rows = [
        {
            "prompt": "go on",
            "completion": f"{number}",
            "rewards": {"correct": 1.0},
            "tokens": {
                "completion": form([token + number for token in ids]),
                "mask": form([1] * LONG),
                "logprobs": form([one - number for one in logprobs]),
            },
        }
        for number in range(ANSWERS)
    ]
    with RolloutRecorder(dir=SCRATCH / f"long-{os.getpid()}", tokens=True) as recorder:
        recorder.record(0, [{"prompt": "go on", "completion": "", "rewards": {"correct": 1.0}}])
        recorder.flush()
        gc.collect()
        peak, clock = Peak(), Clock()
        recorder.record(1, rows)
        thread = clock.thread
        recorder.flush(600)
        recorder.close()
        kept = ANSWERS * LONG * (4 + 1 + 8)
        return {"thread CPU": thread / ANSWERS, "total CPU": clock.cpu, "peak": peak.bytes / kept}


def growth(
    trainer: Any, title: str, names: Names, shapes: list[dict[str, Any]]
) -> dict[str, dict[str, dict[str, Any]]]:
    """The figures of each way, by batch."""
    rows, all_found = [], {}
    for shape in shapes:
        batch = batches.make(**shape)
        replay.load(trainer, batch)
        text = f"{shape['rollouts']} x {shape['turns']} turns x {size(shape['length'])}"
        all_found[text] = {name: measured(name, trainer, batch) for name in names}
        rows += [[text, name, *cells(figures)] for name, figures in all_found[text].items()]
    show(table(title, ("batch", "", *WORK), rows))
    return all_found


def run(*, full: bool) -> None:
    SCRATCH.mkdir(exist_ok=True)
    trainer = replay.trainer(SCRATCH)
    names = tuple(WAYS)
    found = compare(trainer, "Agents", names, rollouts=512, turns=4, length=2000)
    chat = compare(trainer, "Chat", names, rollouts=512, turns=1, length=4000)
    pictures = compare(trainer, "With images", names if full else FAST, rollouts=64, turns=2, length=2000, images=True)
    some = names if full else (OURS, TABLE)
    width = 512 if full else 64
    counts = [{"rollouts": n, "turns": 4, "length": 1000} for n in (64, 512, 4096)]
    *_, widest = growth(trainer, "More rollouts", some, counts).items()
    rows = [["agents", *row] for row in goals(found)] + [["chat", *row] for row in goals(chat)]
    rows += [[widest[0], *row] for row in wide(widest[1])]
    rows.append(["images", *goal("files per distinct image", pictures[OURS]["images"] / 8, 1)])
    rows.append(["one rollout of 190 MB", *goal("peak memory above it, in GB", vast(), 0.8)])
    for form, one in long_answers().items():
        if "failed" not in one:
            which = f"{ANSWERS} x {LONG:,} tokens, {form}"
            rows.append([which, *goal("thread CPU an answer, in ms", one["thread CPU"] * 1e3, 1)])
            rows.append([which, *goal("total CPU, in s", one["total CPU"], 1.5)])
            rows.append([which, *goal("peak memory, of what is kept", one["peak"], 2)])
    show(table("Goals", ("batch", "goal", "measured", "wanted", ""), rows))
    growth(trainer, "More turns", some, [{"rollouts": width, "turns": n, "length": 1000} for n in (1, 10, 50)])
    longer = [{"rollouts": width, "turns": 2, "length": n} for n in (1000, 8000, 64_000)]
    growth(trainer, "Longer messages", some, longer)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="every way at every size; some take minutes")
    full = parser.parse_args().full
    main(lambda: run(full=full))
