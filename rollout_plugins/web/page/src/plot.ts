/** Draws a chart: lines, the band around a mean, and the colours of the page. */

import uPlot from "uplot";
import { smoothed, smoothing, steps, type Chart, type Line, type Values } from "./course";
import { count, short } from "./format";
import { hover, printing } from "./state";

export const HEIGHT = 150;

export function show(plot: uPlot, at: number | null): void {
  const left = at === null ? -10 : plot.valToPos(steps[at]!, "x");
  plot.setCursor({ left, top: at === null ? -10 : 10 }, false);
}

export function draw(chart: Chart, place: HTMLElement, choose: (at: number) => void): uPlot {
  const colour = (name: string) => () => resolved(place, name);
  const axis = {
    stroke: colour("--dim"),
    font: "11px system-ui, sans-serif",
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
  };
  const banded = chart.lines.filter((line) => line.spread);
  const lone = steps.length < 2;
  const calm = smoothing() > 1 ? chart.lines.map((line) => smoothed(line.values)) : [];
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
      { ...axis, size: 44, gap: 4, values: (_, marks) => marks.map((mark) => label(chart, mark)) },
    ],
    series: [
      {},
      ...chart.lines.map((line) => ({
        stroke: calm.length ? faint(line.colour) : colour(line.colour),
        width: calm.length ? 1 : 1.75,
        dash: line.dashed ? [5, 4] : undefined,
        spanGaps: false,
        points: {
          show: lone || line.values.filter((value) => value != null).length < 12,
          filter: (_: uPlot, __: number, show: boolean) => (show ? null : isolated(line.values)),
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
        spanGaps: false,
        points: { show: false },
      })),
    ],
    bands: banded.map((line, place_) => ({
      series: [chart.lines.length + 2 + 2 * place_, chart.lines.length + 1 + 2 * place_],
      fill: () => `color-mix(in srgb, ${resolved(place, line.colour)} 16%, transparent)`,
    })),
    hooks: {
      setCursor: [(plot) => plot.cursor.event && (hover.value = plot.cursor.idx ?? null)],
      ready: [(plot) => plot.over.addEventListener("click", () => plot.cursor.idx != null && choose(plot.cursor.idx))],
    },
  };
  const edges = banded.flatMap((line) => [edge(line, -1), edge(line, 1)]);
  return new uPlot(
    options,
    [steps, ...chart.lines.map((line) => line.values), ...edges, ...calm] as uPlot.AlignedData,
    place,
  );
}

/** Values between two gaps, which no line reaches. */
const isolated = (values: Values): number[] => {
  const known = values.map((value, at) => [value, at] as const).filter(([value]) => value !== undefined);
  return known
    .filter(([value], place) => value !== null && known[place - 1]?.[0] == null && known[place + 1]?.[0] == null)
    .map(([, at]) => at);
};

/** One standard deviation below or above, but not beyond the least or the most there was. */
const edge = (line: Line, sign: -1 | 1): Values =>
  line.values.map((value, at) => {
    const end = line.ends?.[sign < 0 ? 0 : 1][at] ?? sign * Infinity;
    return value == null ? value : sign * Math.min(sign * (value + sign * (line.spread![at] ?? 0)), sign * end);
  });

/** Without zeros at the end, and no longer than there is room for. */
const label = (chart: Chart, mark: number): string =>
  Math.abs(mark) >= 1e4
    ? short(mark)
    : chart
        .write(mark)
        .replace(/(\.\d*?)0+$/, "$1")
        .replace(/\.$/, "");

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
