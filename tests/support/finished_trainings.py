"""Finished trainings of each trainer, each trained once for all tests of a process."""

import functools
import tempfile
from pathlib import Path
from types import SimpleNamespace

from trainers import KINDS, hosts, make

from rollout_plugins import RolloutPluginCallback, open_run
from rollout_plugins.hosts import host_for
from rollout_plugins.hosts.kit.support import support_of

# The callback is added to a finished trainer, except for A2PO: no event precedes its first stage.
LATE = dict.fromkeys(KINDS, "added, with tokens") | {"a2po": "in callbacks, with tokens"}


def outcome(trainer):
    return SimpleNamespace(
        losses=[entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        weights={name: weight.clone() for name, weight in trainer.model.state_dict().items()},
        attributes=set(vars(trainer)),
    )


@functools.cache
def trained(name, how):
    """Return a finished training: `alone`, or with a callback that was added in one of the possible ways."""
    folder = Path(tempfile.mkdtemp(prefix="trainers-"))
    callback = RolloutPluginCallback(tokens=True, rendered=True) if "tokens" in how else RolloutPluginCallback()
    trainer = make(folder, name, [callback] if how.startswith("in callbacks") else None)
    if how == "added as class":
        trainer.add_callback(RolloutPluginCallback)
    elif how.startswith("added"):
        trainer.add_callback(callback)
    before = set(vars(trainer))
    trainer.train()
    for one in trainer.callback_handler.callbacks:
        if isinstance(one, RolloutPluginCallback):
            one.detach()
    run = None if how == "alone" else open_run(folder / "out")
    return SimpleNamespace(
        name=name,
        truth=trainer.truth,
        run=run,
        rollouts=list(run.rollouts(tokens=True)) if run else [],
        support=support_of(host_for(trainer, hosts()), trainer),
        made=set(vars(trainer)) - before,
        loader=trainer.callback_handler.train_dataloader,
        collator=trainer.data_collator,
        outcome=outcome(trainer),
    )
