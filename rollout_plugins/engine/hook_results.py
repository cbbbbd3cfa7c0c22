"""What hooks may return. Each reader gives the checked value, or raises what was wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollout_hookspecs import Rollout

from rollout_plugins.content.conform import unfit


def one(kind: type) -> Callable[[Any], Any]:
    """Accepts None or a value of this kind."""

    def read(result: Any) -> Any:
        if result is not None and not isinstance(result, kind):
            raise TypeError(f"returned {type(result).__name__}, expected {kind.__name__} or None")
        return result

    return read


def replacement(ident: str) -> Callable[[Any], Any]:
    """Accepts None or a rollout that replaces the one of this id."""

    def read(result: Any) -> Any:
        if one(Rollout)(result) is not None:
            _check(result, ident)
        return result

    return read


def _check(rollout: Rollout, ident: str) -> None:
    """A rollout that replaces another one has its id, and fields that hold what the contract says."""
    if rollout.id != ident:
        raise ValueError(f"changed the id to {rollout.id!r}")
    for name, kind in unfit(rollout).items():
        raise TypeError(f"returned a rollout whose {name} is of type {kind}")


def selection(result: Any, given: Sequence[Rollout]) -> list[Rollout] | None:
    """From `select_rollouts`: some of the rollouts it was given, each once."""
    if result is None:
        return None
    if isinstance(result, (str, Mapping)) or not isinstance(result, Sequence):
        raise TypeError(f"returned {type(result).__name__}, expected a list of rollouts or None")
    kept = list(result)
    known = {r.id for r in given}
    if not all(isinstance(r, Rollout) and r.id in known for r in kept):
        raise TypeError("returned something other than some of its rollouts")
    for rollout in kept:
        _check(rollout, rollout.id)
    return list({r.id: r for r in kept}.values())


def skip_reasons(plugin: Any) -> dict[str, str]:
    """Why a plugin left rollouts out, when it says so."""
    try:
        return {str(ident): str(why) for ident, why in plugin.skip_reasons.items()}
    except Exception:  # it does not have to
        return {}


def numbers(result: Any) -> tuple[dict[str, float], list[str]] | None:
    """From `rollout_metrics`: the numbers, and the names under which there was none."""
    if result is None:
        return None
    if not isinstance(result, Mapping):
        raise TypeError(f"returned {type(result).__name__}, expected a dict of numbers or None")
    found, odd = {}, []
    for name, value in result.items():
        try:
            found[str(name)] = float(value)
        except Exception:
            odd.append(str(name))
    return found, odd


def headlines(plugin: Any) -> frozenset[str] | None:
    """Which of a plugin's numbers the log has by default; None for all of them."""
    try:
        return None if plugin.headlines is None else frozenset(plugin.headlines)
    except Exception:  # it does not have to say
        return None


def hosts(result: Any) -> list[Any] | None:
    """From `register_hosts`: adapters."""
    found = None if result is None else list(result)
    for host in found or ():
        if not all(hasattr(host, name) for name in ("name", "matches", "attach", "describe")):
            raise TypeError(f"returned {type(host).__name__}, which is not a Host")
    return found
