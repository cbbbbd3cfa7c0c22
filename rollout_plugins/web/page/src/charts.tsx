/** The course of the run: small charts of all steps that share one cursor. */

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { charts, smoothing, steps, told, type Chart, type Line } from "./course";
import { data } from "./data";
import { count, number } from "./format";
import { draw, HEIGHT, show } from "./plot";
import { hover, printing, query, theme } from "./state";

export function Charts() {
  const all = useRef<Chart[] | undefined>(undefined);
  all.current ??= charts();
  if (!all.current.length) return null;
  return (
    <section class="charts" aria-labelledby="over-training">
      <h2 id="over-training">Over training</h2>
      <p class="dim hint screen">
        All {count(data.total)} rollouts
        {data.step_width > 1 && `, each point ${data.step_width} steps`}
        {smoothing() > 1 && `, each line the mean of ${smoothing()} points`}. Point at a step to read it, click it to
        list its rollouts.
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
    const plot = draw(chart, place.current!, listStep);
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
        <div class="head">
          <b>{chart.title}</b>{" "}
          <span class="dim num">{hover.value === null ? chart.note : `step ${steps[hover.value]}`}</span>
        </div>
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
  const next = steps[at]! + data.step_width;
  query.value = data.step_width > 1 ? `step>=${steps[at]} step<${next}` : `step=${steps[at]}`;
  document
    .getElementById("rollouts")
    ?.scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
}

/** Each line's first and last value, or those at the cursor. */
function Key({ chart }: { chart: Chart }) {
  const at = hover.value;
  return (
    <span class="key">
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
  return told(line, chart, at) + (spread ? ` \u00b1 ${chart.write(spread)}` : "");
}

function change(line: Line, chart: Chart): string {
  const values = line.parts?.[1] ?? line.values;
  const known = [...values.keys()].filter((at) => values[at] != null);
  if (!known.length) return "\u2013";
  const ends = [told(line, chart, known[0]!), told(line, chart, known[known.length - 1]!)];
  return ends[0] === ends[1] ? ends[0]! : ends.join(" \u2192 ");
}

function described(chart: Chart): string {
  const lines = chart.lines.map((line) => `${line.label} ${change(line, chart).replace("\u2192", "to")}`);
  return `${chart.title}, ${chart.note}, steps ${steps[0]} to ${steps[steps.length - 1]}: ${lines.join("; ")}`;
}

/** Every number of the charts as a table. */
function Numbers() {
  const [isOpen, setOpen] = useState(false);
  const shown = isOpen ? Object.entries(data.steps) : [];
  return (
    <details class="numbers screen" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>All numbers as a table</summary>
      {shown.map(([split, series]) => {
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
