/** Siblings side by side: what they share once, then where they part. */

import { useState } from "preact/hooks";
import { real, text, type Rollout, type Turn } from "./data";
import { number, plural, signed } from "./format";
import { Fold, Parts, Text, ToolCall, wordsOf } from "./pieces";
import { address } from "./state";

const SHOWN = 12;

export function Group({ one, all }: { one: Rollout; all: Rollout[] }) {
  const [most, setMost] = useState(SHOWN);
  const sorted = [...all].sort((a, b) => (real(b.reward) ?? -Infinity) - (real(a.reward) ?? -Infinity));
  const [best, worst] = [sorted[0]!, sorted[sorted.length - 1]!];
  const apart = best === worst || best.reward === worst.reward ? null : parting(best, worst);
  const order = apart === null ? sorted : [best, worst, ...sorted.slice(1, -1)];
  const rewards = sorted.map((each) => real(each.reward)).filter((value) => value !== null);
  const same = shared(sorted);
  const size = Number(one.group_size) || all.length;
  return (
    <section class="group" aria-label="Group">
      <p class="dim">
        {all.length < size ? `${all.length} of the ${plural(size, "sibling")} are in this page. ` : ""}
        {rewards.length > 1 &&
          (best.reward === worst.reward
            ? `All have the same reward, ${number(best.reward)}: nothing to learn from here.`
            : `Rewards from ${number(worst.reward)} to ${number(best.reward)}: the best, the worst, and then the others.`)}
        {apart !== null && ` Best and worst part in turn ${apart + 1}, which is marked.`}
      </p>
      {same > 0 && (
        <Fold title={`${plural(same, "turn")} all begin with`}>
          {best.turns.slice(0, same).map((turn, at) => (
            <Small key={at} turn={turn} />
          ))}
        </Fold>
      )}
      <div class="scroll columns" tabIndex={0} role="region" aria-label="Siblings side by side">
        {order.slice(0, most).map((each) => (
          <section
            key={each.id}
            class={each === one ? "sibling own" : "sibling"}
            aria-label={`rollout ${each.index}, reward ${number(each.reward)}`}
          >
            <header>
              <b class="num">{number(each.reward)}</b>
              {each.advantage !== null && <span class="dim num">{signed(each.advantage)}</span>}
              {each === best && apart !== null && <span class="tag good">best</span>}
              {each === worst && apart !== null && <span class="tag bad">worst</span>}
              <a href={address(each.id)} aria-label={`${each === one ? "this one" : "open"}, rollout ${each.index}`}>
                {each === one ? "this one" : "open"}
              </a>
            </header>
            {each.turns
              .slice(same)
              .slice(0, 40)
              .map((turn, at) => (
                <Small key={at} turn={turn} marked={apart === same + at && (each === best || each === worst)} />
              ))}
            {each.turns.length === same && <p class="dim small">says nothing more</p>}
            {each.turns.length - same > 40 && (
              <p class="dim small">{plural(each.turns.length - same - 40, "more turn")}</p>
            )}
          </section>
        ))}
      </div>
      {sorted.length > most && (
        <button type="button" onClick={() => setMost(sorted.length)}>
          show all {sorted.length}
        </button>
      )}
    </section>
  );
}

function Small({ turn, marked }: { turn: Turn; marked?: boolean }) {
  return (
    <div class={`small-turn ${turn.role} ${marked ? "parting" : ""}`}>
      <h2 class="minor">
        {turn.role}
        {marked && <span class="tag">parts here</span>}
      </h2>
      {turn.reasoning !== undefined && (
        <div class="reasoning">
          <Text of={text(turn.reasoning)} most={600} lines={10} />
        </div>
      )}
      <Parts parts={turn.parts} most={1200} lines={24} />
      {turn.calls?.map((call, at) => (
        <ToolCall key={at} call={call} most={400} lines={8} />
      ))}
    </div>
  );
}

/** How many turns all begin with, up to the last one the model did not write. */
export function shared(all: Rollout[]): number {
  const [first, ...others] = all;
  if (!first || !others.length) return first ? first.turns.filter((turn) => turn.place === undefined).length : 0;
  let same = 0;
  while (same < first.turns.length && others.every((other) => alike(first.turns[same], other.turns[same]))) same++;
  while (same > 0 && ["assistant", "tool"].includes(first.turns[same - 1]!.role)) same--;
  return same;
}

/** The first turn in which two differ; null when they are equal. */
export function parting(one: Rollout, other: Rollout): number | null {
  const most = Math.max(one.turns.length, other.turns.length);
  for (let at = 0; at < most; at++) if (!alike(one.turns[at], other.turns[at])) return at;
  return null;
}

/** Texts are numbered, so equal numbers are equal texts; how long a call took is no difference. */
const alike = (one: Turn | undefined, other: Turn | undefined): boolean =>
  one !== undefined && other !== undefined && one.role === other.role && wordsOf(one) === wordsOf(other);
