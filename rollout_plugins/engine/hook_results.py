"""Check what hooks returned. Each reader returns the checked value, or raises with what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from rollout_hookspecs import Finding, Outcome, Rollout, Severity, Verdict

from rollout_plugins.content.conform import nonconforming_fields

SEVERITIES = get_args(Severity)
OUTCOMES = get_args(Outcome)


def one(kind: type) -> Callable[[Any], Any]:
    """Return a reader that accepts None or a value of type `kind`."""

    def read(result: Any) -> Any:
        if result is not None and not isinstance(result, kind):
            raise TypeError(f"returned {type(result).__name__}, expected {kind.__name__} or None")
        return result

    return read


def replacement(rollout_id: str) -> Callable[[Any], Any]:
    """Return a reader that accepts None or a rollout with the id `rollout_id`."""

    def read(result: Any) -> Any:
        if one(Rollout)(result) is not None:
            _check(result, rollout_id)
        return result

    return read


def _check(rollout: Rollout, rollout_id: str) -> None:
    """Raise unless the rollout has the id `rollout_id` and fields of the types in the contract."""
    if rollout.id != rollout_id:
        raise ValueError(f"changed the id to {rollout.id!r}")
    for name, kind in nonconforming_fields(rollout).items():
        raise TypeError(f"returned a rollout whose {name} is of type {kind}")


def selection(result: Any, candidates: Sequence[Rollout]) -> list[Rollout] | None:
    """Return the result of `select_rollouts`: a list of some of the `candidates`, each once."""
    if result is None:
        return None
    if isinstance(result, (str, Mapping)) or not isinstance(result, Sequence):
        raise TypeError(f"returned {type(result).__name__}, expected a list of rollouts or None")
    selected = list(result)
    ids = {r.id for r in candidates}
    if not all(isinstance(r, Rollout) and r.id in ids for r in selected):
        raise TypeError("returned items that are not among the rollouts it received")
    for rollout in selected:
        _check(rollout, rollout.id)
    return list({r.id: r for r in selected}.values())


def skip_reasons(plugin: Any) -> dict[str, str]:
    """Return reason a plugin deselected rollouts, by rollout id, if it says so."""
    try:
        return {str(rollout_id): str(reason) for rollout_id, reason in plugin.skip_reasons.items()}
    except Exception:  # the attribute is optional
        return {}


def findings(result: Any) -> list[Finding]:
    """Return the findings that a check returned; raise if one of them cannot be stored."""
    results = [] if result is None else list(result)
    for finding in results:
        if not isinstance(finding, Finding):
            raise TypeError(f"returned {type(finding).__name__}, expected Finding")
        if finding.severity not in SEVERITIES:
            raise TypeError(f"gave a finding of severity {finding.severity!r}; give one of {', '.join(SEVERITIES)}")
        if not all(isinstance(text, str) and text for text in (finding.check, finding.title, finding.text)):
            raise TypeError("gave a finding whose check, title or text is not a text")
        if not all(type(step) is int for step in finding.steps):
            raise TypeError("gave a finding whose steps are not integers")
        if isinstance(finding.rollouts, str) or not all(
            isinstance(rollout_id, str) for rollout_id in finding.rollouts
        ):
            raise TypeError("gave a finding whose rollouts are not a list of ids")
    return results


def verdicts(result: Any) -> list[Verdict]:
    """Return the result of `check_run` as a list; raise if an item is not a verdict."""
    results = [result] if isinstance(result, Verdict) else [] if result is None else list(result)
    for verdict in results:
        if not isinstance(verdict, Verdict):
            raise TypeError(f"returned {type(verdict).__name__}, expected Verdict")
        if verdict.verdict not in OUTCOMES:
            raise TypeError(f"gave the verdict {verdict.verdict!r}; give one of {', '.join(OUTCOMES)}")
        if not verdict.findings and verdict.verdict == "found":
            raise TypeError("gave the verdict 'found' without findings")
        findings(verdict.findings)
    return results


def numbers(result: Any) -> tuple[dict[str, float], list[str]] | None:
    """Return the metrics from `rollout_metrics`, and the names whose value is not a number."""
    if result is None:
        return None
    if not isinstance(result, Mapping):
        raise TypeError(f"returned {type(result).__name__}, expected a dict of numbers or None")
    metrics, invalid_names = {}, []
    for name, value in result.items():
        try:
            metrics[str(name)] = float(value)
        except Exception:
            invalid_names.append(str(name))
    return metrics, invalid_names


def headlines(plugin: Any) -> frozenset[str] | None:
    """Return which of a plugin's metrics are logged by default; None for all of them."""
    try:
        return None if plugin.headlines is None else frozenset(plugin.headlines)
    except Exception:  # the attribute is optional say
        return None


def hosts(result: Any) -> list[Any] | None:
    """Return the hosts from `register_hosts`; raise if one is not a host."""
    hosts = None if result is None else list(result)
    for host in hosts or ():
        if not all(hasattr(host, name) for name in ("name", "matches", "attach", "describe")):
            raise TypeError(f"returned {type(host).__name__}, which is not a Host")
    return hosts
