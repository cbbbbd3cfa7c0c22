"""Run by test_kill: records generations as fast as it can, and says of each when it is safe."""

import sys
from pathlib import Path

from rollout_plugins import Batch, Rollout, Run
from rollout_plugins.engine.discover import Plugins
from rollout_plugins.engine.pipeline import Pipeline
from rollout_plugins.store import write


def generation(number):
    said = {"prompt": ({"role": "user", "content": "hello"},), "completion": ({"role": "assistant", "content": "hi"},)}
    columns = {"number": number, "pad": "é" * 3000}
    return [Rollout(id="", index=i, reward=i / 2, columns=columns, **said) for i in range(4)]


def main(folder):
    write.SEAL_BYTES = 200_000  # so that the kill also meets journals on their way to Parquet
    line = Pipeline(Plugins(autoload=False))
    line.start(Run(id="r1", dir=str(folder / "r1")))
    number = 0
    while True:
        made = generation(number)
        line.submit(
            Batch(build=lambda made=made: made, step=number, split="eval" if number % 5 == 4 else "train", count=4)
        )
        if line.drain(60):
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()
        if number % 7 == 0:
            line.request_sync()
        number += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]))
