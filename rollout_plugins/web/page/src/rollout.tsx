/** One rollout: its facts, and its conversation, its group, or its prompt through the run. */

import { useEffect, useRef } from "preact/hooks";
import { compare } from "./columns";
import { Conversation } from "./conversation";
import { data, findingsOf, real, samePrompt, siblings, text, type Rollout } from "./data";
import { count, moment, number, plural, score, signed } from "./format";
import { Group } from "./group";
import { Facts, Text } from "./pieces";
import { address, close, listed, neighbour, open, view, type View } from "./state";
import { Through } from "./time";

export function RolloutPage({ one }: { one: Rollout }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    scrollTo(0, 0);
    heading.current?.focus({ preventScroll: true });
  }, [one]);
  const group = siblings(one);
  const same = samePrompt(one);
  return (
    <article class="rollout" aria-labelledby="rollout-title">
      <Way one={one} />
      <header class="about">
        <div>
          <h1 id="rollout-title" ref={heading} tabIndex={-1}>
            {one.split === "train" ? "Step" : `${one.split}, step`} {number(one.step)}
            <span class="dim">
              {" \u00b7 "}group {number(one.group)}
              {" \u00b7 "}rollout {number(one.index)}
            </span>
          </h1>
          <p class="id dim small">{one.id}</p>
        </div>
        <Score one={one} group={group} />
      </header>
      <p class="line dim">{said(one)}</p>
      {findingsOf(one).map((finding) => (
        <div key={finding.title} class={`notice ${finding.severity === "severe" ? "bad" : ""}`} role="note">
          <b>{finding.severity}: </b>
          {finding.text}
          {finding.advice && <p class="dim small">{finding.advice}</p>}
        </div>
      ))}
      {one.error !== undefined && (
        <div class="notice bad" role="note">
          <b>This rollout failed. </b>
          <Text of={text(one.error)} />
        </div>
      )}
      <More one={one} />
      <nav class="tabs" aria-label="Views of this rollout">
        <Tab as="conversation" one={one} name="Conversation" />
        <Tab as="group" one={one} name={`Group of ${group.length}`} />
        <Tab as="time" one={one} name={`Same prompt, ${plural(new Set(same.map((r) => r.step)).size, "step")}`} />
      </nav>
      {view.value === "group" ? (
        <Group one={one} all={group} />
      ) : view.value === "time" ? (
        <Through one={one} all={same} />
      ) : (
        <Conversation key={one.id} one={one} />
      )}
    </article>
  );
}

function Way({ one }: { one: Rollout }) {
  const place = listed.value.indexOf(one);
  const [before, after] = [neighbour(-1), neighbour(1)];
  const step = (to: Rollout | undefined, name: string, key: string, arrow: string) =>
    to ? (
      <a href={address(to.id, view.value)} aria-label={`${name} rollout`} title={`${name} (${key})`}>
        {arrow}
      </a>
    ) : (
      <span class="off" aria-hidden="true">
        {arrow}
      </span>
    );
  return (
    <nav class="way screen" aria-label="Between rollouts">
      <a
        href="#"
        onClick={(event) => {
          event.preventDefault();
          close();
        }}
      >
        {"\u2039"} All rollouts
      </a>
      <span class="steps">
        {place >= 0 && (
          <span class="dim num">
            {count(place + 1)} of {count(listed.value.length)}
          </span>
        )}
        {step(before, "Previous", "k", "\u2191")}
        {step(after, "Next", "j", "\u2193")}
      </span>
    </nav>
  );
}

function Tab({ as, one, name }: { as: View; one: Rollout; name: string }) {
  return (
    <a href={address(one.id, as)} aria-current={view.value === as ? "page" : undefined}>
      {name}
    </a>
  );
}

function Score({ one, group }: { one: Rollout; group: Rollout[] }) {
  const weights = new Map(data.run.rewards);
  const named = Object.entries(one.rewards);
  const place = 1 + group.filter((other) => compare(other.reward, one.reward, true) < 0).length;
  return (
    <div class="score">
      <div class="total">
        <span class="dim">reward</span>
        <b class="num">{score(one.reward)}</b>
        {group.length > 1 && !Number.isNaN(real(one.reward) ?? NaN) && (
          <span class="dim small">
            {place} of {group.length} in its group
          </span>
        )}
      </div>
      {(named.length > 1 || one.advantage !== null) && (
        <table class="parts">
          <caption class="sr">Reward by function</caption>
          <tbody>
            {named.length > 1 &&
              named.map(([name, value]) => (
                <tr key={name}>
                  <th scope="row">{name || "(no name)"}</th>
                  <td class="num">{score(value)}</td>
                  <td class="num dim">{(weights.get(name) ?? 1) !== 1 ? `\u00d7 ${number(weights.get(name))}` : ""}</td>
                </tr>
              ))}
            {one.advantage !== null && (
              <tr class="advantage">
                <th scope="row">advantage</th>
                <td class="num">{signed(one.advantage)}</td>
                <td />
              </tr>
            )}
          </tbody>
        </table>
      )}
    </div>
  );
}

const ENDS: Record<string, string> = {
  stop: "ended by itself",
  length: "cut off at the limit",
  tool_limit: "stopped at the tool limit",
  error: "failed",
  unknown: "",
};

function said(one: Rollout): string {
  const attempts = data.run.attempts.length > 1;
  return [
    ENDS[one.finish] ?? one.finish,
    one.completion_tokens === null ? "" : `${number(one.completion_tokens)} tokens`,
    one.prompt_tokens === null ? "" : `prompt ${number(one.prompt_tokens)}`,
    one.calls ? plural(one.calls, "tool call") + (one.failed ? `, ${count(one.failed)} failed` : "") : "",
    one.policy_step !== null && one.policy_step !== one.step ? `weights of step ${number(one.policy_step)}` : "",
    attempts ? `attempt ${number(one.attempt)}` : "",
    data.run.world_size > 1 ? `rank ${number(one.rank)}` : "",
    moment(one.time),
  ]
    .filter(Boolean)
    .join(" \u00b7 ");
}

/** The dataset row, what reward functions noted, and marks. */
function More({ one }: { one: Rollout }) {
  const all = { "From the dataset": one.columns, "Noted and annotated": one.extra, Marks: one.marks };
  const some = Object.entries(all).filter(([, values]) => values && Object.keys(values).length);
  if (!some.length) return null;
  return (
    <div class="more">
      {some.map(([name, values]) => (
        <section key={name} aria-label={name}>
          <h2 class="minor">{name}</h2>
          <Facts of={values!} />
        </section>
      ))}
    </div>
  );
}

export function Missing({ id }: { id: string }) {
  return (
    <div class="missing">
      <h1 tabIndex={-1}>This rollout is not in this page</h1>
      <p class="id">{id}</p>
      <p>
        The page holds {count(data.rollouts.length)} of the {count(data.total)} rollouts of the run. Make one that holds
        it:
      </p>
      <pre>rollouts report RUN --where "id = '{/^[\w.:-]+$/.test(id) ? id : "\u2026"}'"</pre>
      <p>
        <a
          href="#"
          onClick={(event) => {
            event.preventDefault();
            close();
          }}
        >
          All rollouts of this page
        </a>
      </p>
    </div>
  );
}

export const go = (by: number): void => open(neighbour(by));
