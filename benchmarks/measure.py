"""Timing, memory, tables and the machine: what all benchmarks share."""

from __future__ import annotations

import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "trl", "pyarrow", "orjson", "pandas", "trackio", "wandb", "duckdb")
_TICKS = os.sysconf("SC_CLK_TCK")


class Clock:
    """Wall time, CPU time of this thread and of this process with its children, since it was made."""

    def __init__(self) -> None:
        self._cpu, self._pushed, self._thread = tree_cpu(), _pushed_aside(), time.thread_time()
        self._wall = time.perf_counter()

    @property
    def undisturbed(self) -> float:
        """Wall time without that in which this thread could have run, and the machine ran something else."""
        wall, busy = self.wall, self.thread
        return max(busy, wall - (_pushed_aside() - self._pushed))

    @property
    def wall(self) -> float:
        return time.perf_counter() - self._wall

    @property
    def thread(self) -> float:
        return time.thread_time() - self._thread

    @property
    def cpu(self) -> float:
        return tree_cpu() - self._cpu


def _pushed_aside() -> float:
    """Seconds this thread has waited for a processor. Waiting for a lock, the GIL or a disk is not among them."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def tree_cpu() -> float:
    """CPU seconds of this process, exactly, and of its children to a hundredth (wandb works in one)."""
    return time.process_time() + sum(map(_cpu_of, _descendants(os.getpid())))


def _descendants(pid: int) -> list[int]:
    try:
        own = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        own += [
            int(p)
            for task in Path(f"/proc/{pid}/task").iterdir()
            if task.name != str(pid)
            for p in (task / "children").read_text().split()
        ]
    except OSError:
        return []
    return own + [below for child in own for below in _descendants(child)]


def _cpu_of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Peak:
    """How far resident memory has risen since it was made, in bytes."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self._before = _status("VmRSS")

    @property
    def bytes(self) -> int:
        return max(0, _status("VmHWM") - self._before)


def resident() -> int:
    """Resident memory of this process in bytes."""
    return _status("VmRSS")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def flush(folder: Path) -> None:
    """Have the disk keep every file below a folder: what durable means, for everybody alike."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table whose columns line up in a terminal too."""
    cells = [list(head), *[[str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in cells]
    lines = [f"| {' | '.join(row)} |" for row in padded]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join(["", f"**{title}**", "", lines[0], rule, *lines[1:]])


def show(text: str) -> None:
    print(text, flush=True)


def seconds(value: float) -> str:
    if value < 0.001:
        return f"{value * 1e6:.0f} us"
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s"


def size(value: float) -> str:
    for unit in ("B", "kB", "MB"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "B" or abs(value) >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def goal(name: str, value: float, limit: float, *, at_least: bool = False) -> list[str]:
    """A row of a table of goals."""
    wanted = f"{'>=' if at_least else '<='} {limit:g}"
    if math.isnan(value):
        return [name, "-", wanted, "nothing to compare with"]
    met = value >= limit if at_least else value <= limit
    return [name, f"{value:.4f}", wanted, "met" if met else "MISSED"]


def machine() -> str:
    """One line that says on what the figures were produced."""
    versions = ", ".join(f"{name} {found}" for name in PACKAGES if (found := _version(name)))
    when = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    return f"{_cpu_model()}, {os.cpu_count()} cores; Python {platform.python_version()}, {versions}; {when}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def main(run: Callable[[], object]) -> None:
    """Run a benchmark; the exit status says only whether it could run."""
    show(f"_{machine()}_")
    try:
        run()
    except Exception as error:
        show(f"could not run: {type(error).__name__}: {error}")
        raise
    sys.exit(0)
