/** What can be shown in the table, sorted by and filtered by. */

import { data, findingsOf, lastWords, plain, real, spreadOf, type Rollout, type Scalar } from "./data";
import { number, oneLine, score, signed } from "./format";

export interface Column {
  key: string;
  label: string;
  get: (rollout: Rollout) => Scalar;
  numeric: boolean;
  write: (value: Scalar) => string;
  /** Shown unless the reader chooses otherwise. */
  usual: boolean;
  wide?: boolean;
}

export const columns: Column[] = [];
const byKey = new Map<string, Column>();

export const column = (key: string): Column | undefined => byKey.get(key) ?? byKey.get(key.toLowerCase());

export function findColumns(): void {
  const { rollouts, run } = data;
  const some = (test: (rollout: Rollout) => unknown) => rollouts.some(test);
  const add = (key: string, get: Column["get"], more: Partial<Column> = {}) => {
    const made = { key, label: key, get, numeric: true, usual: false, write: number, ...more };
    if (!byKey.has(key)) columns.push(made);
    byKey.set(key, byKey.get(key) ?? made);
  };
  add("step", (r) => r.step, { usual: true });
  add("split", (r) => r.split, { numeric: false, usual: new Set(rollouts.map((r) => r.split)).size > 1, write: words });
  add("group", (r) => r.group, { usual: true });
  add("reward", (r) => r.reward, { usual: true, write: score });
  const named = new Set([...run.rewards.map(([name]) => name), ...rollouts.flatMap((r) => Object.keys(r.rewards))]);
  for (const name of named) {
    const get = (r: Rollout) => r.rewards[name] ?? null;
    const key = column(name) || !name ? `reward/${name}` : name;
    add(key, get, { label: name || "(no name)", usual: named.size > 1 && named.size < 6, write: score });
    byKey.set(`reward/${name}`, byKey.get(key)!);
  }
  add(
    "finding",
    (r) =>
      findingsOf(r)
        .map((finding) => finding.title.replaceAll('"', ""))
        .join("; ") || null,
    {
      numeric: false,
      usual: some((r) => findingsOf(r).length),
      write: (value) => (value === null ? "" : words(value)),
    },
  );
  add("advantage", (r) => r.advantage, { usual: some((r) => r.advantage !== null), write: signed });
  add("spread", spreadOf, { write: score });
  add("tokens", (r) => r.completion_tokens, { usual: some((r) => r.completion_tokens !== null) });
  byKey.set("completion_tokens", byKey.get("tokens")!);
  add("prompt_tokens", (r) => r.prompt_tokens);
  add("turns", (r) => r.turns.filter((turn) => turn.place !== undefined && turn.role === "assistant").length, {
    usual: some((r) => r.turns.filter((turn) => turn.role === "assistant").length > 1),
  });
  add("calls", (r) => r.calls, { usual: some((r) => r.calls) });
  add("failed", (r) => r.failed, { usual: some((r) => r.failed) });
  add("finish", (r) => r.finish, { numeric: false, usual: some((r) => r.finish !== "unknown"), write: words });
  add("asked", (r) => oneLine(lastWords(r, true)), { numeric: false, usual: true, wide: true, write: words });
  add("answered", (r) => oneLine(lastWords(r, false)), { numeric: false, usual: true, wide: true, write: words });
  add("error", (r) => (r.error === undefined ? null : oneLine(String(plain({ text: r.error })))), {
    numeric: false,
    write: words,
  });
  for (const key of ["attempt", "generation", "rank", "index", "policy_step"] as const) add(key, (r) => r[key]);
  add("id", (r) => r.id, { numeric: false, write: words });
  for (const place of ["columns", "extra", "marks"] as const) addValues(place, add);
}

function addValues(
  place: "columns" | "extra" | "marks",
  add: (key: string, get: Column["get"], more: Partial<Column>) => void,
) {
  for (const name of new Set(data.rollouts.flatMap((r) => Object.keys(r[place] ?? {})))) {
    const get = (r: Rollout) => plain(r[place]?.[name] ?? null);
    const known = data.rollouts.map(get).filter((value) => value !== null);
    const numeric = known.every((value) => real(value) !== null);
    add(column(name) || !name ? `${place}.${name}` : name, get, {
      label: name || place,
      numeric,
      write: numeric ? number : words,
    });
  }
}

const words = (value: Scalar): string => (value === null ? "\u2013" : oneLine(String(value)));

/** Order of two values: numbers as numbers, words as words, what is missing or no number last in either direction. */
export function compare(one: Scalar, other: Scalar, down: boolean): number {
  const [a, b] = [real(one) ?? one, real(other) ?? other];
  const [noneA, noneB] = [a === null || Number.isNaN(a), b === null || Number.isNaN(b)];
  if (noneA || noneB) return Number(noneA) - Number(noneB);
  const order =
    typeof a === "number" && typeof b === "number"
      ? a < b
        ? -1
        : a > b
          ? 1
          : 0
      : String(a).localeCompare(String(b), "en", { numeric: true });
  return down ? -order : order;
}
