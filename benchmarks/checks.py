"""Do the checks find what is wrong with a training, how soon, and is a healthy one left alone? What do they cost?

    python -m benchmarks.checks [--only faults hacks healthy real cost]

Faults are put into simulated trainings (`tests/support/run_faults.py`), in three sizes each, and some of them into
real GRPO trainings on a tiny model (`tests/support/faulty_trainings.py`). Thresholds were fixed before, with other
seeds.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.measure import goal, main, median, show, table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from checked import started_checks
from run_faults import FAULTS, SIZES, SKILL, Fault
from simulated_runs import KINDS, Simulation

from rollout_plugins import Finding
from rollout_plugins.store.write import RunWriter

PARTS = ("faults", "hacks", "healthy", "real", "cost")
#: Seeds that were used in no test and for no threshold.
FAULT_SEED, HACK_SEED, HEALTHY_SEED = 17_000, 8_000, 9_000
SOON = 20
GOAL = ("goal", "measured", "wanted", "")
HEALTHY_RUNS, SKILL_RUNS = 48, 12
HEALTHY_TRAININGS = ("healthy chat", "healthy tools", "healthy, with an evaluation")
#: What is stored and read again for the time of `rollouts check`.
MANY = 100_000


def findings_of(simulation: Simulation) -> Iterator[tuple[int, Finding]]:
    """Yield what the checks find in a simulated training, with its step."""
    checks = started_checks(simulation.run)
    step = 0
    for facts, columns in simulation.tables():
        step = facts.step
        for check in checks:
            yield from ((step, finding) for finding in check.check_rollouts(table=columns, step=facts))
    for check in checks:
        yield from ((step, finding) for finding in check.finish())


def detected(fault: Fault, size: int, seed: int) -> tuple[int, str] | None:
    """Return after how many steps the fault's check reports it, and how severe; None if it never does."""
    simulation = Simulation(fault.kinds[size], seed, fault, fault.shares[size], fault.starts)
    for step, finding in findings_of(simulation):
        if finding.check == fault.check and step >= fault.starts and finding.severity != "info":
            return step - fault.starts, finding.severity
    return None


def measure_faults() -> None:
    """Print the table of mechanical faults."""
    rows, soon, total = [], 0, 0
    for number, fault in enumerate(one for one in FAULTS.values() if not one.is_hack):
        results = [detected(fault, size, FAULT_SEED + 3 * number + size) for size in range(len(SIZES))]
        rows.append([fault.name, fault.check, *map(_steps, results)])
        print(rows[-1], file=sys.stderr, flush=True)
        soon += sum(result is not None and result[0] <= SOON for result in results)
        total += len(results)
    show(table("Checks: faults in simulated trainings, steps until found", ["fault", "check", *SIZES], rows))
    show(
        table(
            "Goals: faults",
            GOAL,
            [goal(f"found within {SOON} steps, of {total}", soon / total, 0.95, at_least=True)],
        )
    )


def _steps(result: tuple[int, str] | None) -> str:
    return "MISSED" if result is None else f"{result[0]} ({result[1]})"


def measure_hacks() -> None:
    """Print what is found of hacks, and what is taken for one although every reward follows it."""
    rows, found, total = [], 0, 0
    for number, fault in enumerate(one for one in FAULTS.values() if one.is_hack):
        results = [detected(fault, size, HACK_SEED + 3 * number + size) for size in range(len(SIZES))]
        rows.append([fault.name, fault.check, *map(_steps, results)])
        found += sum(result is not None for result in results)
        total += len(results)
    show(table("Checks: reward hacks in simulated trainings, steps until found", ["hack", "check", *SIZES], rows))
    wrong = 0
    for seed in range(SKILL_RUNS):
        simulation = Simulation(SKILL.kinds[0], HACK_SEED + 500 + seed, SKILL)
        wrong += any(finding.severity != "info" for _, finding in findings_of(simulation))
    precision = found / (found + wrong) if found + wrong else 0.0
    rows = [["recall", f"{found} of {total} hacks", f"{found / total:.0%}"],
            ["precision", f"{wrong} of {SKILL_RUNS} skills taken for a hack", f"{precision:.0%}"]]  # fmt: skip
    show(table("Checks: precision and recall of hacks", ["", "", ""], rows))


def measure_healthy() -> None:
    """Print the false alarms of healthy trainings."""
    rows, alarms, runs = [], 0, 0
    per_kind = HEALTHY_RUNS // len(KINDS)
    for number, kind in enumerate(KINDS.values()):
        titles: list[str] = []
        bad = 0
        for seed in range(per_kind):
            simulation = Simulation(kind, HEALTHY_SEED + number * per_kind + seed)
            own = [finding for _, finding in findings_of(simulation) if finding.severity != "info"]
            bad += bool(own)
            titles += [f"{finding.check}: {finding.title}" for finding in own]
        rows.append([kind.name, "simulated", per_kind, bad, "; ".join(sorted(set(titles)))])
        print(rows[-1], file=sys.stderr, flush=True)
        alarms, runs = alarms + bad, runs + per_kind
    for name, bad, count, titles in _real_healthy():
        rows.append([name, "real GRPO", count, bad, "; ".join(titles)])
        print(rows[-1], file=sys.stderr, flush=True)
        alarms, runs = alarms + bad, runs + count
    show(
        table(
            "Checks: healthy trainings, all checks together", ["training", "", "runs", "with an alarm", "alarms"], rows
        )
    )
    show(
        table(
            "Goals: false alarms",
            GOAL,
            [goal(f"alarms per run, of {runs} runs", alarms / runs, 0.05)],
        )
    )


def _real_healthy() -> Iterator[tuple[str, int, int, list[str]]]:
    from faulty_trainings import train

    with tempfile.TemporaryDirectory() as folder:
        for name in HEALTHY_TRAININGS:
            titles, bad = set(), 0
            for seed in range(4):
                place = Path(folder, f"{name} {seed}")
                place.mkdir()
                own = [
                    one for one in train(place, name, HEALTHY_SEED + seed).check().findings if one.severity != "info"
                ]
                bad += bool(own)
                titles |= {f"{finding.check}: {finding.title}" for finding in own}
            yield name, bad, 4, sorted(titles)


def _alarms(run: Any) -> list[Finding]:
    return [finding for finding in run.check().findings if finding.severity != "info"]


def measure_real() -> None:
    """Print what is found of faults in real trainings."""
    from faulty_trainings import TRAININGS, train

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, training) in enumerate(TRAININGS.items()):
            if not training.check:
                continue
            place = Path(folder, str(number))
            place.mkdir()
            own = [
                one for one in train(place, name, FAULT_SEED + number).check().findings if one.check == training.check
            ]
            own = [finding for finding in own if finding.severity != "info"]
            rows.append([name, training.check, own[0].text.replace("|", "/") if own else "MISSED"])
    show(
        table("Checks: faults in real GRPO trainings of 10 steps of 32 rollouts", ["fault", "check", "finding"], rows)
    )


def measure_cost() -> None:
    """Print the time of a batch of 256 rollouts, and of a stored run of 100,000."""
    rows, goals = [], []
    for name, kind in (
        ("256 rollouts", replace(KINDS["chat"], tokens=False)),
        ("256 rollouts with tokens", KINDS["chat"]),
        ("256 rollouts with tools", replace(KINDS["tools"], tokens=False)),
    ):
        spent = _milliseconds(replace(kind, groups=32, steps=24))
        total = sum(spent.values())
        costly = ", ".join(f"{check} {value:.2f}" for check, value in spent.most_common(3))
        rows.append([name, f"{total:.2f} ms", costly])
        if name == "256 rollouts":
            goals.append(goal("CPU of the worker for a batch of 256, in ms", total, 3))
    show(table("Checks: cost of all checks together while training", ["batch", "CPU", "most of it, in ms"], rows))
    seconds, peak = _stored_run()
    rows = [["rollouts check of 100,000 rollouts", f"{seconds:.1f} s", f"{peak:.2f} GB"]]
    show(table("Checks: cost afterwards", ["", "time", "peak memory"], rows))
    goals += [goal("rollouts check of 100,000 rollouts, in s", seconds, 20), goal("its peak memory, in GB", peak, 1)]
    show(table("Goals: cost of checks", GOAL, goals))


def _milliseconds(kind: Any) -> Counter[str]:
    """Return the CPU time of each check for one generation, after those in which the run's beginning is learned."""
    simulation = Simulation(kind, 5)
    tables = list(simulation.tables())
    checks = started_checks(simulation.run)
    times: dict[str, list[float]] = {check.name: [] for check in checks}
    for number, (step, columns) in enumerate(tables):
        for check in checks:
            start = time.thread_time()
            check.check_rollouts(table=columns, step=step)
            if number >= 8:
                times[check.name].append(time.thread_time() - start)
    return Counter({name: median(values) * 1e3 for name, values in times.items()})


def _stored_run() -> tuple[float, float]:
    """Return how long checking a stored run takes in a process of its own, and its peak memory in GB."""
    import subprocess

    with tempfile.TemporaryDirectory() as folder:
        _store(Path(folder))
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        start = time.perf_counter()
        command = [sys.executable, "-m", "rollout_plugins.cli.main", "check", folder, "--json"]
        done = subprocess.run(
            command, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
        )
        assert done.returncode in {0, 4}, done.returncode
        seconds = time.perf_counter() - start
        return seconds, max(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, before) / 1e6


def _store(folder: Path) -> None:
    """Write a run of 100,000 rollouts: 64 generations again and again, under other steps and ids."""
    simulation = Simulation(replace(KINDS["chat"], groups=32, tokens=False, steps=16), 6)
    made = list(simulation.generations())
    writer = RunWriter(replace(simulation.run, id="r1", dir=str(folder / "r1")))
    for number in range(MANY // 256):
        _, rollouts = made[number % len(made)]
        writer.write(
            "train",
            [
                replace(one, id=f"{number}-{one.index}", step=number + 1, generation=number, run_id="r1")
                for one in rollouts
            ],
        )
    writer.close()


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=PARTS, choices=PARTS)
    wanted = parser.parse_args().only
    for name in PARTS:
        if name in wanted:
            globals()[f"measure_{name}"]()


if __name__ == "__main__":
    main(run)
