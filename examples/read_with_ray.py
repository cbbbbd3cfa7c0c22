"""The same files on a cluster: Ray Data reads a run's Parquet without this library.

pip install "ray[data]"
python examples/read_with_ray.py RUN
"""

import logging
import sys
import time

import ray

from rollout_plugins import open_run


def main(path: str) -> None:
    run = open_run(path)
    # What a resumed attempt did again: the one thing the reader leaves out and the files hold.
    again = [
        (a["attempt"], a["resumed_from"]) for a in run.attempts if a["attempt"] > 1 and a["resumed_from"] is not None
    ]

    def current(rows):
        keep = rows["split"] == "train"
        for attempt, step in again:
            keep &= ~((rows["attempt"] < attempt) & (rows["step"] > step))
        return rows[keep]

    started = time.perf_counter()
    rollouts = ray.data.read_parquet(str(run.dir / "data"), file_extensions=["parquet"])
    numbers = rollouts.select_columns(["attempt", "split", "step", "reward", "completion_tokens", "failed_calls"])
    train = numbers.map_batches(current, batch_format="pandas")
    means = train.groupby("step", num_partitions=8).mean(["reward", "completion_tokens", "failed_calls"])
    steps = sorted(means.iter_rows(), key=lambda row: row["step"])
    print({name: round(value, 3) for name, value in steps[0].items()})
    print({name: round(value, 3) for name, value in steps[-1].items()})
    print(f"{len(steps)} steps in {time.perf_counter() - started:.1f} s")

    def words(row):
        return {"id": row["id"], "words": sum(len(str(message["content"]).split()) for message in row["completion"])}

    some = rollouts.select_columns(["id", "completion"]).limit(1000).map(words)
    print("longest of the first thousand:", max(some.iter_rows(), key=lambda row: row["words"]))


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    logging.getLogger("ray").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    main(sys.argv[1])
