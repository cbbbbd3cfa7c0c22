/** What a person looks at first: findings, and a sentence each about the run, a click from the rollouts that show it. */

import type { ComponentChildren } from "preact";
import { data, find, lastWords, type Extreme, type Finding } from "./data";
import { count, number, oneLine, plural, score } from "./format";
import { address, query, range } from "./state";

export function First() {
  const { best, worst } = data.first;
  const alike = best && worst && best.reward === worst.reward;
  return (
    <section class="first" aria-label="First of all">
      <Findings />
      <dl>
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

function Findings() {
  const { findings, clear, unobserved } = data.first;
  const blind = Object.entries(unobserved);
  return (
    <>
      {findings.length > 0 && (
        <ul class="findings" aria-label="Findings">
          {findings.map((finding) => (
            <FindingItem key={`${finding.check} ${finding.title}`} of={finding} />
          ))}
        </ul>
      )}
      <p class="dim small checks">
        {findings.length === 0 && "No findings. "}
        {plural(clear, "check")} clear
        {blind.length > 0 && (
          <>
            {", "}
            <details>
              <summary>{count(blind.length)} had nothing to look at</summary>
              {blind.map(([name, why]) => (
                <div key={name}>
                  {name}: {why}
                </div>
              ))}
            </details>
          </>
        )}
      </p>
    </>
  );
}

/** A finding: how severe, its sentence, what to do, and the rollouts that show it. */
function FindingItem({ of: finding }: { of: Finding }) {
  const there = finding.rollouts.filter((id) => find(id));
  return (
    <li class={finding.severity}>
      <b class="severity">{finding.severity}</b> {finding.text}
      {there.length > 0 && (
        <>
          {" "}
          <a href={address(there[0]!)}>Show a rollout</a>
          {there.length > 1 && (
            <>
              {" or "}
              <List where={`finding:"${finding.title.replaceAll('"', "")}"`}>list {count(there.length)}</List>
            </>
          )}
          .
        </>
      )}
      {finding.advice && <p class="dim small">{finding.advice}</p>}
      <p class="command small">
        <code>{finding.command}</code>
      </p>
    </li>
  );
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
