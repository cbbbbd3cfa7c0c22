"""The records that plugins receive and return, and the protocols of hosts, plugins and sinks.

Records are frozen: change one with `dataclasses.replace`. A record and everything in it, such as the dicts of its
messages, is shared by all plugins, the store and the sinks, so build a new dict or list instead of changing one.
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
Severity = Literal["info", "warning", "severe"]
Outcome = Literal["found", "clear", "unobserved"]
#: Limits of `repr(rollout)`: characters in all, characters of the answer, and the largest reward that is printed.
_REPR_LENGTH, _ANSWER_LENGTH, _LARGEST_REWARD = 300, 60, 1e300


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that was moved from the messages of a rollout into a file."""

    hash: str
    """Hash of the pixels; of the file if it has several frames or over 8 bits; of the URL if it was not fetched."""
    path: str | None = None
    """File in the run's folder (`media/<hash>.<ext>`); None if the pixels were not stored."""
    uri: str | None = None
    """The URL or local path that the image came from."""
    width: int | None = None
    """Width of the original in pixels."""
    height: int | None = None
    """Height of the original in pixels."""
    note: str | None = None
    """What is missing or was changed; None if the image was stored unchanged."""

    def __str__(self) -> str:
        return "[IMAGE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholder:
    """Replaces a value that could not be stored. The rest of the record is complete."""

    type: str
    """Qualified type name of the value."""
    where: str
    """Path of the value in its field, for example `[2].arguments.x`."""
    why: str
    """Short reason why it could not be stored."""
    preview: str = ""
    """The first characters of its repr, if it has one."""

    def __str__(self) -> str:
        return f"[{self.type}: {self.why}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call that the model requested, and its outcome."""

    name: Any
    """Tool name exactly as the model wrote it, so usually but not always a str."""
    arguments: Any
    """Arguments as the model wrote them, with their JSON types."""
    turn: int = 0
    """Index in `Rollout.completion` of the message that contains the call."""
    position: int = 0
    """Index of the call among the calls of that message."""
    reply: int | None = None
    """Index in `Rollout.completion` of the message that answers the call; None if there is no answer."""
    result: Any = None
    """The result that the model received: the content of the answering message."""
    error: str | None = None
    """Error text if the call failed or did not run."""
    status: ToolStatus = "ok"
    """`ok`, `error` (the tool raised), `unknown` (no such tool), or `not_run` (cut by a limit, or rolled back)."""
    seconds: float | None = None
    """Wall time of the call; None if it was not observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Token-level data of a rollout, recorded only with `tokens=True`. Each list has one entry per token id."""

    prompt: Sequence[int] | None = None
    """Prompt token ids."""
    completion: Sequence[int] | None = None
    """Completion token ids, tool results included."""
    mask: Sequence[int] | None = None
    """1 for each completion token that the model wrote, 0 for each that came from a tool or an environment."""
    logprobs: Sequence[float] | None = None
    """Log-probabilities that the sampler computed."""
    trainer_logprobs: Sequence[float] | None = None
    """Log-probabilities that the trainer computed for the same tokens."""
    reference_logprobs: Sequence[float] | None = None
    """Log-probabilities that the reference model gives the same tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One completion of one prompt, with its messages, tool calls, rewards and advantage."""

    id: str
    """Unique across ranks, splits and attempts. A rollout keeps its id wherever it is stored or sent."""
    run_id: str = ""
    """Id of the run."""
    attempt: int = 1
    """1 for the first start of the run, and one more for each resume or restart."""
    split: Split = "train"
    """`train` or `eval`."""
    step: int = 0
    """The (first) optimizer step that trains on it; for `eval`, the step at which the evaluation ran."""
    policy_step: int | None = None
    """Number of optimizer updates that the weights had when they generated it; None if unknown."""
    generation: int = 0
    """Number of the generation batch in this run, from 0."""
    rank: int = 0
    """Rank of the process that generated it."""
    index: int = 0
    """Position in the generation batch of all ranks."""
    group: int = 0
    """Number of its group in the generation batch of all ranks. A group is the rollouts of one prompt."""
    group_size: int = 1
    """Number of rollouts in the group."""
    time: float = 0.0
    """Unix time when the generation ended."""
    prompt: tuple[Any, ...] = ()
    """Messages that the model received: dicts, unless the trainer has another type."""
    completion: tuple[Any, ...] = ()
    """Messages that were generated: answers, tool calls and tool results."""
    prompt_is_text: bool = False
    """Whether the trainer's prompt was a plain string: the content of the only message in `prompt`."""
    completion_is_text: bool = False
    """Whether the trainer's completion was a plain string: the content of the only message in `completion`."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Every tool call that the model requested, in order."""
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    """Reward by function; None if that function returned None (0.0 and NaN are rewards)."""
    reward: float | None = None
    """The weighted sum that the trainer used; None if no function returned a reward."""
    advantage: float | None = None
    """The advantage that the trainer used."""
    prompt_tokens: int | None = None
    """Number of prompt tokens."""
    completion_tokens: int | None = None
    """Number of completion tokens that the model wrote, without tool results."""
    finish: Finish = "unknown"
    """Why generation ended: `stop`, `length`, `tool_limit`, `error` or `unknown`."""
    images: tuple[Image, ...] = ()
    """Images that were moved from the messages into files, in order of appearance."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The other columns of the dataset row, such as `answer`."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What reward functions passed to `log_extra`, and other values that the host recorded."""
    rendered: str | None = None
    """The prompt as text after the chat template, recorded only with `rendered=True`."""
    tokens: Tokens | None = None
    """Token ids, mask and log-probabilities, recorded only with `tokens=True`."""
    error: str | None = None
    """The error that affected this rollout, if any."""
    marks: Mapping[str, str] = field(default_factory=dict)
    """Notes by plugins and by the library, for example why it was selected for the sinks or skipped."""

    def __repr__(self) -> str:
        parts = [f"{self.split} step {self.step}", f"group {self.group}", f"#{self.index}"]
        if isinstance(self.reward, (int, float)) and not abs(self.reward) >= _LARGEST_REWARD:
            parts.append(f"reward {round(float(self.reward), 3) or f'{self.reward:.3g}'}")
        if self.tool_calls:
            parts.append(f"{len(self.tool_calls)} tool call{'s' * (len(self.tool_calls) > 1)}")
        line = f"<Rollout {self.id}: {', '.join([*parts, self.finish, *_quote_answer(self.completion)])}"
        line = line[:_REPR_LENGTH] + ">"
        return line if line.isprintable() else ascii(line)[1:-1]

    def _repr_html_(self) -> str | None:
        return draw_rollout(self) if draw_rollout else None


draw_rollout: Callable[[Rollout], str] | None = None
"""Returns the HTML that a notebook shows for a rollout. `rollout_plugins` sets it."""


def _quote_answer(completion: Sequence[Any]) -> Sequence[str]:
    """Return the beginning of the last text that the model wrote, quoted; or nothing if it wrote no text."""
    contents = [m.get("content") for m in completion if type(m) is dict and m.get("role") == "assistant"]
    texts = [text for text in contents if isinstance(text, str) and text]
    if not texts:
        return []
    last = texts[-1]
    return [repr(last if len(last) <= _ANSWER_LENGTH else last[:_ANSWER_LENGTH] + "…")]


class Columns(Protocol):
    """The rollouts of one generation batch as columns, one for each field of `Rollout`."""

    def __len__(self) -> int:
        """Return the number of rollouts."""

    def __getitem__(self, name: str, /) -> Sequence[Any]:
        """Return the values of the field `name` in the order of the rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The generation batch for which a hook is called."""

    split: Split = "train"
    """`train` or `eval`."""
    step: int = 0
    """The (first) optimizer step that trains on the batch."""
    generation: int = 0
    """Number of the generation batch in this run, from 0."""
    rank: int = 0
    """Rank of this process."""
    world_size: int = 1
    """Number of processes."""
    seen: int = 0
    """Number of rollouts of the batch that reached the hooks of this process, before any was dropped or deselected."""
    gathered: bool = True
    """True if the batch has the rollouts of all ranks, False if it has only those of this rank."""
    dataset: str = ""
    """Name of the evaluation dataset if there are several. Each rollout also has it in `marks`."""
    evaluation: int = 0
    """Number of the evaluation, from 1, because one step may have several. 0 during training, or if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run: its folder, its trainer and model, and the settings that explain its rollouts."""

    id: str
    """Id of the run, the same on all ranks."""
    attempt: int = 1
    """Number of this start of the run: 1 for the first, and one more for each resume or restart."""
    dir: str = ""
    """The run's folder."""
    name: str = ""
    """Name of the trainer's output folder, which names the run even after its files were moved."""
    rank: int = 0
    """Rank of this process."""
    world_size: int = 1
    """Number of processes."""
    trainer: str = ""
    """Class of the trainer."""
    host: str = ""
    """Name of the host that observes the trainer."""
    model: str = ""
    """Name or path of the model."""
    reward_names: tuple[str, ...] = ()
    """Names of the reward functions in the trainer's order, made unique."""
    reward_weights: tuple[float, ...] = ()
    """Weights of the reward functions, in the same order."""
    num_generations: int | None = None
    """Number of rollouts for each prompt in training."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """JSON schemas of the tools, as the chat template receives them."""
    chat_template: str | None = None
    """The chat template that the trainer uses."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the installed libraries that affect the run, by package name."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Generation and training settings that explain the rollouts."""
    resumed_from: int | None = None
    """Step of the checkpoint from which this attempt started; None if it started from the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A rollout in the form that sinks receive, which has only JSON values."""

    rollout_id: str
    """Id of the rollout."""
    messages: tuple[Mapping[str, Any], ...]
    """Messages in OpenAI's format. A tool call and its result have the same id; an image block contains an `Image`."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Flat values by which to search and filter, such as the step and the reward."""
    spans: tuple[Mapping[str, Any], ...] = ()
    """One span for each tool call, with id, name, kind, input, output, status, error and duration_ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """What a plugin adds to a rollout in the viewer and the report: text, a table, an image, or several of these."""

    title: str = ""
    """A short title."""
    text: str = ""
    """Text that is shown unmodified in a fixed-width font: a board, a character plot, code."""
    table: Sequence[Sequence[Any]] = ()
    """Rows of cells, of which the first is the header."""
    image: Image | bytes | None = None
    """An image of the run, or the bytes of a PNG, JPEG, GIF or WebP file."""
    turn: int | None = None
    """Index in `Rollout.completion` of the message that the panel follows; None puts it above the conversation."""
    replaces: bool = False
    """True: the panel replaces that message, which can still be expanded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is wrong with a run, with its numbers and the rollouts that prove it."""

    check: str
    """Name of the check that found it."""
    title: str
    """What is wrong, in a few words. A finding with the same check and title as an earlier one is not reported again,
    so the title contains no numbers that change from step to step."""
    text: str
    """What is wrong, in one sentence with its numbers."""
    severity: Severity = "warning"
    """`info` (good to know), `warning` (look at it) or `severe` (the training is not doing what it should)."""
    steps: Sequence[int] = ()
    """Steps at which it shows, the first one first."""
    rollouts: Sequence[str] = ()
    """Ids of rollouts that show it: a few good examples, not all of them."""
    turn: int | None = None
    """Index in `Rollout.completion` of the message that shows it, in the first of the rollouts."""
    token: int | None = None
    """Index in `Tokens.completion` of the token that shows it, in the first of the rollouts."""
    advice: str = ""
    """What to do next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one check concluded about a run. A check that had nothing to read is `unobserved`, never `clear`."""

    check: str
    """Name of the check."""
    verdict: Outcome
    """`found`, `clear`, or `unobserved` if the check had nothing to read."""
    rollouts: int = 0
    """How many rollouts it looked at."""
    tokens: int = 0
    """How many tokens it looked at."""
    why: str = ""
    """Why it could not look, such as `needs tokens=True`."""
    findings: Sequence[Finding] = ()
    """What it found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One generation batch of one rank, which a host submits: a snapshot from which rollouts are built later."""

    build: Callable[[], Sequence[Rollout]]
    """Returns the rollouts. It is called once, on the worker thread. Their run, attempt, generation and id are set
    afterwards."""
    split: Split = "train"
    """`train` or `eval`."""
    step: int = 0
    """The (first) optimizer step that trains on the batch."""
    count: int = 0
    """Number of this rank's rollouts that `build` will return."""
    bytes: int = 0
    """Approximate size of the snapshot, which limits the queue."""
    gathered: bool = False
    """True if `build` also returns the rollouts of other ranks, which this rank sends to its sinks."""
    seconds: float = 0.0
    """Time that the snapshot took on the training thread."""
    dataset: str = ""
    """Name of the evaluation dataset if there are several. The session sets it."""
    evaluation: int = 0
    """Number of the evaluation. The session sets it."""


class Emit(Protocol):
    """Receives what a host observed. Its methods never raise and never wait."""

    def __call__(self, batch: Batch) -> None:
        """Submit one generation batch."""

    def lost(self, reason: str, count: int) -> None:
        """Count rollouts that the trainer generated but the host could not record, with a reason."""

    def untrained(self, reason: str, count: int, step: int | None = None) -> None:
        """Count submitted rollouts on which the trainer did not train, with a reason.

        If `step` is given and a resumed training repeats that step, they are no longer counted.
        """

    def waits(self, count: int, emit_pending: Callable[[], object]) -> None:
        """Report that the host holds back `count` rollouts now, for example until they are scored.

        If the run ends before the host submits them, `emit_pending` is called and must submit them. If the trainer
        was garbage-collected by then, they are counted as lost.
        """


class Host(Protocol):
    """An adapter for one family of trainers: recognises them and observes their rollouts.

    A plugin offers one with the `register_hosts` hook. `attach` wraps methods of the trainer object, never of its
    class, and changes nothing that the trainer computes.
    """

    name: str
    """Name of the host, which is shown to people."""

    def matches(self, trainer: Any) -> bool:
        """Return whether this host supports the trainer. It must not import the trainer's library."""

    def attach(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> Callable[[], None]:
        """Start to observe the trainer, and return a function that removes all wrappers.

        Call `emit` with a `Batch` after each generation. `options` has `tokens` and `gather` (bool) and `rendered` (a
        tokenizer for the worker thread, or None).
        """

    def describe(self, trainer: Any) -> Mapping[str, Any]:
        """Return values for the fields of `Run`, by field name. Called when a run starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """What a host records of the rollouts of one trainer. A field that the trainer does not have is None in them."""

    trainer: str
    """Class name of the trainer."""
    messages: Literal["as they were", "decoded completions", "decoded text"] = "as they were"
    """Whether prompt and completion are the trainer's own messages or text that is decoded from token ids."""
    rewards: Literal["each function", "sum", "none"] = "each function"
    """Which rewards are recorded."""
    advantage: bool = False
    """Whether the trainer has advantages."""
    tools: bool = False
    """Whether tool calls are recorded with their outcomes."""
    images: bool = False
    """Whether images in its messages are recorded."""
    groups: bool = False
    """Whether several completions of one prompt form a group."""
    evaluation: bool = False
    """Whether evaluation generates rollouts, which are recorded in the split `eval`."""
    lengths: Literal["prompt and completion", "completion", "with tokens=True"] = "prompt and completion"
    """When token counts are recorded, and with the completion's count the reason why generation ended."""
    logprobs: Literal["", "sampler", "trainer", "sampler, trainer and reference"] = ""
    """Which log-probabilities `tokens=True` records if the trainer has them. It always records token ids."""
    since: str = "1.16"
    """Oldest version with which the host was tested: of TRL, or of another package if it is named."""
    until: str = ""
    """Newest TRL that has this trainer in this form; empty if the latest has it."""
    note: str = ""
    """Anything else that a user should know."""

    @property
    def is_of_trl(self) -> bool:
        """Whether the trainer belongs to TRL; for another package, `since` is its name and version."""
        return " " not in self.since


class HostDetails(Host, Protocol):
    """The optional members of a host. Each has a default, so a `Host` without them is complete."""

    supports: Sequence[Support] = ()
    """The trainers that the host supports, and what it records of each."""

    def missing(self, trainer: Any) -> Sequence[str]:
        """Return what the trainer lacks for this host, in words such as "has no method generate".

        An empty result means that nothing is missing. If several hosts match a trainer, one that misses nothing
        observes it. If no host matches, a warning names the host that misses the least.
        """
        return ()

    def recover(self, trainer: Any, count: int) -> Batch | None:
        """Return the last `count` rollouts that the trainer generated before `attach`, or None if they are gone.

        Called if the callback attaches during an evaluation, after its first batch was generated.
        """
        return None


class Plugin(Protocol):
    """The optional members of a plugin besides its hooks. Each has a default, so a plugin without them is complete."""

    name: str = ""
    """Name in logs, counts and marks of a plugin that is passed as an object; by default its class in lower case."""
    required: bool = False
    """True: a rollout that its `on_rollout` has not processed is neither stored nor sent."""
    skips_text: bool = False
    """True: its `on_rollout` is not called for rollouts that contain only text and numbers, as most do."""
    skip_reasons: Mapping[str, str] = {}
    """Why its last `select_rollouts` deselected rollouts, by rollout id."""
    alerts: Sequence[str] = ()
    """A list of warnings. After each `rollout_metrics` they are removed from it and passed to `alert` of the sinks."""

    headlines: Collection[str] | None = None
    """Names of its metrics that are logged by default, and only if they are not 0. None: all, including zeros."""
    verbose: bool = False
    """True: all metrics of all plugins are logged, and the cost of recording."""
    seal_seconds: float | None = None
    """Age in seconds at which a journal becomes a Parquet file, which is immutable. None: no limit."""
    reads: Collection[str] | None = None
    """Columns of the table that its `check_rollouts` reads; None: all of them."""
    parts: Sequence[Any] = ()
    """Plugins that it consists of. Each runs by itself, so that one that fails or hangs does not affect the others."""
    require_redact: bool | None = None
    """For a plugin that copies a run's files elsewhere. True: it needs a `required` plugin; False: it warns without
    one."""

    def clean(self, value: Any) -> Any:
        """Filter a value other than a rollout before it leaves the process, for `required` plugins.

        Return a value of the same type, or None to leave it unchanged.
        """
        return None

    def bind(self, trainer: Any) -> None:
        """Prepare for a run, on the training thread. `trainer` is None if a `RolloutRecorder` records the run."""
        return


class Sink(Plugin, Protocol):
    """The optional members of a sink. A plugin that has only the hook `export_traces` is a complete sink."""

    scope: Scope = "global"
    """Which rollouts it sends. `global`: rank 0 sends those of all ranks; `rank`: each rank sends its own; `stream`:
    each rank sends its own, including those that are not selected."""
    target: str | None = None
    """Destination, such as `jsonl:/data/lines`, always the same text for the same place. A rollout is sent to each
    target only once."""
    report_to: str = ""
    """Name in the trainer's `report_to` that the sink implements, such as `mlflow`. An installed sink with such a name
    runs if the trainer reports there or if the user names it, and `cap` limits what it receives."""

    def open(self) -> None:
        """Connect to the destination. Called before `target` is read, so that it may set `target`."""
        return

    def received(self) -> Collection[str] | None:
        """Return the ids of the rollouts that the destination has, which an export skips; None if that is unknown."""
        return None

    def gone(self) -> int:
        """Return how many rollouts were removed from the destination since the last call."""
        return 0

    def alert(self, title: str, text: str) -> None:
        """Show a warning in the way that the destination shows warnings."""
        return
