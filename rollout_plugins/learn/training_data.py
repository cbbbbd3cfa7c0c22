"""Export rollouts as datasets that TRL's SFT, DPO, KTO and GRPO trainers take as they are.

`export_training_data` chooses rollouts, cuts what must not be trained, and writes Parquet with a card that says how
the rows were chosen. The run itself is not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from rollout_plugins.content.exact_json import decode
from rollout_plugins.content.json_safe import to_json_safe
from rollout_plugins.errors import RunError, check_folder, check_replaceable
from rollout_plugins.learn.check_rendering import RenderingCheck
from rollout_plugins.learn.choose_rollouts import KINDS, Choice, Kind, Row, Rules, choose_rollouts, places_of
from rollout_plugins.learn.cut_turns import CannotCutError, Cut, cut_answer, cut_pair
from rollout_plugins.learn.dataset_card import write_card
from rollout_plugins.learn.dataset_files import (
    BOOLEAN_COLUMN,
    INTEGER_COLUMN,
    JSON_COLUMN,
    JSON_LIST_COLUMN,
    NUMBER_COLUMN,
    TEXT_COLUMN,
    Column,
    open_dataset,
)
from rollout_plugins.learn.exported import Exported
from rollout_plugins.learn.prompt_ids import COLUMNS, prompt_id, prompt_ids, tables_with_ids
from rollout_plugins.learn.stored_messages import Conversation, read_conversations
from rollout_plugins.reading.filters import PRUNED, Filters, condition
from rollout_plugins.reading.outbound import OutboundFilter
from rollout_plugins.system.files import replace_file

if TYPE_CHECKING:
    from rollout_hookspecs import Rollout

    from rollout_plugins.reading.lazy_rollouts import Rollouts
    from rollout_plugins.reading.runs import StoredRun

FILE, CARD = "train.parquet", "README.md"
DUPLICATE, HELD_OUT = "rows with the content of an earlier one", "with a held-out prompt"
OTHER_LABEL = "rows with the content of an earlier one that has the other label"
REFUSED = "that a required plugin did not let out"
_PARQUET = frozenset({".parquet", ".pq"})


@dataclass(frozen=True, slots=True)
class _Content:
    """What a chosen rollout says."""

    id: str
    prompt_id: str
    prompt: Conversation
    completion: Conversation
    columns: Any
    tokens: Any


def export_training_data(
    run: StoredRun,
    kind: Kind,
    dest: str | Path,
    *,
    by: str = "reward",
    threshold: float | None = None,
    margin: float = 0.0,
    pairs: str = "best",
    sample: int | None = None,
    seed: int = 0,
    whole: bool = False,
    held_out: Collection[str] = (),
    include_evaluated: bool = False,
    tokenizer: Any = None,
    plugins: Sequence[Any] = (),
    force: bool = False,
    progress: Callable[[str, int, int], object] = lambda *_: None,
    **filters: Any,
) -> Exported:
    """Write rollouts of a run as a dataset for a TRL trainer.

    kind: `sft`, `dpo`, `kto`, or `prompts`: each prompt once, with its dataset columns.
    dest: a folder for `train.parquet` and its card, or a file `*.parquet` with the card beside it.
    by: the column that scores rollouts, such as `reward/correct` or `judge.score`.
    threshold: sft: the least score; kto: the least score that is labelled True, instead of the group's mean.
    margin, pairs: dpo: how much better a winner is; `best`, one pair for each group, or `all`.
    sample, seed: take at most so many rows, at random.
    whole: dpo, kto: keep completions as they are, although trainers then train on the results of tools.
    held_out: prompt ids to exclude. Prompts that the run evaluated are excluded too, unless `include_evaluated`.
    tokenizer: a tokenizer, or the name or folder of one, to compare texts with the recorded token ids.
    plugins: plugins that filter what leaves, such as `["redact"]`, besides the installed ones.
    filters: those of `StoredRun.rollouts`; only rollouts of training unless `split` is given.
    """
    _check_options(kind, margin=margin, pairs=pairs, sample=sample)
    rules = Rules(kind=kind, by=by, threshold=threshold, margin=margin, pairs=pairs, sample=sample, seed=seed)  # type: ignore[arg-type]
    path, card = _check_dest(Path(dest), force=force)
    filters = {"split": "train", **{name: value for name, value in filters.items() if value is not None}}
    where = f"({filters['where']}) and not {PRUNED}" if filters.get("where") else f"not {PRUNED}"
    matches = run.rollouts(**{**filters, "where": where})
    exported = Exported(kind, path, card, sql=_sql(filters, where))
    exported.left_out["without text, which was pruned"] += run.count(**filters) - len(matches)
    progress("choosing rollouts", 0, 0)
    choice = choose_rollouts(matches, rules)
    exported.candidates = choice.candidates
    exported.left_out += choice.left_out
    excluded = set(held_out)
    if filters["split"] == "train" and not include_evaluated:
        excluded |= _evaluated_prompts(run)
    with OutboundFilter(run, plugins) as outbound:
        check = RenderingCheck(tokenizer, outbound.run, exported) if tokenizer is not None else None
        exported.unchecked_reason = "" if check else "no tokenizer was given"
        export = _Export(run, matches, rules, choice, exported, excluded, outbound, check, whole, progress)
        export.write(path, force=force)
        exported.left_out = +exported.left_out
        replace_file(card, lambda temporary: write_card(temporary, outbound.run, rules, exported, whole=whole))
    return exported


def _check_options(kind: str, *, margin: float, pairs: str, sample: int | None) -> None:
    if kind not in KINDS:
        raise RunError(f"there is no training data of the kind {kind!r}; accepted: {', '.join(KINDS)}")
    if pairs not in {"best", "all"}:
        raise RunError(f"pairs is {pairs!r}; accepted: 'best', one pair for each group, and 'all'")
    if not margin >= 0:
        raise RunError(f"margin is {margin!r}; a winner is better by 0 or more")
    if sample is not None and sample < 1:
        raise RunError(f"sample is {sample!r}; give a number of rows, 1 or more")


def _check_dest(dest: Path, *, force: bool) -> tuple[Path, Path]:
    """Return the paths of the Parquet file and of its card; raise if they exist and may not be replaced."""
    is_file = dest.suffix.lower() in _PARQUET
    path, card = (dest, dest.with_suffix(".md")) if is_file else (dest / FILE, dest / CARD)
    check_folder(path if is_file else dest)
    if not is_file and dest.exists() and not dest.is_dir():
        raise RunError(f"{dest} is a file; name a folder, or a file *.parquet")
    for one in (path, card):
        check_replaceable(one)
        if one.exists() and not force:
            raise RunError(f"{one} exists; replace it with --force (force=True), or choose another place")
    return path, card


def _sql(filters: Mapping[str, Any], where: str) -> str:
    """Return the query that selects the candidates."""
    simple = condition(Filters.of(**{**filters, "where": None, "order": None, "limit": None}), "rollouts")
    query = f"select id from rollouts where {simple} and {where}"  # noqa: S608 - shown to people
    order, limit = filters.get("order"), filters.get("limit")
    return query + (f" order by {order}" if order else "") + (f" limit {limit}" if limit is not None else "")


def _evaluated_prompts(run: StoredRun) -> set[str]:
    return {
        ident
        for table in tables_with_ids(run, ["id"], split="eval", superseded=True)
        for ident in table["prompt_id"].to_pylist()
    }


@dataclass
class _Export:
    """One export on its way from the chosen places to rows in a file."""

    run: StoredRun
    matches: Rollouts
    rules: Rules
    choice: Choice
    exported: Exported
    excluded: Collection[str]
    outbound: OutboundFilter
    check: RenderingCheck | None
    whole: bool
    progress: Callable[[str, int, int], object]
    _seen: dict[bytes, bool | None] = field(default_factory=dict)

    def write(self, path: Path, *, force: bool) -> None:
        rows = self._prompt_rows() if self.rules.kind == "prompts" else None
        columns, constants = self._columns(rows)
        made_folder = not path.parent.exists()
        path.parent.mkdir(exist_ok=True)

        def write_rows(temporary: Path) -> None:
            with open_dataset(temporary, columns, constants) as writer:
                for values in rows if rows is not None else self._rows():
                    writer.add(*values)
                writer.flush()
                self.exported.rows = writer.written
            if not writer.written:
                raise RunError(_nothing(self.exported))

        try:
            replace_file(path, write_rows)
        except BaseException:
            if made_folder:
                path.parent.rmdir()
            raise

    def _columns(self, prompt_rows: Sequence[Any] | None) -> tuple[dict[str, Column], dict[str, str]]:
        talk = TEXT_COLUMN if self.choice.is_text else JSON_LIST_COLUMN
        if prompt_rows is not None:
            return {"prompt": talk, **self._dataset_columns, "prompt_id": TEXT_COLUMN}, {}
        info = self.outbound.run
        constants = {}
        if not self.choice.is_text:
            if info.tools:
                constants["tools"] = orjson.dumps(to_json_safe(list(info.tools))).decode()
            if templating := info.settings.get("chat_template_kwargs"):
                constants["chat_template_kwargs"] = orjson.dumps(to_json_safe(templating)).decode()
        fixed = dict.fromkeys(constants, JSON_COLUMN)
        if self.rules.kind == "dpo":
            ids = dict.fromkeys(("prompt_id", "chosen_id", "rejected_id"), TEXT_COLUMN)
            scores = dict.fromkeys(("chosen_score", "rejected_score"), NUMBER_COLUMN)
            return {"prompt": talk, "chosen": talk, "rejected": talk, **fixed, **ids, **scores}, constants
        label = {"label": BOOLEAN_COLUMN} if self.rules.kind == "kto" else {}
        ids = {"prompt_id": TEXT_COLUMN, "rollout_id": TEXT_COLUMN}
        return {"prompt": talk, "completion": talk, **label, **fixed, **ids, "score": NUMBER_COLUMN}, constants

    # --- reading the chosen rollouts ----------------------------------------------------------------------------

    def _groups(self) -> Iterator[tuple[list[Row], dict[int, _Content]]]:
        """Yield the rows of each group with the contents of their rollouts, as soon as those are read."""
        groups = self.choice.groups
        places = places_of(groups)
        groups_by_place: dict[int, list[int]] = {}
        needed = []
        for number, group in enumerate(groups):
            own = places_of([group])
            needed.append(len(own))
            for place in own:
                groups_by_place.setdefault(place, []).append(number)
        waiting: dict[int, dict[int, _Content]] = {}
        for done, (place, content) in enumerate(self._contents(places), 1):
            for number in groups_by_place[place]:
                contents = waiting.setdefault(number, {})
                if content is not None:
                    contents[place] = content
                needed[number] -= 1
                if not needed[number]:
                    yield groups[number], waiting.pop(number)
            if done % 500 == 0:
                self.progress("writing rows", done, len(places))
        for number, contents in waiting.items():  # some of their rollouts cannot be read
            yield groups[number], contents

    def _contents(self, places: Sequence[int]) -> Iterator[tuple[int, _Content | None]]:
        """Yield the content of each place; None for what was refused or is held out."""
        matches = self.matches.at(places)
        if self.outbound.is_needed:
            yield from self._filtered_contents(matches, places)
            return
        names = ["id", "prompt", "columns", *(["completion"] if self.rules.kind != "prompts" else [])]
        names += ["tokens"] if self.check else []
        for numbers, table in matches.tables(names):
            idents, ids = table["id"].to_pylist(), prompt_ids(table.select(COLUMNS)).to_pylist()
            prompts = list(read_conversations(table["prompt"]))
            completions = list(read_conversations(table["completion"])) if "completion" in names else prompts
            columns = table["columns"].to_pylist() if self.rules.kind == "prompts" else [None] * len(ids)
            tokens = table["tokens"].to_pylist() if self.check else [None] * len(ids)
            rows = zip(numbers.to_pylist(), idents, ids, prompts, completions, columns, tokens, strict=True)
            for number, *values in rows:
                content = _Content(*values)
                yield places[number], None if self._is_held_out(content.prompt_id) else content

    def _filtered_contents(self, matches: Rollouts, places: Sequence[int]) -> Iterator[tuple[int, _Content | None]]:
        for number, rollout in matches.numbered(tokens=self.check is not None):
            ident = prompt_id({"prompt": list(rollout.prompt), **rollout.columns})
            if self._is_held_out(ident):
                yield places[number], None
                continue
            filtered = self.outbound.filter(rollout)
            if filtered is None:
                self.exported.left_out[REFUSED] += 1
            yield places[number], None if filtered is None else _content_of(filtered, ident)

    def _is_held_out(self, ident: str) -> bool:
        self.exported.left_out[HELD_OUT] += ident in self.excluded
        return ident in self.excluded

    # --- rows ---------------------------------------------------------------------------------------------------

    def _rows(self) -> Iterator[Sequence[Any]]:
        for group, contents in self._groups():
            for row in group:
                if not all(place in contents for place in row.places):
                    continue
                try:
                    cut = self._cut(row, contents)
                except CannotCutError as error:
                    self.exported.left_out[f"rows {error}"] += 1
                    continue
                if self._is_new(cut, row.label):
                    first = contents[row.places[0]]
                    self.exported.moved_turns += len(cut.prompt) > len(first.prompt)
                    for place in row.places:
                        self._compare(contents[place])
                    if row.label is not None:
                        self.exported.labels[row.label] += 1
                    yield self._values(row, cut, [contents[place] for place in row.places])

    def _cut(self, row: Row, contents: Mapping[int, _Content]) -> Cut:
        first = contents[row.places[0]]
        whole = self.whole or self.choice.is_text
        if self.rules.kind == "dpo":
            if first.prompt_id != contents[row.places[1]].prompt_id:
                raise CannotCutError("whose answers have different prompts")
            return cut_pair(first.prompt, first.completion, contents[row.places[1]].completion, whole=whole)
        if self.rules.kind == "kto":
            rivals = [contents[place].completion for place in row.rivals if place in contents]
            return cut_answer(first.prompt, first.completion, rivals, whole=whole)
        if not first.completion.texts:
            raise CannotCutError("without an answer of the model")
        return Cut(first.prompt, (first.completion,))

    def _is_new(self, cut: Cut, label: bool | None) -> bool:
        """Return whether no earlier row has the same content; count it if one has."""
        digest = blake2b(digest_size=16)
        for conversation in (cut.prompt, *cut.answers):
            for text in conversation.texts:
                digest.update(text.encode())
                digest.update(b"\0")
            digest.update(b"\1")
        key = digest.digest()
        if key not in self._seen:
            self._seen[key] = label
            return True
        self.exported.left_out[DUPLICATE if self._seen[key] == label else OTHER_LABEL] += 1
        return False

    def _compare(self, content: _Content) -> None:
        if self.check is not None:
            self.check.compare(content.id, content.prompt, content.completion, content.tokens)

    def _values(self, row: Row, cut: Cut, contents: Sequence[_Content]) -> Sequence[Any]:
        talks = [self._talk(conversation) for conversation in (cut.prompt, *cut.answers)]
        label = [] if row.label is None else [row.label]
        return [*talks, *label, contents[0].prompt_id, *(one.id for one in contents), *row.scores]

    def _talk(self, conversation: Conversation) -> Any:
        if not self.choice.is_text:
            return conversation.texts
        return "".join(str(orjson.loads(text).get("content") or "") for text in conversation.texts)

    # --- prompts ------------------------------------------------------------------------------------------------

    def _prompt_rows(self) -> list[Sequence[Any]]:
        """Return each distinct prompt once, with the values of its dataset row."""
        prompts: dict[str, tuple[Any, dict[str, Any]]] = {}
        for group, contents in self._groups():
            for row in group:
                if (content := contents.get(row.places[0])) is None:
                    continue
                if content.prompt_id in prompts:
                    self.exported.left_out["of a prompt that has a row already"] += 1
                    continue
                columns = decode(content.columns) if isinstance(content.columns, str) else content.columns
                values = {str(name): to_json_safe(value) for name, value in (columns or {}).items()}
                prompts[content.prompt_id] = (self._talk(content.prompt), values)
        names = dict.fromkeys(name for _, values in prompts.values() for name in values)
        names = {name: None for name in names if name not in {"prompt", "prompt_id"}}
        self._dataset_columns = {
            name: _column_for([values.get(name) for _, values in prompts.values()]) for name in names
        }
        return [
            (talk, *(_fit(values.get(name), self._dataset_columns[name]) for name in names), ident)
            for ident, (talk, values) in prompts.items()
        ]

    _dataset_columns: dict[str, Column] = field(default_factory=dict)


def _content_of(rollout: Rollout, ident: str) -> _Content:
    tokens = None
    if rollout.tokens is not None:
        tokens = {"prompt": rollout.tokens.prompt, "completion": rollout.tokens.completion}
    prompt, completion = Conversation.of(rollout.prompt), Conversation.of(rollout.completion)
    return _Content(rollout.id, ident, prompt, completion, rollout.columns, tokens)


def _column_for(values: Iterable[Any]) -> Column:
    """Return the plainest column that holds these values exactly."""
    kinds = {type(value) for value in values if value is not None}
    for allowed, column in (
        ({str}, TEXT_COLUMN),
        ({bool}, BOOLEAN_COLUMN),
        ({int}, INTEGER_COLUMN),
        ({int, float}, NUMBER_COLUMN),
    ):
        if kinds and kinds <= allowed:
            return column
    return JSON_COLUMN


def _fit(value: Any, column: Column) -> Any:
    return orjson.dumps(value).decode() if column is JSON_COLUMN and value is not None else value


def _nothing(exported: Exported) -> str:
    reasons = "; ".join(f"{number:,} {reason}" for reason, number in exported.left_out.most_common(3) if number)
    why = f": {reasons}" if reasons else "; no rollouts match" if not exported.candidates else ""
    return f"there is nothing to write for {exported.kind} from {exported.candidates:,} rollouts{why}"
