"""Write the card of an exported dataset: where its rows come from, how they were chosen, and how to train on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rollout_hookspecs import Run

from rollout_plugins.system.labels import count, run_name

if TYPE_CHECKING:
    from rollout_plugins.learn.choose_rollouts import Rules
    from rollout_plugins.learn.exported import Exported

_SHOWN_IDS = 20
_TITLES = {
    "sft": "Best rollouts, for supervised fine-tuning",
    "dpo": "Pairs of rollouts, for preference training",
    "kto": "Labelled rollouts, for KTO",
    "prompts": "Prompts",
}


def write_card(path: Path, run: Run, rules: Rules, exported: Exported, *, whole: bool) -> None:
    """Write the card as Markdown."""
    sections = [
        _front(exported),
        f"# {_TITLES[rules.kind]}",
        _origin(run, exported),
        "## How rows were chosen\n\n" + "\n".join(f"- {line}" for line in rule_lines(rules, whole=whole)),
        f"The candidates are {count(exported.candidates, 'rollout')}:\n\n```sql\n{exported.sql}\n```",
        _left_out(exported),
        "## How to train on it\n\n" + how_to_train(rules, exported, has_tools=bool(run.tools), whole=whole),
        "## Rendering\n\n" + "\n".join(rendering_lines(exported)),
    ]
    path.write_text("\n\n".join(filter(None, sections)) + "\n", encoding="utf-8")


def _origin(run: Run, exported: Exported) -> str:
    trainer, model = run.trainer or run.host or "an unnamed trainer", run.model or "an unnamed model"
    return (
        f"{count(exported.rows, 'row')} from the reinforcement-learning run `{run.id}` ({run_name(run)}), trained "
        f"with {trainer} from `{model}`. Exported by `rollout-plugins`."
    )


def _front(exported: Exported) -> str:
    """Return the front matter, which the Hub and `load_dataset` read."""
    return (
        "---\npretty_name: Rollouts\ntags:\n- trl\n- rollout-plugins\nconfigs:\n- config_name: default\n"
        f"  data_files:\n  - split: train\n    path: {exported.path.name}\n---"
    )


def rule_lines(rules: Rules, *, whole: bool) -> list[str]:
    """Return in words how rows were chosen."""
    if rules.kind == "sft":
        bound = f"at least {rules.threshold:g}" if rules.threshold is not None else "any value"
        lines = [f"The complete rollout of each group with the highest `{rules.by}`, {bound}; of equals the shortest."]
    elif rules.kind == "dpo":
        which = (
            "The best and the worst rollout of each group; of equals those that differ least in length."
            if rules.pairs == "best"
            else "Every pair of a group in which one is better."
        )
        lines = [f"{which} `{rules.by}` differs by {f'at least {rules.margin:g}' if rules.margin else 'any amount'}."]
    elif rules.kind == "kto":
        bound = f"at least {rules.threshold:g}" if rules.threshold is not None else "at least the mean of its group"
        lines = [f"`label` is true where `{rules.by}` is {bound}, and the rollout is complete."]
    else:
        lines = ["Each prompt once, with the columns of its dataset row."]
    if rules.kind in {"dpo", "kto"}:
        lines.append(
            "Completions are whole, results of tools included."
            if whole
            else "Turns that the answers share are part of the prompt; the answer is what the model wrote at the "
            "first turn that differs, up to the next result of a tool."
        )
    drawn = "no row was drawn at random" if rules.sample is None else f"at most {rules.sample:,}, seed {rules.seed}"
    return [*lines, "Rows with the content of an earlier row are left out.", f"Sample: {drawn}."]


def _left_out(exported: Exported) -> str:
    lines = [f"| {number:,} | {reason} |" for reason, number in exported.left_out.most_common() if number]
    if not lines:
        return "Nothing was left out."
    return "Left out (rollouts, unless the reason says rows):\n\n| | |\n|---:|---|\n" + "\n".join(lines)


def how_to_train(rules: Rules, exported: Exported, *, has_tools: bool, whole: bool) -> str:
    """Return what a trainer needs to be told, with the code that trains."""
    kind, place = rules.kind, repr(str(exported.path))
    load = (
        f'from datasets import load_dataset\n\ndataset = load_dataset("parquet", data_files={place}, split="train")\n'
    )
    if kind == "prompts":
        return _code(load + "# GRPOTrainer(..., train_dataset=dataset)")
    if kind == "sft":
        why = "Without `assistant_only_loss=True` the trainer also trains on what tools answered."
        return (
            why * has_tools
            + "\n\n" * has_tools
            + _code(load + "SFTTrainer(model, args=SFTConfig(assistant_only_loss=True), train_dataset=dataset)")
        )
    trained = "The trainer trains on every token after the prompt"
    note = f"{trained}, results of tools included." if whole and has_tools else f"{trained}; all of it is the model's."
    if kind == "dpo":
        return f"{note}\n\n" + _code(load + "DPOTrainer(model, args=DPOConfig(), train_dataset=dataset)")
    good, bad = exported.labels[True], exported.labels[False]
    weights = exported.advised_weights
    advice = (
        f"{good:,} rows are labelled true and {bad:,} false. Weights that balance them: "
        + " or ".join(f"`{name}={value:g}`" for name, value in weights.items() if value != 1.0)
        if weights and set(weights.values()) != {1.0}
        else f"{good:,} rows are labelled true and {bad:,} false."
    )
    options = "".join(f", {name}={value:g}" for name, value in weights.items() if value != 1.0)
    batch = "`per_device_train_batch_size` must be above 1, since the loss compares rows of a batch."
    return f"{note} {advice} {batch}\n\n" + _code(
        load + f"KTOTrainer(model, args=KTOConfig(per_device_train_batch_size=8{options}), train_dataset=dataset)"
    )


def rendering_lines(exported: Exported) -> list[str]:
    """Return whether the rows render to the token ids that were recorded."""
    if exported.kind == "prompts":
        return ["Prompts were not compared with recorded token ids."]
    if exported.checked is None:
        return [f"Not compared with recorded token ids: {exported.unchecked_reason}."]
    if not exported.differing:
        return [f"All {count(exported.checked, 'rollout')} render to the token ids that were recorded."]
    shown = exported.differing[:_SHOWN_IDS]
    more = len(exported.differing) - len(shown)
    head = (
        f"{len(exported.differing):,} of {count(exported.checked, 'rollout')} render to other token ids than recorded:"
    )
    return [head, "", *(f"- `{ident}`" for ident in shown), *([f"- and {more:,} more"] if more else [])]


def _code(text: str) -> str:
    return f"```python\n{text}\n```"
