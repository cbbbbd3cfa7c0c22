/** What the charts show: the numbers of every step, of training and of evaluation. */

import { data, real, type Series } from "./data";
import { count, number, oneLine, percent, score } from "./format";

/** `null` is a gap in the line; a step that a split does not have is undefined, and the line goes on. */
export type Values = (number | null | undefined)[];

export interface Line {
  label: string;
  colour: string;
  values: Values;
  dashed?: boolean;
  /** Half the height of the band around the line, which ends where the values do. */
  spread?: Values;
  ends?: [Values, Values];
  /** What each share is made of: so many of how many. */
  parts?: [Values, Values];
}

export interface Chart {
  title: string;
  note: string;
  lines: Line[];
  write: (value: number | null) => string;
  /** The axis starts at zero. */
  grounded: boolean;
}

const COLOURS = ["--s1", "--s2", "--s3", "--s4", "--s5", "--s6"];
const MANY = 150;
/** A share of fewer things says nothing. */
export const HANDFUL = 10;

/** The steps of all splits; every line has a value or nothing for each. */
export let steps: number[] = [];

/** The charts of this run; one that would only show zeros is left out. */
export function charts(): Chart[] {
  steps = [...new Set(Object.values(data.steps).flatMap((series) => series.step as number[]))].sort((a, b) => a - b);
  const column = (name: string) => (series: Series, at: number) => real(series[name]?.[at]);
  const lines = (label: string, read: (series: Series, at: number) => number | null, spread?: typeof read): Line[] =>
    Object.entries(data.steps).map(([split, series], place) => ({
      label: Object.keys(data.steps).length > 1 ? split : label,
      colour: COLOURS[place % 2]!,
      dashed: split !== "train" && place > 0,
      values: spreadOut(series, read),
      spread: spread && place === 0 ? spreadOut(series, spread) : undefined,
      ends:
        spread && place === 0
          ? [spreadOut(series, column("reward_min")), spreadOut(series, column("reward_max"))]
          : undefined,
    }));
  const share =
    (part: string, whole: string, least = 1) =>
    (series: Series, at: number) => {
      const [of, all] = [real(series[part]?.[at]), real(series[whole]?.[at])];
      return of === null || !all || all < least ? null : of / all;
    };
  const failed = lines("share", share("tool_errors", "tool_calls", HANDFUL));
  Object.values(data.steps).forEach((series, place) => {
    failed[place]!.parts = [spreadOut(series, column("tool_errors")), spreadOut(series, column("tool_calls"))];
  });
  const areFew = failed.every((line) => line.values.every((value) => value == null));
  if (areFew) {
    failed.forEach((line) => (line.values = line.parts![0]));
  }
  const plain = (value: number | null) => score(value);
  const parts = (value: number | null) => (value === null ? "\u2013" : percent(value, 1));
  const round = (value: number | null) => (value === null ? "\u2013" : count(Math.round(value)));
  const made: Chart[] = [
    {
      title: "Reward",
      note: "mean \u00b1 standard deviation",
      lines: lines("mean", column("reward"), column("reward_std")),
      write: plain,
      grounded: false,
    },
    { title: "Reward by function", note: "mean", lines: byFunction(), write: plain, grounded: false },
    {
      title: "Spread in groups",
      note: "standard deviation",
      lines: lines("spread", column("group_std")),
      write: plain,
      grounded: true,
    },
    {
      title: "Groups without spread",
      note: "share",
      lines: lines("share", share("flat_groups", "groups")),
      write: parts,
      grounded: true,
    },
    {
      title: "Answer length",
      note: "tokens, mean",
      lines: lines("tokens", column("completion_tokens")),
      write: round,
      grounded: true,
    },
    {
      title: "Cut off at the limit",
      note: "share of rollouts",
      lines: lines("share", share("truncated", "rollouts")),
      write: parts,
      grounded: true,
    },
    {
      title: "Tool calls",
      note: "for each rollout",
      lines: lines("calls", share("tool_calls", "rollouts")),
      write: plain,
      grounded: true,
    },
    {
      title: "Failed tool calls",
      note: areFew ? "number of calls; too few for a share" : "share of calls",
      lines: failed,
      write: areFew ? round : parts,
      grounded: true,
    },
    {
      title: "Failed rollouts",
      note: "share of rollouts",
      lines: lines("share", share("errors", "rollouts")),
      write: parts,
      grounded: true,
    },
  ];
  made.push(...logged());
  return made.filter((chart) =>
    chart.lines.some((line) => line.values.some((value) => value != null && (value !== 0 || chart.title === "Reward"))),
  );
}

const LOGGED: Record<string, string> = {
  "log/loss": "Loss",
  "log/grad_norm": "Gradient norm",
  "log/kl": "KL",
  "log/entropy": "Entropy",
  "log/learning_rate": "Learning rate",
  "log/step_time": "Step time",
};

/** What the trainer itself logged. */
function logged(): Chart[] {
  const series = data.steps.train ?? {};
  return Object.entries(LOGGED)
    .filter(([name]) => name in series)
    .map(([name, title]) => ({
      title,
      note: name === "log/step_time" ? "seconds, as the trainer logs it" : "as the trainer logs it",
      lines: [{ label: title, colour: COLOURS[0]!, values: spreadOut(series, (one, at) => real(one[name]?.[at])) }],
      write: (value) => (value === null ? "\u2013" : number(value)),
      grounded: false,
    }));
}

function byFunction(): Line[] {
  const [split, series] = Object.entries(data.steps)[0] ?? [];
  const names = Object.keys(series ?? {}).filter((name) => name.startsWith("reward/"));
  if (!split || names.length < 2) return [];
  return names.map((name, place) => ({
    label: oneLine(name.slice("reward/".length), 40),
    colour: COLOURS[place % COLOURS.length]!,
    dashed: place >= COLOURS.length,
    values: spreadOut(series!, (one, at) => real(one[name]?.[at])),
  }));
}

/** The values of one split at the steps of all. */
function spreadOut(series: Series, read: (series: Series, at: number) => number | null): Values {
  const places = new Map((series.step ?? []).map((step, at) => [step, at]));
  return steps.map((step) => {
    const at = places.get(step);
    if (at === undefined) return undefined;
    const value = read(series, at);
    return value !== null && Number.isFinite(value) ? value : null;
  });
}

/** What a line says at a step: the share of how many, of a handful only the numbers. */
export function told(line: Line, chart: Chart, at: number): string {
  const value = line.values[at] ?? null;
  if (!line.parts) return chart.write(value);
  const [of, all] = line.parts.map((values) => values[at] ?? null);
  if (of == null || all == null) return chart.write(null);
  return all === 0 ? "no calls" : `${value === null ? count(of) : chart.write(value)} of ${count(all)}`;
}

/** The mean of so many neighbouring steps, where there are too many to see a course in. */
export const smoothing = (): number => (steps.length > MANY ? 2 * Math.round(steps.length / 80) + 1 : 1);

export function smoothed(values: Values): Values {
  const half = (smoothing() - 1) / 2;
  return values.map((value, at) => {
    if (value == null) return value;
    const near = values.slice(Math.max(0, at - half), at + half + 1).filter((one) => one != null);
    return near.reduce((sum, one) => sum + one, 0) / near.length;
  });
}
