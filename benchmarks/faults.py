"""Everything that goes wrong in long runs, on purpose, and what is left of the rollouts afterwards.

    python -m benchmarks.faults [--minutes 12]

After each fault every file must be readable, and what was generated must be what is stored plus what is counted as
lost, by reason. Kills come last and take the time that is left, at most 200 of them. `--minutes 12` has room for all.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from rollout_hookspecs import Batch, Rollout, Run, ToolCall, hookimpl

from benchmarks.measure import main, show, table
from rollout_plugins import RolloutRecorder, open_run
from rollout_plugins.engine.discover import Plugins
from rollout_plugins.engine.pipeline import Pipeline
from rollout_plugins.errors import RunError
from rollout_plugins.store import write

ROOT = Path(__file__).parents[1]
KILLS = 200
TRUTH = "truth"


@dataclass
class Outcome:
    """What one fault left behind."""

    generated: int
    stored: int
    dropped: dict[str, int] = field(default_factory=dict)
    damaged: int = 0
    note: str = ""
    at_least: bool = False
    """The process was killed: more than it knew of may be stored."""

    @property
    def whole(self) -> bool:
        lost = sum(self.dropped.values())
        known = self.stored + lost
        return not self.damaged and (known >= self.generated if self.at_least else known == self.generated)

    def row(self, name: str) -> list[Any]:
        dropped = ", ".join(f"{count} {reason}" for reason, count in self.dropped.items())
        verdict = "ok" if self.whole else "NOT WHOLE"
        return [name, self.generated, self.stored, dropped or "-", self.damaged, self.note, verdict]


# --- processes ------------------------------------------------------------------------------------------------------


def apart(work: Callable[[], Any]) -> Any:
    """The result of some work in a fork: this process itself never starts a thread, so that it can fork again."""
    read, wrote = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            answer = json.dumps({"value": work()})
        except BaseException:
            answer = json.dumps({"failed": traceback.format_exc()})
        with os.fdopen(wrote, "w") as pipe:
            pipe.write(answer)
        os._exit(0)
    os.close(wrote)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    answer = json.loads(text or '{"failed": "the process died"}')
    if "failed" in answer:
        raise RuntimeError(answer["failed"])
    return answer["value"]


def killed_after(seconds: float, work: Callable[[], Any], sign: int = signal.SIGKILL) -> None:
    """Let some work go on for so long in a fork, then end it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    time.sleep(seconds)
    os.kill(pid, sign)
    os.waitpid(pid, 0)


# --- recording and looking ------------------------------------------------------------------------------------------


def recorder(folder: Path, *plugins: Any, start: int = 0, **facts: Any) -> Pipeline:
    pipeline = Pipeline(Plugins(plugins, autoload=not plugins))
    pipeline.start(Run(**{"id": "run", "dir": str(folder / "run"), "reward_names": ("r",)} | facts), start)
    return pipeline


def hand_over(pipeline: Pipeline, step: int, rollouts: list[Rollout]) -> int:
    pipeline.submit(Batch(build=lambda: rollouts, step=step, count=len(rollouts), bytes=4096))
    return len(rollouts)


def made(step: int, count: int = 4, length: int = 300) -> list[Rollout]:
    said = f"step {step} " * (length // 8)
    call = ToolCall(name="search", arguments={"q": step, "nested": {}}, reply=1, result=said)
    asked = {"type": "function", "function": {"name": "search", "arguments": {"q": step, "nested": {}}}}
    completion = ({"role": "assistant", "content": said, "tool_calls": [asked]}, {"role": "tool", "content": said})
    base = Rollout(id="", group_size=2, rewards={"r": 0.5}, reward=0.5, tool_calls=(call,), completion=completion)
    prompts = [({"role": "user", "content": f"{step}.{i}"},) for i in range(count)]
    return [replace(base, index=i, group=i // 2, prompt=prompt) for i, prompt in enumerate(prompts)]


def train(pipeline: Pipeline, steps: range, length: int = 300, truth: Path | None = None) -> int:
    """So many generations; with `truth`, each is noted there as soon as it was handed to the disk."""
    generated = 0
    for step in steps:
        generated += hand_over(pipeline, step, made(step, length=length))
        if truth is not None:
            pipeline.drain(30)
            with truth.open("a") as file:
                file.write(f"{step}\n")
    return generated


def noted(truth: Path) -> int:
    """Rollouts of the generations that were finished before the end came."""
    lines = truth.read_text().splitlines(keepends=True) if truth.exists() else []
    return 4 * sum(line.endswith("\n") for line in lines)


def looked(folder: Path, generated: int, *, at_least: bool = False, note: str = "", **extra: int) -> Outcome:
    """Read everything there is, in a process of its own."""

    def look() -> list[Any]:
        try:
            run = open_run(folder)
        except RunError:
            if generated:
                raise
            return [0, {}, 0]  # it was killed before the run had begun
        rollouts = list(run.rollouts(superseded=True))
        assert len({r.id for r in rollouts}) == len(rollouts), "a rollout is there twice"
        counted = dict(run.health.drops)
        counted.pop("unserialisable_field", None)  # those rollouts are stored
        return [len(rollouts), counted, len(run.health.damaged)]

    stored, dropped, damaged = apart(look)
    return Outcome(generated, stored, {**dropped, **extra}, damaged, note, at_least)


# --- faults of the disk ---------------------------------------------------------------------------------------------


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[None]:
    """A file system of its own."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    if subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
        raise PermissionError("needs the right to mount a small tmpfs")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def full_disk(folder: Path, dice: random.Random) -> Outcome:
    with small_disk(folder, 8):

        def work() -> int:
            (folder / "ballast").write_bytes(b"x" * 6_000_000)
            pipeline = recorder(folder)
            generated = train(pipeline, range(1, 401), length=6000)
            pipeline.drain(60)
            (folder / "ballast").unlink()
            generated += train(pipeline, range(401, 421))
            pipeline.close()
            return generated

        return looked(folder, apart(work), note="8 MB, freed later")


def vanished_folder(folder: Path, dice: random.Random) -> Outcome:
    def work() -> list[int]:
        pipeline = recorder(folder)
        generated, removed = 0, 0
        for part in range(5):
            here = train(pipeline, range(part * 20 + 1, part * 20 + 21))
            pipeline.drain(60)
            generated += here
            if part in {1, 3}:
                removed = generated
                shutil.rmtree(folder / "run")
        pipeline.close()
        return [generated, removed]

    generated, removed = apart(work)
    return looked(folder, generated, note="removed twice", removed_with_it=removed)


def unwritable_folder(folder: Path, dice: random.Random) -> Outcome:
    """A file stands where the folder should be, for a while. (Roots may write where nobody else may.)"""

    def work() -> int:
        pipeline = recorder(folder)
        folder.mkdir(exist_ok=True)
        pipeline.drain(60)
        shutil.rmtree(folder / "run", ignore_errors=True)
        (folder / "run").write_text("in the way")
        generated = train(pipeline, range(1, 21))
        pipeline.drain(60)
        (folder / "run").unlink()
        generated += train(pipeline, range(21, 41))
        pipeline.close()
        return generated

    return looked(folder, apart(work), note="for the first half")


def clock_backwards(folder: Path, dice: random.Random) -> Outcome:
    def work() -> int:
        now = [2e9]

        def back() -> float:
            now[0] -= 3600
            return now[0]

        with mock.patch("time.time", back):
            pipeline = recorder(folder)
            generated = train(pipeline, range(1, 101))
            pipeline.close()
        return generated

    return looked(folder, apart(work), note="an hour at each look")


# --- faults of plugins and sinks ------------------------------------------------------------------------------------


class Sink:
    """Does something bad with every delivery."""

    def __init__(self, bad: Callable[[], object]) -> None:
        self._bad = bad

    @hookimpl
    def export_traces(self, traces: Any, step: Any) -> None:
        self._bad()


class Plugin:
    """Does something bad with every tenth rollout."""

    def __init__(self, bad: Callable[[], object]) -> None:
        self._bad, self._seen = bad, 0

    @hookimpl
    def on_rollout(self, rollout: Rollout, step: Any) -> Any:
        self._seen += 1
        return self._bad() if self._seen % 10 == 0 else None


def raises() -> object:
    raise RuntimeError("no")


def hangs() -> object:
    time.sleep(3600)
    return None


HELD: list[bytearray] = []
BAD: dict[str, Callable[[], object]] = {
    "raises": raises,
    "hangs": hangs,
    "calls sys.exit": lambda: sys.exit(3),
    "leaks": lambda: HELD.append(bytearray(10_000)),
    "returns nonsense": lambda: 42,
}


def with_plugin(kind: type, bad: Callable[[], object]) -> Callable[[Path, random.Random], Outcome]:
    def fault(folder: Path, dice: random.Random) -> Outcome:
        def work() -> list[Any]:
            os.environ.update(ROLLOUT_PLUGINS_HANG_SECONDS="0.5", ROLLOUT_PLUGINS_END_SECONDS="10")
            pipeline = recorder(folder, kind(bad))
            started = time.perf_counter()
            generated = train(pipeline, range(1, 101))
            waited = time.perf_counter() - started
            pipeline.close()
            missed = sum(pipeline.counters.unsent.values())
            return [generated, waited, missed]

        generated, waited, missed = apart(work)
        note = f"training waited {waited * 1000:.0f} ms{f'; sink missed {missed}' if missed else ''}"
        return looked(folder, generated, note=note)

    return fault


def forked_midway(folder: Path, dice: random.Random) -> Outcome:
    """What DataLoader workers and reward functions in processes do: the copies must neither write nor wait."""

    def work() -> int:
        pipeline = recorder(folder)
        generated = 0
        for part in range(5):
            generated += train(pipeline, range(part * 10 + 1, part * 10 + 11))
            pid = os.fork()
            if pid == 0:
                train(pipeline, range(1, 5))
                pipeline.close()
                os._exit(0)
            os.waitpid(pid, 0)
        pipeline.close()
        return generated

    return looked(folder, apart(work), note="5 forks")


def full_queue(folder: Path, dice: random.Random) -> Outcome:
    """Recording that can't keep up, with a queue of a few generations."""

    def work() -> int:
        pipeline = Pipeline(Plugins([Plugin(lambda: time.sleep(0.02))], autoload=False), queue_bytes=20_000)
        pipeline.start(Run(id="run", dir=str(folder / "run")))
        generated = train(pipeline, range(1, 201))
        pipeline.close()
        return generated

    return looked(folder, apart(work))


# --- content --------------------------------------------------------------------------------------------------------


def hostile_content(folder: Path, dice: random.Random) -> Outcome:
    """Fields of rollouts that hypothesis made up, mixed anew into ten thousand of them."""

    def work() -> list[int]:
        os.environ["ROLLOUT_PLUGINS_END_SECONDS"] = "600"
        sys.path.insert(0, str(ROOT / "tests" / "support"))
        import hostile
        from hypothesis import HealthCheck, Phase, given, seed, settings

        pool: list[Rollout] = []
        unhurried = {"database": None, "deadline": None, "suppress_health_check": list(HealthCheck)}

        @seed(dice.randrange(2**32))
        @settings(max_examples=400, phases=[Phase.generate], **unhurried)
        @given(hostile.rollouts())
        def collect(rollout: Rollout) -> None:
            pool.append(rollout)

        collect()
        names = ("prompt", "completion", "tool_calls", "rewards", "reward", "columns", "extra", "error")
        pipeline = recorder(folder)
        generated = 0
        for step in range(1, 101):
            mixed = [{name: getattr(dice.choice(pool), name) for name in names} for _ in range(100)]
            rollouts = [replace(dice.choice(pool), index=i, **fields) for i, fields in enumerate(mixed)]
            generated += hand_over(pipeline, step, rollouts)
            pipeline.drain(120)
        pipeline.close()
        return [generated, pipeline.counters.drops["unserialisable_field"]]

    generated, placeholders = apart(work)
    return looked(folder, generated, note=f"{placeholders} values became placeholders")


# --- faults of the process ------------------------------------------------------------------------------------------


def killed(folder: Path, dice: random.Random) -> Outcome:
    folder.mkdir()

    def work() -> None:
        write.SEAL_BYTES = 200_000  # so that kills find it sealing too
        train(recorder(folder), range(1, 1_000_000), dice.choice((100, 3000)), folder / TRUTH)

    killed_after(dice.random() * 0.8, work)
    if not (folder / "run").exists():
        return Outcome(noted(folder / TRUTH), 0, at_least=True)
    return looked(folder, noted(folder / TRUTH), at_least=True)


def terminated(folder: Path, dice: random.Random) -> Outcome:
    folder.mkdir()
    killed_after(1.0, lambda: train(recorder(folder), range(1, 1_000_000), 300, folder / TRUTH), signal.SIGTERM)
    return looked(folder, noted(folder / TRUTH), at_least=True)


def resume_chain(folder: Path, dice: random.Random) -> Outcome:
    """Killed and resumed ten times from the last checkpoint; steps done twice count once, and both are kept."""
    folder.mkdir()
    truth, generated, last = folder / TRUTH, 0, 0
    for attempt in range(1, 11):
        facts = {"attempt": attempt, "resumed_from": last or None}

        def work(last: int = last, facts: dict[str, Any] = facts) -> None:
            train(recorder(folder, start=last, **facts), range(last + 1, 1_000_000), 300, truth)

        before = noted(truth)
        killed_after(0.3 + dice.random() * 0.4, work)
        generated += noted(truth) - before
        last += (noted(truth) - before) // 8  # the checkpoint is from halfway

    def steps() -> list[int]:
        run = open_run(folder)
        return [len(run.steps), sum(1 for _ in run.rollouts()), max(run.steps)]

    count, current, newest = apart(steps)
    result = looked(folder, generated, at_least=True, note=f"steps 1 to {newest}, each once: {current} rollouts")
    if not (count == newest and current == 4 * count):
        result.damaged += 1
        result.note += ", NOT SO"
    return result


def two_processes(folder: Path, dice: random.Random) -> Outcome:
    """Two trainings started at one time with one output folder, as launchers do by mistake."""
    folder.mkdir()
    children = []
    for number in range(2):
        pid = os.fork()
        if pid == 0:
            pipeline = recorder(folder, id=f"run-{number}", dir=str(folder / f"run-{number}"))
            train(pipeline, range(1, 101))
            pipeline.close()
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    outcomes = [looked(folder / f"run-{number}", 400) for number in range(2)]
    return Outcome(800, sum(o.stored for o in outcomes), {}, sum(o.damaged for o in outcomes), "a run each")


def one_run_twice(folder: Path, dice: random.Random) -> Outcome:
    """The same, and they even agree on the run: two writers on one set of files."""
    folder.mkdir()
    children = []
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            with RolloutRecorder(dir=folder, run_id="run") as loop:
                for step in range(1, 101):
                    loop.record(step, [{"prompt": "?", "completion": str(i)} for i in range(4)])
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    return looked(folder, 800, note="one run for both")


def hung_disk(folder: Path, dice: random.Random) -> Outcome:
    """A disk that stops answering before the end: the end of training waits two seconds, and counts what is left."""

    def work() -> list[Any]:
        pipeline = Pipeline(Plugins([], autoload=True), end_seconds=2)
        pipeline.start(Run(id="run", dir=str(folder / "run"), reward_names=("r",)))
        generated = train(pipeline, range(1, 21))
        pipeline.drain(30)
        with mock.patch.object(write.RunWriter, "write", side_effect=lambda *_: time.sleep(600)):
            generated += train(pipeline, range(21, 31))
            began = time.monotonic()
            pipeline.close()
            assert time.monotonic() - began < 10, "the end took longer than its limit"
        return [generated, dict(pipeline.counters.drops)]

    generated, dropped = apart(work)
    return looked(folder, generated, note="10 generations hang", **dropped)


def scored_in_a_forked_pool(folder: Path, dice: random.Random) -> Outcome:
    """A loop whose rewards are computed in forked processes from its first moment on."""

    def work() -> int:
        generated = 0
        with RolloutRecorder(dir=folder) as loop:
            for step in range(1, 11):
                loop.record(step, [{"prompt": "?", "completion": str(step)} for _ in range(4)])
                generated += 4
                with multiprocessing.get_context("fork").Pool(2) as pool:
                    pool.map_async(abs, range(8)).get(60)
        return generated

    return looked(folder, apart(work), note="10 pools")


def folders_that_look_like_columns(folder: Path, dice: random.Random) -> Outcome:
    """Hydra's names above a run, which some readers take for columns of theirs."""
    inside = folder / "step=2000" / "group=ablation" / "rank=16"

    def work() -> int:
        pipeline = recorder(inside)
        generated = train(pipeline, range(1, 21))
        pipeline.close()
        assert open_run(inside).steps == list(range(1, 21)), "the folders' names changed what is in the run"
        return generated

    return looked(inside, apart(work))


TRAININGS = {
    "chdir in a reward function": ("wander", 0),
    "evaluation after training": ("evaluate", 0),
    "exception in a reward function": ("raise", 1),
    "Ctrl-C": ("interrupt", -signal.SIGINT),
    "exit without on_train_end": ("exit", 0),
    "SIGTERM in real training": ("terminate", -signal.SIGTERM),
}


def real_training(how: str, status: int) -> Callable[[Path, random.Random], Outcome]:
    """A real trainer, in a real interpreter that ends the way it ends."""

    def fault(folder: Path, dice: random.Random) -> Outcome:
        folder.mkdir()
        env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/hookspecs:{ROOT}/tests/support", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "benchmarks.faults", "--worker", how, str(folder)]
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        ended = done.returncode in {status, 130 if how == "interrupt" else status}
        note = f"exit status {done.returncode}"
        result = looked(folder / "out", noted(folder / TRUTH), at_least=how == "terminate", note=note)
        result.damaged += not ended
        return result

    return fault


def worker(how: str, folder: Path) -> None:
    """A training that ends in its tenth generation. What was generated before its end is noted."""
    from rig import dataset, half, make

    from rollout_plugins import RolloutPluginCallback

    def reward(completions: list[Any], **kwargs: Any) -> list[float]:
        with (folder / TRUTH).open("a") as file:
            file.write("generated\n" * (len(completions) // 4))
            last = file.tell() == 10 * len("generated\n")
        if how == "wander":
            os.chdir(tempfile.mkdtemp(dir=folder))
        if not last or how in {"wander", "evaluate"}:
            return list(half(completions))
        if how == "terminate":
            time.sleep(1)
            (folder / TRUTH).write_text("generated\n" * 9)
        return list({"raise": raises, "interrupt": _interrupt, "exit": sys.exit, "terminate": _terminate}[how]())

    os.chdir(folder)
    steps = 10 if how in {"wander", "evaluate"} else 100
    trainer = make(folder, rewards=reward, max_steps=steps, eval_rows=dataset(4), output_dir="out")
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    if how == "evaluate":
        trainer.evaluate()


def _interrupt() -> Any:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)


def _terminate() -> Any:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)


# --- running them ---------------------------------------------------------------------------------------------------

FAULTS: dict[str, Callable[[Path, random.Random], Outcome]] = {
    "full disk": full_disk,
    "folder removed": vanished_folder,
    "folder not writable": unwritable_folder,
    "clock goes backwards": clock_backwards,
    **{f"sink {name}": with_plugin(Sink, bad) for name, bad in BAD.items()},
    **{f"plugin {name}": with_plugin(Plugin, bad) for name, bad in BAD.items()},
    "forked copies": forked_midway,
    "rewards in a forked pool": scored_in_a_forked_pool,
    "disk that hangs at the end": hung_disk,
    "folders named key=value": folders_that_look_like_columns,
    "queue full": full_queue,
    "10,000 hostile rollouts": hostile_content,
    "SIGTERM": terminated,
    "killed and resumed, 10 times": resume_chain,
    "two processes, one folder": two_processes,
    "two processes, one run": one_run_twice,
    **{name: real_training(*how) for name, how in TRAININGS.items()},
}


def run(minutes: float, only: str) -> None:
    logging.disable(logging.CRITICAL)
    until = time.monotonic() + minutes * 60
    dice, root = random.Random(11), Path(tempfile.mkdtemp(prefix="faults-"))
    rows = []
    for number, (name, fault) in enumerate(FAULTS.items()):
        if only in name:
            rows.append(_row(name, fault, root / str(number), dice))
            print(*rows[-1], file=sys.stderr, flush=True)
    if only in "kill -9":
        rows.append(_kills(root, dice, until))
    head = ("fault", "generated", "stored", "counted as lost", "damaged", "", "")
    show(table(f"Faults, in {minutes:g} minutes at most", head, rows))


def _row(name: str, fault: Callable[[Path, random.Random], Outcome], folder: Path, dice: random.Random) -> list[Any]:
    try:
        return fault(folder, dice).row(name)
    except PermissionError as error:
        return [name, "-", "-", "-", "-", str(error), "not run"]
    except Exception as error:
        logging.getLogger(__name__).debug("%s", error, exc_info=error)
        if os.environ.get("TRACE"):
            traceback.print_exc()
        return [name, "-", "-", "-", "-", str(error).strip().splitlines()[-1][:90], "FAILED"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _kills(root: Path, dice: random.Random, until: float) -> list[Any]:
    total, torn, count = Outcome(0, 0, at_least=True), 0, 0
    while count < KILLS and (count < 10 or time.monotonic() < until):
        one = killed(root / f"kill-{count}", dice)
        count += 1
        total.generated += one.generated
        total.stored += one.stored
        total.damaged += one.damaged
        torn += not one.whole
        shutil.rmtree(root / f"kill-{count - 1}", ignore_errors=True)
    total.note = f"{torn} of {count} not whole"
    total.damaged += torn
    return total.row(f"kill -9 at {count} random moments")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=12)
    parser.add_argument("--only", default="", help="faults with this in their name")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    given_arguments = parser.parse_args()
    if given_arguments.worker:
        worker(given_arguments.worker[0], Path(given_arguments.worker[1]))
    else:
        main(lambda: run(given_arguments.minutes, given_arguments.only))
