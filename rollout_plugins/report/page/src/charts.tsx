/** The course of the run: small charts of all steps that share one cursor. */

import { useLayoutEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { data, real, type Series } from "./data";
import { count, number, percent } from "./format";
import { hover, printing, query, theme } from "./state";

interface Line {
  label: string;
  colour: string;
  values: (number | null)[];
  dashed?: boolean;
  /** Half the height of the band around the line, which ends where the values do. */
  spread?: (number | null)[];
  ends?: [(number | null)[], (number | null)[]];
}

interface Chart {
  title: string;
  note: string;
  lines: Line[];
  write: (value: number | null) => string;
  /** The axis starts at nought. */
  grounded: boolean;
}

const COLOURS = ["--s1", "--s2", "--s3", "--s4", "--s5", "--s6"];
const HEIGHT = 150;
const MANY = 150;

let steps: number[] = [];

/** The charts of this run; one that would only show noughts is left out. */
function charts(): Chart[] {
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
  const share = (part: string, whole: string) => (series: Series, at: number) => {
    const [of, all] = [real(series[part]?.[at]), real(series[whole]?.[at])];
    return of === null || !all ? null : of / all;
  };
  const plain = (value: number | null) => number(value);
  const parts = (value: number | null) => (value === null ? "\u2013" : percent(value, 1));
  const round = (value: number | null) => (value === null ? "\u2013" : count(Math.round(value)));
  const made: Chart[] = [
    {
      title: "Reward",
      note: "mean, and one standard deviation around it",
      lines: lines("mean", column("reward"), column("reward_std")),
      write: plain,
      grounded: false,
    },
    { title: "Reward by function", note: "mean", lines: byFunction(), write: plain, grounded: false },
    {
      title: "Spread within groups",
      note: "standard deviation of siblings",
      lines: lines("spread", column("group_std")),
      write: plain,
      grounded: true,
    },
    {
      title: "Groups with equal rewards",
      note: "their share",
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
      write: (value) => number(value, 2),
      grounded: true,
    },
    {
      title: "Failed tool calls",
      note: "share of calls",
      lines: lines("share", share("tool_errors", "tool_calls")),
      write: parts,
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
  return made.filter((chart) =>
    chart.lines.some((line) =>
      line.values.some((value) => value !== null && (value !== 0 || chart.title === "Reward")),
    ),
  );
}

function byFunction(): Line[] {
  const [split, series] = Object.entries(data.steps)[0] ?? [];
  const names = Object.keys(series ?? {}).filter((name) => name.startsWith("reward/"));
  if (!split || names.length < 2) return [];
  return names.map((name, place) => ({
    label: name.slice("reward/".length),
    colour: COLOURS[place % COLOURS.length]!,
    dashed: place >= COLOURS.length,
    values: spreadOut(series!, (one, at) => real(one[name]?.[at])),
  }));
}

/** The values of one split at the steps of all. */
function spreadOut(series: Series, read: (series: Series, at: number) => number | null): (number | null)[] {
  const places = new Map((series.step ?? []).map((step, at) => [step, at]));
  return steps.map((step) => {
    const at = places.get(step);
    const value = at === undefined ? null : read(series, at);
    return value !== null && Number.isFinite(value) ? value : null;
  });
}

export function Charts() {
  const all = useRef<Chart[] | undefined>(undefined);
  all.current ??= charts();
  if (!all.current.length) return null;
  return (
    <section class="charts" aria-labelledby="over-training">
      <h2 id="over-training">Over training</h2>
      <p class="dim hint screen">
        All {count(data.total)} rollouts{window_() > 1 && `, each line the mean of ${window_()} steps`}. Point at a step
        to read it, click it to list its rollouts.
      </p>
      <div class="grid">
        {all.current.map((chart) => (
          <Figure key={chart.title} chart={chart} />
        ))}
      </div>
      <Numbers />
    </section>
  );
}

function Figure({ chart }: { chart: Chart }) {
  const place = useRef<HTMLDivElement>(null);
  const look = `${theme.value} ${printing.value}`;
  useLayoutEffect(() => {
    const plot = draw(chart, place.current!);
    const fit = () => plot.setSize({ width: place.current!.clientWidth, height: HEIGHT });
    const watching = new ResizeObserver(fit);
    watching.observe(place.current!);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const repaint = () => plot.redraw(false);
    dark.addEventListener("change", repaint);
    const stop = hover.subscribe((at) => show(plot, at));
    return () => {
      stop();
      watching.disconnect();
      dark.removeEventListener("change", repaint);
      plot.destroy();
    };
  }, [look]);
  return (
    <figure class="chart">
      <figcaption>
        <b>{chart.title}</b> <span class="dim">{chart.note}</span>
        <Key chart={chart} />
      </figcaption>
      <div
        ref={place}
        class="plot"
        role="slider"
        tabIndex={0}
        aria-label={described(chart)}
        {...stepValues()}
        onKeyDown={walk}
        onBlur={() => (hover.value = null)}
      />
    </figure>
  );
}

function stepValues() {
  const at = hover.value;
  return {
    "aria-valuemin": 0,
    "aria-valuemax": steps.length - 1,
    "aria-valuenow": at ?? 0,
    "aria-valuetext": at === null ? "no step chosen" : `step ${steps[at]}`,
  };
}

/** Arrow keys move the cursor over the steps, Enter lists the step's rollouts. */
function walk(event: KeyboardEvent): void {
  const at = hover.value;
  const to = { ArrowLeft: (at ?? steps.length) - 1, ArrowRight: (at ?? -1) + 1, Home: 0, End: steps.length - 1 }[
    event.key
  ];
  if (to !== undefined) hover.value = Math.max(0, Math.min(steps.length - 1, to));
  else if (event.key === "Enter" && at !== null) listStep(at);
  else return;
  event.preventDefault();
}

function listStep(at: number): void {
  query.value = `step=${steps[at]}`;
  document
    .getElementById("rollouts")
    ?.scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
}

/** Each line's first and last value, or those at the cursor. */
function Key({ chart }: { chart: Chart }) {
  const at = hover.value;
  return (
    <span class="key">
      {at !== null && <span class="at">step {steps[at]}</span>}
      {chart.lines.map((line) => (
        <span key={line.label}>
          {chart.lines.length > 1 && <i class={line.dashed ? "dash" : "line"} data-colour={line.colour} />}
          {chart.lines.length > 1 && <span class="name">{line.label} </span>}
          <span class="num">{at === null ? change(line, chart) : reading(line, chart, at)}</span>
        </span>
      ))}
    </span>
  );
}

function reading(line: Line, chart: Chart, at: number): string {
  const spread = line.spread?.[at];
  return chart.write(line.values[at] ?? null) + (spread ? ` \u00b1 ${chart.write(spread)}` : "");
}

function change(line: Line, chart: Chart): string {
  const known = line.values.filter((value) => value !== null);
  if (!known.length) return "\u2013";
  const ends = [chart.write(known[0]!), chart.write(known[known.length - 1]!)];
  return ends[0] === ends[1] ? ends[0]! : ends.join(" \u2192 ");
}

function described(chart: Chart): string {
  const lines = chart.lines.map((line) => `${line.label} ${change(line, chart).replace("\u2192", "to")}`);
  return `${chart.title}, ${chart.note}, steps ${steps[0]} to ${steps[steps.length - 1]}: ${lines.join("; ")}`;
}

function show(plot: uPlot, at: number | null): void {
  const left = at === null ? -10 : plot.valToPos(steps[at]!, "x");
  plot.setCursor({ left, top: at === null ? -10 : 10 }, false);
}

function draw(chart: Chart, place: HTMLElement): uPlot {
  const colour = (name: string) => () => resolved(place, name);
  const axis = {
    stroke: colour("--dim"),
    font: "11px system-ui, sans-serif",
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
  };
  const banded = chart.lines.filter((line) => line.spread);
  const lone = steps.length < 2;
  const calm = window_() > 1 ? chart.lines.map((line) => smoothed(line.values)) : [];
  const faint = (name: string) => () => `color-mix(in srgb, ${resolved(place, name)} 35%, transparent)`;
  const options: uPlot.Options = {
    width: place.clientWidth || 300,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
    scales: { x: { time: false }, y: { range: (_, low, high) => bounds(low, high, chart.grounded) } },
    axes: [
      {
        ...axis,
        size: 24,
        gap: 4,
        values: (_, marks) => marks.map((mark) => (Number.isInteger(mark) ? count(mark) : "")),
      },
      { ...axis, size: 44, gap: 4, values: (_, marks) => marks.map((mark) => chart.write(mark)) },
    ],
    series: [
      {},
      ...chart.lines.map((line) => ({
        stroke: calm.length ? faint(line.colour) : colour(line.colour),
        width: calm.length ? 1 : 1.75,
        dash: line.dashed ? [5, 4] : undefined,
        spanGaps: true,
        points: {
          show: lone || line.values.filter((value) => value !== null).length < 12,
          size: 5,
          fill: colour(line.colour),
        },
      })),
      ...banded.flatMap(() => [
        { stroke: "transparent", points: { show: false } },
        { stroke: "transparent", points: { show: false } },
      ]),
      ...calm.map((_, at) => ({
        stroke: colour(chart.lines[at]!.colour),
        width: 1.75,
        dash: chart.lines[at]!.dashed ? [5, 4] : undefined,
        spanGaps: true,
        points: { show: false },
      })),
    ],
    bands: banded.map((line, place_) => ({
      series: [chart.lines.length + 2 + 2 * place_, chart.lines.length + 1 + 2 * place_],
      fill: () => `color-mix(in srgb, ${resolved(place, line.colour)} 16%, transparent)`,
    })),
    hooks: {
      setCursor: [(plot) => plot.cursor.event && (hover.value = plot.cursor.idx ?? null)],
      ready: [
        (plot) => plot.over.addEventListener("click", () => plot.cursor.idx != null && listStep(plot.cursor.idx)),
      ],
    },
  };
  const edges = banded.flatMap((line) => [edge(line, -1), edge(line, 1)]);
  return new uPlot(
    options,
    [steps, ...chart.lines.map((line) => line.values), ...edges, ...calm] as uPlot.AlignedData,
    place,
  );
}

/** One standard deviation below or above, but not beyond the least or the most there was. */
const edge = (line: Line, sign: -1 | 1): (number | null)[] =>
  line.values.map((value, at) => {
    const end = line.ends?.[sign < 0 ? 0 : 1][at] ?? sign * Infinity;
    return value === null ? null : sign * Math.min(sign * (value + sign * (line.spread![at] ?? 0)), sign * end);
  });

/** The mean of so many neighbouring steps, where there are too many to see a course in. */
const window_ = (): number => (steps.length > MANY ? 2 * Math.round(steps.length / 80) + 1 : 1);

function smoothed(values: (number | null)[]): (number | null)[] {
  const half = (window_() - 1) / 2;
  return values.map((value, at) => {
    if (value === null) return null;
    const near = values.slice(Math.max(0, at - half), at + half + 1).filter((one) => one !== null);
    return near.reduce((sum, one) => sum + one, 0) / near.length;
  });
}

/** A little air around the values; never an axis without height. */
function bounds(low: number | null, high: number | null, grounded: boolean): [number, number] {
  const [from, to] = [low ?? 0, high ?? 1];
  const air = (to - from || Math.abs(to) || 1) * 0.08;
  return [grounded ? Math.min(0, from) : from - air, to + air];
}

/** A colour of the style sheet as the canvas takes it, light or dark. */
function resolved(place: HTMLElement, name: string): string {
  const probe = place.appendChild(document.createElement("i"));
  if (printing.value) probe.style.colorScheme = "light";
  probe.style.color = `var(${name})`;
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

/** Every number of the charts as a table. */
function Numbers() {
  return (
    <details class="numbers screen">
      <summary>All numbers as a table</summary>
      {Object.entries(data.steps).map(([split, series]) => {
        const names = Object.keys(series).filter((name) =>
          series[name]!.some((value) => value !== null && value !== 0),
        );
        return (
          <div class="scroll" tabIndex={0} role="region" aria-label={`Numbers of ${split}`} key={split}>
            <table class="plain">
              <caption>{split}</caption>
              <thead>
                <tr>
                  {names.map((name) => (
                    <th scope="col" key={name}>
                      {name.replaceAll("_", " ")}
                    </th>
                  ))}
                </tr>
              </thead>
              <tbody>
                {series.step!.map((step, at) => (
                  <tr key={step}>
                    {names.map((name) => (
                      <td class="num" key={name}>
                        {number(series[name]![at])}
                      </td>
                    ))}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        );
      })}
    </details>
  );
}
