"""`rollouts demo`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from rollout_plugins.errors import need


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("--out", default="outputs/demo", help="where to train (default: outputs/demo)")
    parser.add_argument("--steps", type=int, help="how many steps to train")


def run(options: Namespace) -> None:
    for module in ("torch", "trl"):
        need(module, "demo")
    from rollout_plugins.demo import show

    show.run(options.out, **({} if options.steps is None else {"steps": options.steps}))
