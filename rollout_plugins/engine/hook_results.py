"""What hooks may return. Each reader gives the checked value, or raises what was wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from rollout_hookspecs import Finding, Outcome, Rollout, Severity, Verdict

from rollout_plugins.content.conform import nonconforming_fields

SEVERITIES = get_args(Severity)
OUTCOMES = get_args(Outcome)


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
    for name, kind in nonconforming_fields(rollout).items():
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


def findings(result: Any) -> list[Finding]:
    """Return what a check gave, or raise if any of it is not a finding that can be stored."""
    given = [] if result is None else list(result)
    for finding in given:
        if not isinstance(finding, Finding):
            raise TypeError(f"returned {type(finding).__name__}, expected Finding")
        if finding.severity not in SEVERITIES:
            raise TypeError(f"gave a finding of severity {finding.severity!r}; give one of {', '.join(SEVERITIES)}")
        if not all(isinstance(text, str) and text for text in (finding.check, finding.title, finding.text)):
            raise TypeError("gave a finding whose check, title or text is not a text")
        if not all(type(step) is int for step in finding.steps):
            raise TypeError("gave a finding whose steps are not integers")
        if isinstance(finding.rollouts, str) or not all(isinstance(ident, str) for ident in finding.rollouts):
            raise TypeError("gave a finding whose rollouts are not a list of ids")
    return given


def verdicts(result: Any) -> list[Verdict]:
    """Return what `check_run` gave as a list, or raise if any of it is not a verdict."""
    given = [result] if isinstance(result, Verdict) else [] if result is None else list(result)
    for verdict in given:
        if not isinstance(verdict, Verdict):
            raise TypeError(f"returned {type(verdict).__name__}, expected Verdict")
        if verdict.verdict not in OUTCOMES:
            raise TypeError(f"gave the verdict {verdict.verdict!r}; give one of {', '.join(OUTCOMES)}")
        if not verdict.findings and verdict.verdict == "found":
            raise TypeError("gave the verdict 'found' without findings")
        findings(verdict.findings)
    return given


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
