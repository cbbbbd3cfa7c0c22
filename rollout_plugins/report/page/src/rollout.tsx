/** One rollout: its facts, and its conversation, its group, or its prompt through the run. */

import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { data, samePrompt, siblings, text, type Rollout, type Turn } from "./data";
import { count, moment, number, oneLine, plural, signed } from "./format";
import { Group } from "./group";
import { Facts, Fold, PanelView, Parts, Pixels, Text, ToolCall, wordsOf } from "./pieces";
import { address, close, listed, neighbour, open, printing, rollout, view, type View } from "./state";
import { Through } from "./time";

const BATCH = 100;

/** Roles a reader folded away; reasoning is one of them. */
const folded = signal<ReadonlySet<string>>(new Set(["system"]));
/** Single turns that differ from their role. */
const turned = signal<ReadonlySet<Turn>>(new Set());

export function RolloutPage({ one }: { one: Rollout }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    scrollTo(0, 0);
    turned.value = new Set();
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
  const place = 1 + group.filter((other) => Number(other.reward) > Number(one.reward)).length;
  return (
    <div class="score">
      <div class="total">
        <span class="dim">reward</span>
        <b class="num">{number(one.reward)}</b>
        {group.length > 1 && one.reward !== null && (
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
                  <td class="num">{number(value)}</td>
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

function Conversation({ one }: { one: Rollout }) {
  const [ends, setEnds] = useState(BATCH);
  const all = one.turns;
  const whole = printing.value || all.length <= 2 * ends + BATCH / 2;
  const head = whole ? all : all.slice(0, ends);
  const end = whole ? [] : all.slice(-ends);
  const above = (one.panels ?? []).filter((panel) => panel.turn === undefined);
  return (
    <section class="conversation" aria-label="Conversation">
      <Roles one={one} />
      {above.map((panel, at) => (
        <PanelView key={at} panel={panel} />
      ))}
      {one.images && (
        <div class="strip">
          {one.images.map((image) => (
            <Pixels key={image} of={data.images[image]} />
          ))}
        </div>
      )}
      {!all.length && <p class="nothing">Nothing was said.</p>}
      {head.map((turn, at) => (
        <TurnView key={at} turn={turn} one={one} />
      ))}
      {!whole && (
        <p class="between">
          <button type="button" onClick={() => setEnds(ends + 250)}>
            show more of the {plural(all.length - 2 * ends, "turn")} in between
          </button>
        </p>
      )}
      {end.map((turn, at) => (
        <TurnView key={all.length - end.length + at} turn={turn} one={one} />
      ))}
    </section>
  );
}

/** Switches that fold all turns of a role. */
function Roles({ one }: { one: Rollout }) {
  const roles = [...new Set(one.turns.map((turn) => turn.role))];
  if (one.turns.some((turn) => turn.reasoning !== undefined)) roles.push("reasoning");
  if (one.calls) roles.push("tool results");
  const flip = (role: string) => {
    const next = new Set(folded.value);
    if (!next.delete(role)) next.add(role);
    folded.value = next;
    turned.value = new Set();
  };
  return (
    <div class="roles screen" role="group" aria-label="What is unfolded">
      {roles.map((role) => (
        <button type="button" class="chip" key={role} aria-pressed={!folded.value.has(role)} onClick={() => flip(role)}>
          {role}
        </button>
      ))}
      <button
        type="button"
        class="link"
        onClick={() => {
          folded.value = new Set(folded.value.size ? [] : roles);
          turned.value = new Set();
        }}
      >
        {folded.value.size ? "unfold all" : "fold all"}
      </button>
    </div>
  );
}

export function foldAll(): void {
  const roles = (rollout.value?.turns ?? []).map((turn) => turn.role);
  folded.value = new Set(folded.value.size ? [] : [...roles, "reasoning", "tool results"]);
  turned.value = new Set();
}

function TurnView({ turn, one }: { turn: Turn; one: Rollout }) {
  const isOpen = printing.value || folded.value.has(turn.role) === turned.value.has(turn);
  const panels = (one.panels ?? []).filter((panel) => panel.turn !== undefined && panel.turn === turn.place);
  const instead = panels.some((panel) => panel.replaces);
  const flip = () => {
    const next = new Set(turned.value);
    if (!next.delete(turn)) next.add(turn);
    turned.value = next;
  };
  return (
    <div class={`turn ${role(turn)}`}>
      <h2 class="minor">
        <button type="button" aria-expanded={isOpen} onClick={flip}>
          <span class="caret" aria-hidden="true">
            {isOpen ? "\u25be" : "\u25b8"}
          </span>
          {turn.role}
        </button>
        {!isOpen && <span class="preview dim">{oneLine(wordsOf(turn), 160)}</span>}
      </h2>
      {isOpen &&
        (instead ? (
          <Fold title="the message itself">
            <Body turn={turn} />
          </Fold>
        ) : (
          <Body turn={turn} />
        ))}
      {panels.map((panel, at) => (
        <PanelView key={at} panel={panel} />
      ))}
    </div>
  );
}

function Body({ turn }: { turn: Turn }) {
  const results = !folded.value.has("tool results");
  return (
    <div class="body">
      {turn.reasoning !== undefined && (
        <Fold title="reasoning" open={!folded.value.has("reasoning")}>
          <div class="reasoning">
            <Text of={text(turn.reasoning)} />
          </div>
        </Fold>
      )}
      <Parts parts={turn.parts} />
      {turn.calls?.map((call, at) => (
        <ToolCall key={at} call={results ? call : { ...call, result: undefined }} />
      ))}
      {!turn.parts && !turn.calls && turn.reasoning === undefined && <p class="dim small">(empty)</p>}
    </div>
  );
}

const KNOWN = new Set(["system", "developer", "user", "assistant", "tool"]);
const role = (turn: Turn): string => (KNOWN.has(turn.role) ? turn.role : "other");

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
