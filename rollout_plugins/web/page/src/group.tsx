/** Siblings side by side: what they share once, then where they part. */

import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { compare } from "./columns";
import { real, text, type Rollout, type Turn } from "./data";
import { plural, score, signed } from "./format";
import { Fold, Parts, Text, ToolCall, wordsOf } from "./pieces";
import { address } from "./state";

const SHOWN = 12;

export function Group({ one, all }: { one: Rollout; all: Rollout[] }) {
  const [most, setMost] = useState(SHOWN);
  const everyone = [...all].sort((a, b) => compare(a.reward, b.reward, true));
  const copies = alikes(everyone);
  const sorted = [...copies.keys()];
  const [best, worst] = [sorted[0]!, sorted[sorted.length - 1]!];
  const apart = best === worst || best.reward === worst.reward ? null : parting(best, worst);
  const order = apart === null ? sorted : [best, worst, ...sorted.slice(1, -1)];
  const rewards = everyone.map((each) => real(each.reward)).filter((value) => value !== null);
  const same = shared(sorted.length > 1 ? sorted : everyone);
  const size = Number(one.group_size) || all.length;
  return (
    <section class="group" aria-label="Group">
      <p class="dim">
        {all.length < size ? `${all.length} of the ${plural(size, "sibling")} are in this page. ` : ""}
        {sorted.length < all.length && `${plural(sorted.length, "different answer")}; equal ones are shown once. `}
        {rewards.length > 1 &&
          (best.reward === worst.reward
            ? `All have the same reward, ${score(best.reward)}: nothing to learn from here.`
            : `Rewards from ${score(worst.reward)} to ${score(best.reward)}: the best, the worst, and then the others.`)}
        {apart !== null && ` Best and worst diverge in turn ${apart + 1}, which is marked.`}
      </p>
      {same > 0 && (
        <Fold title={`All begin with ${same === 1 ? "this turn" : `these ${same} turns`}`}>
          {best.turns.slice(0, same).map((turn, at) => (
            <Small key={at} turn={turn} />
          ))}
        </Fold>
      )}
      <Columns count={Math.min(order.length, most)}>
        {order.slice(0, most).map((each) => (
          <section
            key={each.id}
            class={copies.get(each)!.includes(one) ? "sibling own" : "sibling"}
            aria-label={`rollout ${each.index}, reward ${score(each.reward)}`}
          >
            <header>
              <b class="num">{score(each.reward)}</b>
              {copies.get(each)!.length > 1 && (
                <span class="tag" title={`${copies.get(each)!.length} rollouts say this and got this reward`}>
                  {"\u00d7"}
                  {copies.get(each)!.length}
                </span>
              )}
              {each.advantage !== null && <span class="dim num">{signed(each.advantage)}</span>}
              {each === best && apart !== null && <span class="tag good">best</span>}
              {each === worst && apart !== null && <span class="tag bad">worst</span>}
              <a
                href={address(copies.get(each)!.includes(one) ? one.id : each.id)}
                aria-label={`${copies.get(each)!.includes(one) ? "this one" : "open"}, rollout ${each.index}`}
              >
                {copies.get(each)!.includes(one) ? "this one" : "open"}
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
      </Columns>
      {sorted.length > most && (
        <button type="button" onClick={() => setMost(sorted.length)}>
          show all {sorted.length}
        </button>
      )}
    </section>
  );
}

/** Cards beside each other; above them, which are in sight, when not all are. */
function Columns({ count: all, children }: { count: number; children: ComponentChildren }) {
  const place = useRef<HTMLDivElement>(null);
  const [seen, setSeen] = useState<[number, number]>([1, all]);
  useLayoutEffect(() => {
    const box = place.current!;
    const look = () => {
      const inside = [...box.children].map((card) => {
        const [left, right] = [(card as HTMLElement).offsetLeft - box.offsetLeft, (card as HTMLElement).offsetWidth];
        return left >= box.scrollLeft - 8 && left + right <= box.scrollLeft + box.clientWidth + 8;
      });
      const first = Math.max(inside.indexOf(true), 0);
      setSeen([first + 1, Math.max(inside.lastIndexOf(true), first) + 1]);
    };
    const watching = new ResizeObserver(look);
    watching.observe(box);
    box.addEventListener("scroll", look, { passive: true });
    return () => (watching.disconnect(), box.removeEventListener("scroll", look));
  }, [all]);
  const go = (by: number) => {
    const card = place.current!.firstElementChild as HTMLElement;
    place.current!.scrollBy({ left: by * (card.offsetWidth + 14) });
  };
  const [first, last] = seen;
  return (
    <>
      {(first > 1 || last < all) && (
        <p class="more-cards screen">
          <button type="button" disabled={first <= 1} aria-label="Cards to the left" onClick={() => go(-1)}>
            {"\u2039"}
          </button>
          <span class="dim num">
            {first === last ? first : `${first}\u2013${last}`} of {all}
          </span>
          <button type="button" disabled={last >= all} aria-label="Cards to the right" onClick={() => go(1)}>
            {"\u203a"}
          </button>
        </p>
      )}
      <div
        ref={place}
        class={last < all ? "scroll columns more-right" : "scroll columns"}
        tabIndex={0}
        role="region"
        aria-label="Siblings side by side"
      >
        {children}
      </div>
    </>
  );
}

/** The first of each answer and reward, with all that equal it. */
function alikes(all: Rollout[]): Map<Rollout, Rollout[]> {
  const kinds = new Map<string, Rollout[]>();
  for (const one of all) {
    const key = JSON.stringify([one.reward, ...one.turns.map((turn) => [turn.role, wordsOf(turn)])]);
    kinds.set(key, [...(kinds.get(key) ?? []), one]);
  }
  return new Map([...kinds.values()].map((some) => [some[0]!, some]));
}

function Small({ turn, marked }: { turn: Turn; marked?: boolean }) {
  return (
    <div class={`small-turn ${turn.role} ${marked ? "parting" : ""}`}>
      <h2 class="minor">
        {turn.role}
        {marked && <span class="tag">diverges here</span>}
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
function shared(all: Rollout[]): number {
  const [first, ...others] = all;
  if (!first || !others.length) return first ? first.turns.filter((turn) => turn.place === undefined).length : 0;
  let same = 0;
  while (same < first.turns.length && others.every((other) => alike(first.turns[same], other.turns[same]))) same++;
  while (same > 0 && ["assistant", "tool"].includes(first.turns[same - 1]!.role)) same--;
  return same;
}

/** The first turn in which two differ; null when they are equal. */
function parting(one: Rollout, other: Rollout): number | null {
  const most = Math.max(one.turns.length, other.turns.length);
  for (let at = 0; at < most; at++) if (!alike(one.turns[at], other.turns[at])) return at;
  return null;
}

/** Texts are numbered, so equal numbers are equal texts; how long a call took makes no difference. */
const alike = (one: Turn | undefined, other: Turn | undefined): boolean =>
  one !== undefined && other !== undefined && one.role === other.role && wordsOf(one) === wordsOf(other);
