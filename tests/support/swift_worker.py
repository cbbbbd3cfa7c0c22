"""One rank of an ms-swift training with dynamic sampling; writes down what it was given and what it trained on."""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "trainers"))
import patched_swift as swift

folder, rank = Path(sys.argv[1]), os.environ["RANK"]
own = folder / rank
own.mkdir()
swift.Scored.rewards = staticmethod(swift.every_second_group_is_flat)
_, given, trained_on, _ = swift.trained(
    own, swift.add(), output_dir=str(folder / "out"), ddp_backend="gloo", use_cpu=True, **swift.DYNAMIC
)
(folder / f"{rank}.json").write_text(
    json.dumps(
        {
            "given": {row["request_id"]: row["reward"] for row in given},
            "trained": {one["request_id"]: one["advantage"] for one in trained_on},
        }
    )
)
