/** The filter box: `reward<0.5 step>=10 finish=length tool:search "some words" -others`. */

import { column, columns } from "./columns";
import { data, real, textsOf, type Rollout } from "./data";

interface Query {
  test: (rollout: Rollout) => boolean;
  /** Texts that were searched for, to be marked where they stand. */
  words: string[];
  /** What was not understood, and what would be. */
  wrong: string;
}

const TERM = /^([^\s<>=!:"]+)(<=|>=|!=|==|=|<|>|:)(.*)$/s;
let lower: string[] | undefined;
const texts = new Map<Rollout, Set<number>>();

export function parse(written: string): Query {
  const tests: Query["test"][] = [];
  const words: string[] = [];
  let wrong = "";
  for (const term of terms(written)) {
    const made = compared(term);
    if (typeof made === "string") wrong ||= made;
    else if (made) tests.push(made);
    else if (term.startsWith("-") && term.length > 1) tests.push(not(contains(bare(term.slice(1)))));
    else {
      words.push(bare(term));
      tests.push(contains(bare(term)));
    }
  }
  return { test: (rollout) => tests.every((test) => test(rollout)), words, wrong };
}

/** Terms stand apart by spaces; quotes keep words together; spaces around a comparison do not matter. */
function terms(written: string): string[] {
  const pieces = written.match(/"[^"]*"?|[^"]+/g) ?? [];
  const close = pieces.map((piece) => (piece[0] === '"' ? piece : piece.replace(/\s*(<=|>=|!=|==|=|<|>)\s*/g, "$1")));
  const found = close.join("").match(/(?:[^\s"]|"[^"]*"?)+/g) ?? [];
  return found.filter((term) => term.toLowerCase() !== "and");
}

const bare = (term: string): string => term.replace(/^"|"$/g, "");

const not =
  (test: Query["test"]): Query["test"] =>
  (rollout) =>
    !test(rollout);

/** A test for `column<value`; a sentence when there is no such column; nothing when it is only text. */
function compared(term: string): Query["test"] | string | undefined {
  const match = TERM.exec(term);
  if (!match) return undefined;
  const [, key, sign, rest] = match as unknown as [string, string, string, string];
  const value = bare(rest);
  if (key.toLowerCase() === "tool") return calling(value);
  const known = column(key);
  if (!known)
    return sign === ":" || !/^[\w./]+$/.test(key) ? undefined : `There is no column \u201c${key}\u201d. ${hint()}`;
  if (!value) return `What should ${key} be compared with?`;
  const wanted = value.toLowerCase();
  const bound = Number.isNaN(Number(value)) ? real(wanted) : Number(value);
  if ("<>".includes(sign[0]!) && bound === null)
    return `${key} ${sign} needs a number; \u201c${value}\u201d is not one.`;
  return (rollout) => {
    const found = known.get(rollout);
    if (wanted === "none") return (found === null) !== (sign === "!=");
    const size = real(found);
    if (bound !== null && size !== null) return holds(size, sign, bound);
    const same =
      sign === ":"
        ? String(found ?? "")
            .toLowerCase()
            .includes(wanted)
        : String(found ?? "").toLowerCase() === wanted;
    return "<>".includes(sign[0]!) ? false : same !== (sign === "!=");
  };
}

function holds(size: number, sign: string, bound: number): boolean {
  const same = size === bound || (Number.isNaN(size) && Number.isNaN(bound));
  switch (sign) {
    case "<":
      return size < bound;
    case ">":
      return size > bound;
    case "<=":
      return size <= bound;
    case ">=":
      return size >= bound;
    case "!=":
      return !same;
    default:
      return same;
  }
}

const calling =
  (name: string): Query["test"] =>
  (rollout) =>
    rollout.turns.some((turn) => turn.calls?.some((call) => call.name.toLowerCase() === name.toLowerCase()));

/** The text stands anywhere in the rollout, in any case; each text of the page is looked at once. */
function contains(words: string): Query["test"] {
  const wanted = words.toLowerCase();
  lower ??= data.texts.map((text) => text.toLowerCase());
  const found = new Set<number>();
  lower.forEach((text, number) => text.includes(wanted) && found.add(number));
  return (rollout) => {
    if (!texts.has(rollout)) texts.set(rollout, textsOf(rollout));
    for (const number of texts.get(rollout)!) if (found.has(number)) return true;
    return rollout.turns.some((turn) => turn.calls?.some((call) => call.name.toLowerCase().includes(wanted)));
  };
}

export const hint = (): string =>
  `Columns: ${columns
    .slice(0, 14)
    .map((one) => one.key)
    .join(", ")}\u2026`;
