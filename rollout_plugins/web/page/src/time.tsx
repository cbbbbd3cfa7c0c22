/** One prompt through the run: its rewards by step, and what changed between two of its answers, word by word. */

import { diffLines, diffWordsWithSpace, type Change } from "diff";
import { useMemo, useState } from "preact/hooks";
import { compare } from "./columns";
import { data, real, type Rollout } from "./data";
import { count, number, plural, score } from "./format";
import { Parts, wordsOf } from "./pieces";
import { address } from "./state";

export function Through({ one, all }: { one: Rollout; all: Rollout[] }) {
  const sorted = [...all].sort((a, b) => Number(a.step) - Number(b.step) || compare(a.reward, b.reward, true));
  const [first, last] = ends(one, sorted);
  const [before, setBefore] = useState(first);
  const [after, setAfter] = useState(last);
  const asked = one.turns.filter((turn) => turn.place === undefined);
  const steps = new Set(sorted.map((each) => each.step));
  return (
    <section class="through" aria-label="Same prompt through the run">
      <div class="asked">
        {asked.slice(-1).map((turn, at) => (
          <Parts key={at} parts={turn.parts} most={800} lines={10} />
        ))}
      </div>
      {steps.size < 2 ? (
        <p class="dim">
          In this page the prompt appears in only {plural(steps.size, "step")}
          {data.rollouts.length < data.matched ? "; the page does not hold all rollouts of the run." : "."} Below are
          two of its answers.
        </p>
      ) : (
        <Dots all={sorted} before={before} after={after} choose={setAfter} />
      )}
      <div class="row compare">
        <Choice label="before" all={sorted} value={before} set={setBefore} />
        <span aria-hidden="true">{"\u2192"}</span>
        <Choice label="after" all={sorted} value={after} set={setAfter} />
      </div>
      {before === after ? (
        <p class="dim">Choose two answers to see what changed between them.</p>
      ) : (
        <Words before={before} after={after} />
      )}
    </section>
  );
}

/** This answer and a middling one of the last step, or of the first; with one step, the worst and the best. */
function ends(one: Rollout, sorted: Rollout[]): [Rollout, Rollout] {
  const [first, last] = [sorted[0]!, sorted[sorted.length - 1]!];
  if (first.step === last.step) return [last, first];
  const middle = (step: Rollout["step"]) => {
    const some = sorted.filter((each) => each.step === step);
    return some[Math.floor(some.length / 2)]!;
  };
  return one.step === last.step ? [middle(first.step), one] : [one, middle(last.step)];
}

function Choice({
  label,
  all,
  value,
  set,
}: {
  label: string;
  all: Rollout[];
  value: Rollout;
  set: (one: Rollout) => void;
}) {
  return (
    <label>
      <span class="dim">{label} </span>
      <select
        value={value.id}
        onChange={(event) => set(all.find((one) => one.id === event.currentTarget.value) ?? value)}
      >
        {all.map((one) => (
          <option key={one.id} value={one.id}>
            {named(one)} ({number(one.index)})
          </option>
        ))}
      </select>
      <a class="small" href={address(value.id)}>
        open
      </a>
    </label>
  );
}

const named = (one: Rollout): string =>
  `${one.split === "train" ? "" : `${one.split}, `}step ${number(one.step)}, reward ${score(one.reward)}`;

/** A dot for each answer: step from left to right, reward upwards. A click compares with it, as the menu does. */
interface Shown {
  all: Rollout[];
  before: Rollout;
  after: Rollout;
  choose: (one: Rollout) => void;
}

function Dots({ all, before, after, choose }: Shown) {
  const known = all.filter((one) => Number.isFinite(real(one.reward) ?? NaN) && typeof one.step === "number");
  const [steps, rewards] = [known.map((one) => one.step as number), known.map((one) => real(one.reward)!)];
  const [left, right, low, high] = [Math.min(...steps), Math.max(...steps), Math.min(...rewards), Math.max(...rewards)];
  const x = (step: number) => 4 + (92 * (step - left)) / (right - left || 1);
  const y = (reward: number) => (high > low ? 88 - (76 * (reward - low)) / (high - low) : 50);
  if (!known.length) return null;
  return (
    <figure class="dots">
      <div
        class="field"
        role="img"
        aria-label={`Rewards of ${plural(all.length, "answer")} from step ${left} to ${right}: between ${number(low)} and ${number(high)}`}
      >
        {known.map((one) => (
          <i
            key={one.id}
            title={named(one)}
            onClick={() => choose(one)}
            class={one === before ? "dot before" : one === after ? "dot after" : "dot"}
            style={{ left: `${x(one.step as number)}%`, top: `${y(real(one.reward)!)}%` }}
          />
        ))}
        <span class="high num dim small">{number(high)}</span>
        <span class="low num dim small">{high > low ? number(low) : ""}</span>
      </div>
      <figcaption class="ends num dim small">
        <span>step {count(left)}</span>
        <span>{count(right)}</span>
      </figcaption>
    </figure>
  );
}

function Words({ before, after }: { before: Rollout; after: Rollout }) {
  const changes = useMemo(() => difference(answer(before), answer(after)), [before, after]);
  const changed = changes.some((change) => change.added || change.removed);
  return (
    <>
      <p class="dim small">
        {changed ? (
          <>
            <del>only before</del> <ins>only after</ins>
          </>
        ) : (
          "Both answers are the same."
        )}
      </p>
      <div class="text words">
        {changes.map((change, at) =>
          change.added ? (
            <ins key={at}>{change.value}</ins>
          ) : change.removed ? (
            <del key={at}>{change.value}</del>
          ) : (
            <span key={at}>{change.value}</span>
          ),
        )}
      </div>
    </>
  );
}

const answer = (one: Rollout): string =>
  one.turns
    .filter((turn) => turn.place !== undefined)
    .map((turn) => `${turn.role}\n${wordsOf(turn)}`)
    .join("\n\n")
    .slice(0, 200_000);

/** Word by word, for long texts line by line, and as a whole for what differs in everything. */
function difference(before: string, after: string): Change[] {
  const bounded = { timeout: 400, maxEditLength: 4000 };
  const found = diffWordsWithSpace(before, after, bounded) ?? diffLines(before, after, bounded);
  return whole(found ?? [changed(before, "removed"), changed(after, "added")]);
}

const changed = (value: string, how: "removed" | "added"): Change => ({
  value,
  removed: how === "removed",
  added: how === "added",
  count: 1,
});

/** What stays is worth showing when it is more than a comma between two changes; else the change is one. */
function whole(changes: Change[]): Change[] {
  const made: Change[] = [];
  let [removed, added] = ["", ""];
  const flush = () => {
    if (removed) made.push(changed(removed, "removed"));
    if (added) made.push(changed(added, "added"));
    [removed, added] = ["", ""];
  };
  changes.forEach((change, at) => {
    const slight =
      removed + added && at < changes.length - 1 && change.value.trim().length < 4 && !change.value.includes("\n");
    if (change.removed || (slight && !change.added)) removed += change.value;
    if (change.added || (slight && !change.removed)) added += change.value;
    if (!change.removed && !change.added && !slight) {
      flush();
      made.push(change);
    }
  });
  flush();
  return made;
}
