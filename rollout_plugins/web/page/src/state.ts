/** What the reader chose: in the address where it is worth sending on, in the browser where it is taste. */

import { computed, signal } from "@preact/signals";
import { column, columns, compare } from "./columns";
import { data, find, real, type Rollout } from "./data";
import { parse } from "./query";

export type View = "conversation" | "group" | "time";
export type Theme = "auto" | "light" | "dark";

export interface Range {
  key: string;
  low: number;
  high: number;
}

export const shown = signal<string | null>(null);
export const view = signal<View>("conversation");
export const query = signal("");
export const sort = signal<{ key: string; down: boolean }>({ key: "", down: false });
export const histogram = signal("reward");
export const range = signal<Range | null>(null);
export const visible = signal<ReadonlySet<string>>(new Set());
export const theme = signal<Theme>("auto");
export const mono = signal(false);
export const help = signal(false);
export const printing = signal(false);
/** On the screen of a phone words come before numbers. */
export const onPhone = (): boolean => matchMedia("screen and (max-width: 700px)").matches;
export const hover = signal<number | null>(null);

export const parsed = computed(() => parse(query.value));
export const rollout = computed(() => (shown.value === null ? undefined : find(shown.value)));

/** What the filter box lets through, for the histogram. */
export const asked = computed(() => data.rollouts.filter(parsed.value.test));

/** What the table lists. */
export const listed = computed(() => {
  const chosen = range.value;
  const get = chosen && column(chosen.key)?.get;
  const found = get ? asked.value.filter((one) => within(real(get(one)), chosen)) : asked.value;
  const by = column(sort.value.key);
  if (!by) return found;
  const values = new Map(found.map((one) => [one, by.get(one)]));
  return [...found].sort((a, b) => compare(values.get(a)!, values.get(b)!, sort.value.down));
});

const within = (value: number | null, { low, high }: Range): boolean => value !== null && value >= low && value <= high;

export const address = (id: string, as: View = "conversation"): string => {
  const wanted = new URLSearchParams({ rollout: id });
  if (as !== "conversation") wanted.set("view", as);
  return `#${wanted}`;
};

/** The overview's address: the filter, the range and the order are part of it. */
function overview(): string {
  const wanted = new URLSearchParams();
  if (query.value) wanted.set("q", query.value);
  if (range.value) wanted.set("range", `${range.value.key}~${range.value.low}~${range.value.high}`);
  if (sort.value.key) wanted.set("sort", (sort.value.down ? "-" : "") + sort.value.key);
  return `#${wanted}`;
}

export function readAddress(): void {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const id = wanted.get("rollout");
  shown.value = id;
  if (id !== null) {
    const as = wanted.get("view");
    view.value = as === "group" || as === "time" ? as : "conversation";
    return;
  }
  query.value = wanted.get("q") ?? "";
  const [key, low, high] = (wanted.get("range") ?? "").split("~");
  range.value = key && column(key) ? { key, low: Number(low), high: Number(high) } : null;
  if (range.value) histogram.value = range.value.key;
  const order = wanted.get("sort") ?? "";
  sort.value = { key: order.replace(/^-/, ""), down: order.startsWith("-") };
}

/** Note a changed filter in the address, without a step in the history for each letter. */
export function noteAddress(): void {
  // the address is ahead of what is shown when somebody goes back and forward quickly
  if (new URLSearchParams(location.hash.slice(1)).has("rollout")) return;
  if ((location.hash || "#") !== overview()) history.replaceState(null, "", overview());
}

export function open(one: Rollout | undefined, as: View = view.value): void {
  if (one) location.hash = address(one.id, as);
}

export function close(): void {
  location.hash = overview();
}

export function neighbour(by: number): Rollout | undefined {
  const place = rollout.value ? listed.value.indexOf(rollout.value) : -1;
  return place < 0 ? undefined : listed.value[place + by];
}

export function restore(): void {
  theme.value = (kept("theme") as Theme) ?? "auto";
  mono.value = kept("mono") === "yes";
  visible.value = new Set(columns.filter((one) => one.usual).map((one) => one.key));
}

export function keep(name: string, value: string): void {
  try {
    localStorage.setItem(`rollouts-report.${name}`, value);
  } catch {
    // a browser that keeps nothing for files
  }
}

function kept(name: string): string | null {
  try {
    return localStorage.getItem(`rollouts-report.${name}`);
  } catch {
    return null;
  }
}
