"""Read facts about a TRL trainer that need no rollout: names, settings, tools, versions."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from rollout_plugins.content.rewards import shortest_float
from rollout_plugins.errors import SetupError
from rollout_plugins.hosts.kit.wrapping import beneath

logger = logging.getLogger("rollout_plugins")

_SETTINGS = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_length", "max_prompt_length",
    "max_new_tokens", "max_length", "lmbda", "seq_kd", "generate_from_teacher", "num_value_samples", "beta1", "beta2",
    "missing_eos_penalty", "teacher_model_name_or_path", "num_generations", "num_generations_eval", "num_iterations",
    "steps_per_generation",
    "gradient_accumulation_steps", "per_device_train_batch_size", "per_device_eval_batch_size",
    "max_tool_calling_iterations", "learning_rate", "beta", "loss_type", "scale_rewards", "reward_weights", "seed",
    "multi_objective_aggregation", "normalize_advantages", "reward_clip_range",
    "max_steps", "num_train_epochs", "logging_steps", "chat_template_kwargs", "generation_kwargs", "use_vllm",
    "report_to", "run_name", "project", "output_dir", "max_staleness", "token_budget", "weight_sync_steps",
    "max_inflight_tasks", "queue_maxsize", "fork_threshold_tokens", "teacher_top_k",
    # What a replay needs to compute the same loss.
    "epsilon", "epsilon_high", "delta", "importance_sampling_level", "multi_objective_aggregation",
    "mask_truncated_completions", "top_entropy_quantile", "entropy_coef", "use_adaptive_entropy",
    "sapo_temperature_neg", "sapo_temperature_pos", "vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg",
    "vespo_lambda_neg", "off_policy_mask_threshold", "use_bias_correction_kl", "vllm_importance_sampling_correction",
    "vllm_importance_sampling_mode", "vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min",
    "pad_to_multiple_of", "disable_dropout", "max_grad_norm", "gradient_checkpointing", "bf16", "fp16", "tf32",
    "use_liger_kernel",
)  # fmt: skip
_PACKAGES = ("rollout-plugins", "trl", "transformers", "torch", "accelerate", "datasets", "vllm")
_TRL_FLOOR: Final = (0, 22)
_LOG_COMPLETIONS_CAN_CRASH: Final = (1, 15)


@functools.cache  # a lookup takes most of a millisecond, and each run needs all versions
def installed(package: str) -> str | None:
    """Return the version of a distribution, whose metadata is more reliable than a module's `__version__`."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def tokenizer_of(trainer: Any) -> Any:
    """Return the trainer's tokenizer, taken out of its processor if it has one."""
    owner = getattr(trainer, "_tokenizer", None) or getattr(trainer, "processing_class", None)
    return getattr(owner, "tokenizer", None) or owner


def is_trls_own(trainer: Any, method: str) -> bool:
    """Return whether the method is TRL's own; a wrapper or an override has the globals of another module."""
    home = getattr(beneath(trainer, method), "__globals__", {}).get("__name__", "")
    return str(home).startswith(("trl.trainer.", "trl.extras."))


def reward_names(trainer: Any) -> tuple[str, ...]:
    """Return unique names of the reward functions: two lambdas are `<lambda>` and `<lambda>#2`."""
    names = getattr(trainer, "reward_func_names", None)
    if names is None:
        names = [getattr(f, "__name__", type(f).__name__) for f in getattr(trainer, "reward_funcs", ())]
    counts: Counter[str] = Counter()
    unique = []
    for name in map(str, names):
        counts[name] += 1
        unique.append(name if counts[name] == 1 else f"{name}#{counts[name]}")
    return tuple(unique)


def reward_weights(trainer: Any, count: int) -> list[float]:
    """Return the current reward weights, which a callback may change; rewards of environments have weight 1."""
    current: Any = getattr(trainer, "reward_weights", None)
    listed = list(map(shortest_float, current.tolist())) if hasattr(current, "tolist") else current
    weights = list(listed or getattr(trainer.args, "reward_weights", None) or [])
    return weights + [1.0] * (count - len(weights))


def unwrapped(function: Any) -> Any:
    """Return the function inside any `functools.partial`."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def describe_trl(trainer: Any) -> Mapping[str, Any]:
    """Return the facts that explain a TRL trainer's rollouts: tools, template, rewards, settings, versions."""
    args = trainer.args
    template = _template(trainer)
    names = reward_names(trainer)
    return {
        "trainer": type(trainer).__name__,
        "model": str(getattr(getattr(trainer.model, "config", None), "_name_or_path", "") or ""),
        "reward_names": names,
        "reward_weights": tuple(reward_weights(trainer, len(names))),
        "num_generations": getattr(trainer, "num_generations", None),
        "tools": tuple(tool_schemas(trainer)),
        "chat_template": template if isinstance(template, str) else None,
        "versions": {package: installed_version for package in _PACKAGES if (installed_version := installed(package))},
        "settings": {
            **{name: value for name in _SETTINGS if (value := getattr(args, name, None)) is not None},
            **_dtype(trainer),
        },
    }


def _dtype(trainer: Any) -> dict[str, str]:
    """Return the dtype of the model's weights, which a checkpoint may have in another type."""
    dtype = getattr(trainer.model, "dtype", None)
    return {} if dtype is None else {"model_dtype": str(dtype).removeprefix("torch.")}


def _template(trainer: Any) -> Any:
    owners = (trainer, getattr(trainer, "processing_class", None), tokenizer_of(trainer))
    return next((template for owner in owners if (template := getattr(owner, "chat_template", None))), None)


def tool_schemas(trainer: Any) -> list[Mapping[str, Any]]:
    """Return the JSON schemas that the chat template shows the model, including tools of environments."""
    tools = getattr(trainer, "tools", None) or ()
    return [_schema(tool) for tool in tools]


def _schema(tool: Any) -> Mapping[str, Any]:
    if isinstance(tool, dict):
        return tool
    try:
        from transformers.utils import get_json_schema

        return dict(get_json_schema(tool))
    except Exception as error:  # the chat template could not show such a tool either
        logger.debug("no JSON schema for tool %r: %r", tool, error)
        return {"type": "function", "function": {"name": str(getattr(tool, "__name__", tool))}}


def check_trl() -> None:
    trl_version = _trl_version()
    if trl_version is not None and trl_version < _TRL_FLOOR:
        floor = ".".join(map(str, _TRL_FLOOR))
        raise SetupError(
            f"trl {installed('trl')} is too old: rollout-plugins needs {floor} or newer; pip install -U trl"
        )


def _trl_version() -> tuple[int, ...] | None:
    text = installed("trl")
    return None if text is None else tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def warn_of_log_completions(trainer: Any) -> None:
    trl_version = _trl_version()
    if trl_version and trl_version >= _LOG_COMPLETIONS_CAN_CRASH and getattr(trainer.args, "log_completions", False):
        logger.warning(
            "log_completions=True: the completions table of trl %s ends training with an exception on ordinary tool "
            "calls and mixed content; every rollout is recorded here anyway, so set log_completions=False",
            installed("trl"),
        )
