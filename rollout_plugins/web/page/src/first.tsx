/** What a person asks first, a sentence each, a click from the rollouts that prove it. */

import type { ComponentChildren } from "preact";
import { data, find, lastWords, type Extreme, type Scalar } from "./data";
import { count, number, oneLine, plural, score } from "./format";
import { address, query, range } from "./state";

export function First() {
  const { best, worst, tool, flat } = data.first;
  const alike = best && worst && best.reward === worst.reward;
  return (
    <section class="first" aria-label="First of all">
      <dl>
        {Object.keys(data.run.not_finite).length > 0 && (
          <Line name="Not finite">
            {Object.entries(data.run.not_finite)
              .map(([name, { nan, infinite }]) => `${name}: ${odd(nan, infinite)}`)
              .join("; ")}
            {data.first.odd && <Odd of={data.first.odd} />}.
          </Line>
        )}
        {best && (
          <Line name={alike ? "All alike" : "Best"}>
            <End of={best} />
          </Line>
        )}
        {worst && !alike && (
          <Line name="Worst">
            <End of={worst} />
          </Line>
        )}
        {tool && (
          <Line name="Fails most">
            <List where={`tool:${quoted(tool.name)} failed>0`}>
              <span class="tool">{tool.name}</span>
            </List>{" "}
            failed in {count(tool.failed)} of {plural(tool.calls, "call")}
            {data.run.tools.length > 0 && !data.run.tools.some(({ name }) => name === tool.name) && ": no such tool"}.
          </Line>
        )}
        {flat[1] > 0 && (
          <Line name="Teach nothing">
            {flat[0] ? (
              <>
                <List where="spread=0">{plural(flat[0], "group")}</List> of {count(flat[1])}: all answers got the same
                reward.
              </>
            ) : (
              `no group: the${Object.keys(data.run.not_finite).length ? " finite" : ""} rewards differ in each.`
            )}
          </Line>
        )}
        <Line name="Lost">
          <Lost />
        </Line>
        {counted(data.run.untrained).length > 0 && <Line name="Not trained on">{reasons(data.run.untrained)}.</Line>}
        {counted(data.run.unsent).length > 0 && <Line name="Not sent">{reasons(data.run.unsent, "to ")}.</Line>}
      </dl>
    </section>
  );
}

function Line({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

const odd = (nan: number, infinite: number): string =>
  [nan && `${count(nan)} NaN`, infinite && `${count(infinite)} infinite`].filter(Boolean).join(", ");

/** The first rollout with a reward that is NaN or infinite. */
function Odd({ of }: { of: { id: string; step: Scalar } }) {
  const where = `first at step ${number(of.step)}`;
  return <>, {find(of.id) ? <a href={address(of.id)}>{where}</a> : where}</>;
}

function End({ of }: { of: Extreme }) {
  const one = find(of.id);
  const where = `reward ${score(of.reward)} at step ${number(of.step)}`;
  return (
    <>
      {one ? <a href={address(one.id)}>{where}</a> : where}
      {one && (
        <span class="quote">
          : {"\u201c"}
          {oneLine(lastWords(one, true), 70)}
          {"\u201d \u2192 \u201c"}
          {oneLine(lastWords(one, false), 70)}
          {"\u201d"}
        </span>
      )}
      {of.as_much > 0 && (
        <>
          {", and "}
          <List where={`reward=${of.reward}`}>{count(of.as_much)} more</List>
        </>
      )}
      .
    </>
  );
}

/** Lists the rollouts that are meant. */
function List({ where, children }: { where: string; children: ComponentChildren }) {
  const list = () => {
    range.value = null;
    query.value = where;
    document
      .getElementById("rollouts")
      ?.scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  };
  return (
    <button type="button" class="link" onClick={list}>
      {children}
    </button>
  );
}

const quoted = (name: string): string => (/\s/.test(name) ? `"${name}"` : name);

type Counts = Record<string, number>;

const counted = (counts: Counts): [string, number][] => Object.entries(counts).filter(([, times]) => times);

const reasons = (counts: Counts, before = ""): string =>
  counted(counts)
    .map(([why, times]) => `${count(times)} ${before}${why}`)
    .join(", ");

function Lost() {
  const lost = reasons(data.run.drops);
  const damaged = Object.keys(data.damaged).length;
  if (!lost && !damaged) return <>nothing.</>;
  return (
    <span class="bad">
      {lost && `${lost}. `}
      {damaged > 0 && `${plural(damaged, "file")} cannot be read.`}
    </span>
  );
}
