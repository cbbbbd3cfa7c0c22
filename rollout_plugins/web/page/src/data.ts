/** The run as `rollouts report` put it into the page. Texts and images stand once and are named by number. */

export type Scalar = null | boolean | number | string;
export type Value = Scalar | { text: number };
export type Part = number | { image: number };

export interface Call {
  name: string;
  status: "ok" | "error" | "unknown" | "not_run";
  arguments?: number;
  result?: Part[];
  error?: number;
  seconds?: number;
}

export interface Turn {
  role: string;
  parts?: Part[];
  reasoning?: number;
  calls?: Call[];
  place?: number;
}

export interface Panel {
  title: string;
  text?: number;
  table?: Value[][];
  image?: number;
  turn?: number;
  replaces?: boolean;
}

export interface Rollout {
  id: string;
  split: string;
  step: Scalar;
  policy_step: Scalar;
  attempt: Scalar;
  generation: Scalar;
  rank: Scalar;
  index: Scalar;
  group: Scalar;
  group_size: Scalar;
  time: Scalar;
  reward: Scalar;
  advantage: Scalar;
  prompt_tokens: Scalar;
  completion_tokens: Scalar;
  finish: string;
  rewards: Record<string, Scalar>;
  calls: number;
  failed: number;
  prompt: number;
  turns: Turn[];
  error?: number;
  marks?: Record<string, Value>;
  columns?: Record<string, Value>;
  extra?: Record<string, Value>;
  panels?: Panel[];
  images?: number[];
}

export interface Picture {
  data?: string;
  name?: string;
  note?: string;
  why?: string;
  width?: number;
  height?: number;
  reduced?: boolean;
}

export type Series = Record<string, Scalar[]>;

export interface Run {
  id: string;
  name: string;
  trainer: string;
  model: string;
  world_size: number;
  num_generations: number | null;
  rewards: [string, number | null][];
  tools: { name: string; description: Value; schema: Value }[];
  chat_template: Value;
  versions: Record<string, Value>;
  settings: Record<string, Value>;
  attempts: Record<string, number>[];
  not_finite: Record<string, { nan: number; infinite: number }>;
  drops: Record<string, number>;
  untrained: Record<string, number>;
  unsent: Record<string, number>;
  plugin_errors: Record<string, number>;
  warnings: Record<string, number>;
  annotations: Record<string, string[]>;
}

export interface Extreme {
  id: string;
  reward: Scalar;
  step: Scalar;
  /** How many others got as much. */
  as_much: number;
}

/** What a check found. */
export interface Finding {
  check: string;
  severity: "info" | "warning" | "severe";
  title: string;
  text: string;
  advice: string;
  /** Ids of a few rollouts that show it. */
  rollouts: string[];
  total: number;
  /** What to type to see them in a terminal. */
  command: string;
}

/** What a person looks at first. */
export interface First {
  best?: Extreme;
  worst?: Extreme;
  /** The most severe first. */
  findings: Finding[];
  /** How many checks looked and found nothing. */
  clear: number;
  /** Checks that had nothing to look at, and why. */
  unobserved: Record<string, string>;
}

/** A prompt of the run: how often it passed, and what became of it. */
export interface Prompt {
  prompt_id: string;
  band: string | null;
  pass_rate: Scalar;
  trend: string;
  reward_mean: Scalar;
  attempts: number;
  first_solved: Scalar;
  tool_calls: number;
  failed_calls: number;
  question: string;
  last_rollout: string;
}

interface Data {
  version: string;
  made: number;
  run: Run;
  first: First;
  /** None where nothing lists them. */
  prompts: { headline: string; rows: Prompt[]; total: number } | null;
  total: number;
  matched: number;
  filters: Record<string, string>;
  damaged: Record<string, string>;
  steps: Record<string, Series>;
  /** How many steps stand in one point. */
  step_width: number;
  rollouts: Rollout[];
  images: Picture[];
  images_spared: number;
  texts: string[];
  texts_cut: number;
}

export let data: Data;
const byId = new Map<string, Rollout>();

export async function load(): Promise<void> {
  const packed = atob(document.getElementById("data")!.textContent!);
  const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  data = await new Response(stream).json();
  for (const rollout of data.rollouts) if (!byId.has(rollout.id)) byId.set(rollout.id, rollout);
}

export const find = (id: string): Rollout | undefined => byId.get(id);

export const text = (number: number | undefined): string => (number === undefined ? "" : (data.texts[number] ?? ""));

export const plain = (value: Value): Scalar => (value !== null && typeof value === "object" ? text(value.text) : value);

/** A number, "nan" and "inf" among them; null for everything else. */
export function real(value: Scalar | undefined): number | null {
  if (typeof value === "number") return value;
  if (typeof value !== "string") return null;
  return { nan: NaN, inf: Infinity, "-inf": -Infinity }[value] ?? null;
}

/** The texts a person would search: what was said, thought, called and answered. */
export function textsOf(rollout: Rollout): Set<number> {
  const found = new Set<number>();
  const add = (part: Part | undefined) => typeof part === "number" && found.add(part);
  for (const turn of rollout.turns) {
    turn.parts?.forEach(add);
    add(turn.reasoning);
    for (const call of turn.calls ?? []) {
      add(call.arguments);
      call.result?.forEach(add);
      add(call.error);
    }
  }
  add(rollout.error);
  return found;
}

export const said = (parts: Part[] | undefined): string =>
  (parts ?? []).map((part) => (typeof part === "number" ? text(part) : `[image ${part.image + 1}]`)).join("\n");

/** The last words of the model, and of whoever asked. */
export function lastWords(rollout: Rollout, asked: boolean): string {
  const turns = rollout.turns.filter((turn) => (turn.place === undefined) === asked);
  for (const turn of turns.reverse()) {
    if (asked ? turn.role === "system" : turn.role !== "assistant") continue;
    const words = said(turn.parts).trim() || (turn.calls ?? []).map((call) => call.name).join(", ");
    if (words) return words;
  }
  return "";
}

export const siblings = (one: Rollout): Rollout[] =>
  data.rollouts.filter(
    (other) =>
      other.split === one.split &&
      other.generation === one.generation &&
      other.attempt === one.attempt &&
      other.group === one.group,
  );

const spreads = new Map<string, number | null>();

/** How far the rewards of a rollout's group lie apart; null when it is alone, or when a reward is missing. */
export function spreadOf(one: Rollout): number | null {
  const key = [one.split, one.attempt, one.generation, one.group].join();
  if (!spreads.size) {
    const groups = new Map<string, (number | null)[]>();
    for (const each of data.rollouts) {
      const of = [each.split, each.attempt, each.generation, each.group].join();
      groups.set(of, [...(groups.get(of) ?? []), real(each.reward)]);
    }
    for (const [of, rewards] of groups) {
      const known = rewards.length > 1 && rewards.every((reward) => reward !== null && Number.isFinite(reward));
      spreads.set(of, known ? Math.max(...(rewards as number[])) - Math.min(...(rewards as number[])) : null);
    }
  }
  return spreads.get(key) ?? null;
}

export const samePrompt = (one: Rollout): Rollout[] => data.rollouts.filter((other) => other.prompt === one.prompt);

/** What checks found that a rollout shows. */
export const findingsOf = (rollout: Rollout): Finding[] =>
  data.first.findings.filter((finding) => finding.rollouts.includes(rollout.id));
