"""What plugins receive: frozen records, changed with `dataclasses.replace`.

Ownership: a record and everything inside it (message dicts above all) is shared between all plugins, the store
and the sinks. Replace, never mutate: build a new dict or list and put it in a new record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Message = Mapping[str, Any]
Split = Literal["train", "eval"]
Finish = Literal["stop", "length", "tool_limit", "error", "unknown"]
ToolStatus = Literal["ok", "error", "unknown", "not_run"]
Scope = Literal["global", "rank", "stream"]
#: Of a rollout's one line: how long it may be, how much of the answer is in it, and numbers that are too long for it.
_LINE, _WORDS, _HUGE = 300, 60, 1e300


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that left the messages: which one it was, and where its pixels are."""

    hash: str
    """Hash of what it shows (of the file, if that has further frames or more than 8 bits; of a URL not fetched)."""
    path: str | None = None
    """File inside the run's folder (`media/<hash>.<ext>`); None when the pixels were not kept."""
    uri: str | None = None
    """Where the image came from, for remote URLs and local paths."""
    width: int | None = None
    """Width of the original in pixels."""
    height: int | None = None
    """Height of the original in pixels."""
    note: str | None = None
    """What is missing, or other than it was; None when kept as it was."""

    def __str__(self) -> str:
        return "[IMAGE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholder:
    """Stands where a value was that could not be kept; the record around it is whole."""

    type: str
    """Qualified type name of the value."""
    where: str
    """Path of the value inside its field, for example `[2].arguments.x`."""
    why: str
    """Reason in a few words."""
    preview: str = ""
    """The first characters of its repr, when it has one."""

    def __str__(self) -> str:
        return f"[{self.type}: {self.why}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call the model asked for, with what became of it."""

    name: Any
    """Tool name as the model wrote it (a str unless the model wrote something else)."""
    arguments: Any
    """Arguments with their JSON types, as the model wrote them."""
    turn: int = 0
    """Index in `Rollout.completion` of the message that asked."""
    position: int = 0
    """Index of the call inside that message."""
    reply: int | None = None
    """Index in `Rollout.completion` of the message that answered; None when nothing did."""
    result: Any = None
    """What the model was shown: the answering message's content."""
    error: str | None = None
    """Error text when the call failed or was not run."""
    status: ToolStatus = "ok"
    """`ok`, `error` (it raised), `unknown` (no such tool), `not_run` (cut by a limit or rolled back)."""
    seconds: float | None = None
    """Wall time of the call; None when it was not observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Token-level data, kept only with `tokens=True`. All lists that are present align with their ids."""

    prompt: Sequence[int] | None = None
    """Prompt token ids."""
    completion: Sequence[int] | None = None
    """Completion token ids, tool results included."""
    mask: Sequence[int] | None = None
    """1 where the model wrote the completion token, 0 where a tool or environment did."""
    logprobs: Sequence[float] | None = None
    """Log-probabilities of the sampler."""
    trainer_logprobs: Sequence[float] | None = None
    """Log-probabilities the trainer computed for the same tokens."""
    reference_logprobs: Sequence[float] | None = None
    """Log-probabilities of the reference model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One answer to one prompt: what was asked, said, called, scored and learned."""

    id: str
    """Unique over ranks, splits, attempts and resumes; the same rollout always has the same id."""
    run_id: str = ""
    """The run it belongs to."""
    attempt: int = 1
    """1 for the first start of the run, one more for each resume or restart."""
    split: Split = "train"
    """`train` or `eval`."""
    step: int = 0
    """The optimizer step it (first) trains; for eval, the step at which it was evaluated."""
    policy_step: int | None = None
    """How many updates the generating weights had."""
    generation: int = 0
    """Number of the generation batch in this run, from 0."""
    rank: int = 0
    """Process that made it."""
    index: int = 0
    """Place in the generation batch over all ranks."""
    group: int = 0
    """Number of the prompt's group in the generation batch over all ranks."""
    group_size: int = 1
    """Rollouts that share this prompt."""
    time: float = 0.0
    """Unix time when the generation ended."""
    prompt: tuple[Any, ...] = ()
    """Messages the model was given (dicts, unless the host had something else)."""
    completion: tuple[Any, ...] = ()
    """Messages the rollout added: answers, tool calls, tool results."""
    prompt_is_text: bool = False
    """The host's prompt was a plain string; it is the content of the one message in `prompt`."""
    completion_is_text: bool = False
    """The host's completion was a plain string; it is the content of the one message in `completion`."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Every call the model asked for, in order."""
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    """Reward per function; None means that function gave none (0.0 and NaN are numbers it gave)."""
    reward: float | None = None
    """The weighted sum the host used; None when no function gave one."""
    advantage: float | None = None
    """The advantage the host trained with."""
    prompt_tokens: int | None = None
    """Number of prompt tokens."""
    completion_tokens: int | None = None
    """Number of tokens the model wrote; tool results are not counted."""
    finish: Finish = "unknown"
    """Why it ended: `stop`, `length`, `tool_limit`, `error` or `unknown`."""
    images: tuple[Image, ...] = ()
    """Images that left the messages, in order of appearance."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The rest of the dataset row (answer, solution, …)."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What reward functions gave to `log_extra`, and what else the host knew of it."""
    rendered: str | None = None
    """The exact templated prompt text, kept only with `rendered=True`."""
    tokens: Tokens | None = None
    """Token ids, mask and log-probabilities, kept only with `tokens=True`."""
    error: str | None = None
    """What went wrong with this rollout, if anything did."""
    marks: Mapping[str, str] = field(default_factory=dict)
    """Notes by plugins and the library: why it was kept or skipped for the sinks, and the like."""

    def __repr__(self) -> str:
        facts = [f"{self.split} step {self.step}", f"group {self.group}", f"#{self.index}"]
        if isinstance(self.reward, (int, float)) and not abs(self.reward) >= _HUGE:
            facts.append(f"reward {round(float(self.reward), 3) or f'{self.reward:.3g}'}")
        if self.tool_calls:
            facts.append(f"{len(self.tool_calls)} tool call{'s' * (len(self.tool_calls) > 1)}")
        line = f"<Rollout {self.id}: {', '.join([*facts, self.finish, *_last_words(self.completion)])}"[:_LINE] + ">"
        return line if line.isprintable() else ascii(line)[1:-1]

    def _repr_html_(self) -> str | None:
        return draw_rollout(self) if draw_rollout else None


draw_rollout: Callable[[Rollout], str] | None = None
"""What a notebook shows of a rollout; rollout_plugins sets it, as the contract itself draws nothing."""


def _last_words(completion: Sequence[Any]) -> Sequence[str]:
    """The beginning of the last text the model wrote, quoted."""
    said = [one.get("content") for one in completion if type(one) is dict and one.get("role") == "assistant"]
    texts = [text for text in said if isinstance(text, str) and text]
    return [repr(texts[-1] if len(texts[-1]) <= _WORDS else texts[-1][:_WORDS] + "…")] if texts else []


class Columns(Protocol):
    """The rollouts of one generation batch, field by field."""

    def __len__(self) -> int:
        """How many rollouts there are."""

    def __getitem__(self, name: str, /) -> Sequence[Any]:
        """What a field of `Rollout` holds in each of them, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The generation batch the hooks are being called for."""

    split: Split = "train"
    """`train` or `eval`."""
    step: int = 0
    """Optimizer step the batch (first) trains."""
    generation: int = 0
    """Number of the generation batch in this run, from 0."""
    rank: int = 0
    """This process."""
    world_size: int = 1
    """Number of processes."""
    seen: int = 0
    """Rollouts handed to this process's hooks in this batch, before anything was left out."""
    gathered: bool = True
    """Whether these are the rollouts of all ranks, or this rank's alone."""
    dataset: str = ""
    """Which of several evaluation datasets these are of; each rollout has it in `marks`, too."""
    evaluation: int = 0
    """Number of the evaluation, from 1: several may be at one step. 0 in training, and where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Facts of a run, kept once."""

    id: str
    """Run id; all ranks agree on it."""
    attempt: int = 1
    """Which start of the run this is."""
    dir: str = ""
    """The run's folder."""
    name: str = ""
    """Name of the trainer's output folder, so that the run is still called by it in another place."""
    rank: int = 0
    """This process."""
    world_size: int = 1
    """Number of processes."""
    trainer: str = ""
    """Class of the host trainer."""
    host: str = ""
    """Name of the host adapter that observed it."""
    model: str = ""
    """Name or path of the model."""
    reward_names: tuple[str, ...] = ()
    """Reward functions, in the host's order, names made unique."""
    reward_weights: tuple[float, ...] = ()
    """Their weights, in the same order."""
    num_generations: int | None = None
    """Rollouts per prompt in training."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """JSON schemas of the tools, as the chat template got them."""
    chat_template: str | None = None
    """The chat template in use."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the libraries involved."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Generation and training settings that explain the rollouts."""
    resumed_from: int | None = None
    """Step of the checkpoint this attempt started from; None for a fresh start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A rollout as sinks take it: plain JSON values only."""

    rollout_id: str
    """Id of the rollout it shows."""
    messages: tuple[Mapping[str, Any], ...]
    """OpenAI-style messages; tool calls and their results share ids. An image block holds an `Image`."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Flat facts to search and filter by."""
    spans: tuple[Mapping[str, Any], ...] = ()
    """One span per tool call: id, name, kind, input, output, status, error, duration_ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """What a plugin shows of a rollout in the viewer and the report: text, a table, an image, or several of them."""

    title: str = ""
    """A short heading."""
    text: str = ""
    """Shown as it is, in a fixed-width font: a board, a plot of characters, code."""
    table: Sequence[Sequence[Any]] = ()
    """Rows of cells; the first row is the header."""
    image: Image | bytes | None = None
    """An image of the run, or the bytes of a PNG, JPEG, GIF or WebP file."""
    turn: int | None = None
    """Index in `Rollout.completion` of the message it follows; None puts it above the conversation."""
    replaces: bool = False
    """It stands in place of that message, which can still be unfolded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a host hands over: one generation batch of one rank, snapshot taken, work still to do."""

    build: Callable[[], Sequence[Rollout]]
    """Makes the rollouts; called once, on the worker thread. Run, attempt, generation and id are filled in later."""
    split: Split = "train"
    """`train` or `eval`."""
    step: int = 0
    """Optimizer step the batch (first) trains."""
    count: int = 0
    """How many of this rank's rollouts `build` will make."""
    bytes: int = 0
    """Rough size of the snapshot, for the queue's bound."""
    gathered: bool = False
    """Whether `build` also yields the other ranks' rollouts, for this rank's sinks."""
    seconds: float = 0.0
    """What taking the snapshot cost the training thread."""
    dataset: str = ""
    """Which of several evaluation datasets; filled in later."""
    evaluation: int = 0
    """Number of the evaluation; filled in later."""


class Emit(Protocol):
    """Where a host hands over what it observed. Never raises, never waits."""

    def __call__(self, batch: Batch) -> None:
        """Hand over one generation batch."""

    def lost(self, reason: str, count: int) -> None:
        """Say that rollouts existed which could not be recorded."""

    def untrained(self, reason: str, count: int, step: int | None = None) -> None:
        """Say how many of the rollouts that were emitted were not trained on, and why.

        With their `step`, they are not counted any more once a resumed training does that step again.
        """

    def waits(self, count: int, hand_over: Callable[[], object]) -> None:
        """Say how many rollouts the host keeps back by now, for example until they are scored.

        When the run ends before, however it ends, `hand_over` is called, which emits them. What went with the trainer
        by then is counted.
        """


class Host(Protocol):
    """Knows one family of trainers: where its rollouts exist, and how to observe them.

    A third party gives one through the `register_hosts` hook. `attach` wraps methods on the instance, never on
    the class, changes nothing the trainer computes, and returns a function that takes the wrappers off.
    """

    name: str
    """Shown to people."""

    def matches(self, trainer: Any) -> bool:
        """Whether this host knows the trainer. Must not import the trainer's library."""

    def attach(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> Callable[[], None]:
        """Start observing, and call `emit` with a `Batch` after each generation.

        `options` holds `tokens` and `gather` (bool) and `rendered` (a tokenizer for the worker thread, or None).
        """

    def describe(self, trainer: Any) -> Mapping[str, Any]:
        """Facts for `Run`, by field name; called when the run starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """One trainer, and what is recorded of its rollouts. What a trainer doesn't have is None in the rollout."""

    trainer: str
    """Class of the trainer."""
    messages: Literal["as they were", "decoded completions", "decoded text"] = "as they were"
    """Whether prompt and completion are the trainer's own messages, or text decoded from its token ids."""
    rewards: Literal["each function", "sum", "none"] = "each function"
    """What is known of rewards."""
    advantage: bool = False
    """Whether the trainer has advantages."""
    tools: bool = False
    """Whether it calls tools, and the calls are recorded with their outcomes."""
    images: bool = False
    """Whether images in its messages are recorded."""
    groups: bool = False
    """Whether several answers to one prompt stand in one group."""
    evaluation: bool = False
    """Whether evaluation makes rollouts, and they are recorded under `eval`."""
    lengths: Literal["prompt and completion", "completion", "with tokens=True"] = "prompt and completion"
    """Which numbers of tokens, and with them why a completion ended, are known without `tokens=True`."""
    logprobs: Literal["", "sampler", "trainer", "sampler, trainer and reference"] = ""
    """Log-probabilities that `tokens=True` keeps, where the trainer has them; the ids are kept for all."""
    since: str = "1.16"
    """Oldest TRL, or other package with its name, on which the host's tests ran."""
    until: str = ""
    """Newest TRL that has this trainer, or has it in this form."""
    note: str = ""
    """What a person should know besides."""

    @property
    def is_of_trl(self) -> bool:
        return " " not in self.since


class HostDetails(Host, Protocol):
    """What a host may have besides. Each member has a default, so a `Host` without any of them is complete."""

    supports: Sequence[Support] = ()
    """The trainers it knows, and what is recorded of each."""

    def missing(self, trainer: Any) -> Sequence[str]:
        """What the trainer lacks to be one of these, in words such as "has no method generate"; empty if nothing.

        Of several hosts that match a trainer, one from which nothing is missing observes it. For a trainer that no
        host matches, a warning names the host from which the least is missing.
        """
        return ()

    def recover(self, trainer: Any, count: int) -> Batch | None:
        """The trainer's last `count` rollouts, made before `attach`; None if they cannot be known any more.

        Called when an evaluation had generated its first batch before the callback could attach.
        """
        return None


class Plugin(Protocol):
    """What a plugin may have besides hooks. Each attribute has a default, so a plugin without any is complete."""

    name: str = ""
    """Its name in logs, counts and marks, if it was passed as an object; by default its class's, in lower case."""
    required: bool = False
    """True: whatever its `on_rollout` has not seen is neither stored nor sent."""
    skips_text: bool = False
    """True: its `on_rollout` need not see rollouts that hold nothing but text and numbers, which is most of them."""
    skip_reasons: Mapping[str, str] = {}
    """By rollout id, why its last `select_rollouts` left that rollout out."""
    alerts: Sequence[str] = ()
    """A list of warnings; after each `rollout_metrics` they are taken out of it and given to the sinks' `alert`."""

    headlines: Collection[str] | None = None
    """Names of its numbers that the log has by default, and only while they are not 0; None: all, zeros too."""
    verbose: bool = False
    """True: the log has every number of every plugin, and what recording costs."""
    seal_seconds: float | None = None
    """How old a journal may get before it becomes a Parquet file, which does not change any more; None: any age."""
    require_redact: bool | None = None
    """For plugins that take a run's files away. True: needs a `required` plugin; False: warns if there is none."""

    def clean(self, value: Any) -> Any:
        """For `required` plugins: what may leave of a value that is not a rollout, of the same type; None keeps it."""
        return None

    def bind(self, trainer: Any) -> None:
        """Called on the training thread before a run starts; the trainer is None where there is a recorder instead."""
        return


class Sink(Plugin, Protocol):
    """What a plugin that implements `export_traces` may have, too. That hook alone is a complete sink."""

    scope: Scope = "global"
    """`global`: rank 0 sends for all; `rank`: each rank sends its own; `stream`: its own, whatever was selected."""
    target: str | None = None
    """Where it sends to, the same text for the same place, such as `jsonl:/data/lines`: nothing goes there twice."""
    report_to: str = ""
    """The name in the trainer's `report_to` that the sink stands for, such as `mlflow`. An installed sink that has one
    runs if the trainer reports there, or if it is asked for by name; and `cap` limits what it is sent."""

    def open(self) -> None:
        """Connect, so that `target` names the place; called before `target` is read."""
        return

    def received(self) -> Collection[str] | None:
        """Ids of the rollouts that are in the place; None where it cannot be asked. Exports leave those out."""
        return None

    def gone(self) -> int:
        """How many rollouts that had arrived were removed from the place since this was last asked."""
        return 0

    def alert(self, title: str, text: str) -> None:
        """Show a warning the way the destination does."""
        return
