/** The conversation of a rollout, turn by turn; what of it is folded, and what plugins show of it. */

import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import { data, text, type Rollout, type Turn } from "./data";
import { oneLine, plural } from "./format";
import { Fold, PanelView, Parts, Pixels, Text, ToolCall, wordsOf } from "./pieces";
import { printing, rollout } from "./state";

const BATCH = 100;

/** Roles a reader folded away; reasoning is one of them. */
const folded = signal<ReadonlySet<string>>(new Set(["system"]));
/** Single turns that differ from their role. */
const turned = signal<ReadonlySet<Turn>>(new Set());

export function Conversation({ one }: { one: Rollout }) {
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
