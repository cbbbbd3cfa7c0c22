/** What the run was, its course, and its rollouts. */

import { useEffect } from "preact/hooks";
import { About } from "./about";
import { Charts } from "./charts";
import { HANDFUL } from "./course";
import { data, real, type Scalar } from "./data";
import { count, moment, number, percent, plural, score } from "./format";
import { Histogram } from "./histogram";
import { First } from "./first";
import { Prompts } from "./prompts";
import { query, range } from "./state";
import { Filter, Table } from "./table";

let scrolled = 0;

export function Overview() {
  useEffect(() => {
    if (scrolled || !(query.value || range.value)) scrollTo(0, scrolled);
    else document.getElementById("rollouts")?.scrollIntoView(); // the address is of a filter
    const note = () => (scrolled = scrollY);
    addEventListener("scroll", note, { passive: true });
    return () => removeEventListener("scroll", note);
  }, []);
  return (
    <>
      <Title />
      <First />
      <Notices />
      {data.total > 0 && <Tiles />}
      <About />
      {data.total > 0 && <Charts />}
      <Prompts />
      <section id="rollouts" aria-labelledby="rollouts-title">
        <h2 id="rollouts-title">Rollouts</h2>
        {data.rollouts.length ? (
          <>
            <Histogram />
            <Filter />
            <Table />
          </>
        ) : (
          <p class="nothing">
            {data.matched
              ? "This page was made to list no rollouts."
              : data.total
                ? "No rollout of this run matches the filters this page was made with."
                : "This run has no rollouts."}
          </p>
        )}
      </section>
    </>
  );
}

function Title() {
  const { run } = data;
  const [started] = run.attempts.map((attempt) => attempt.started).filter(Boolean);
  return (
    <header class="title">
      <h1 tabIndex={-1}>{run.name}</h1>
      <p class="dim">
        {[
          run.trainer,
          run.name.includes(run.id) ? "" : run.id,
          started ? moment(started) : "",
          run.world_size > 1 ? plural(run.world_size, "process", "processes") : "",
        ]
          .filter(Boolean)
          .join(" \u00b7 ")}
      </p>
    </header>
  );
}

function Notices() {
  const { run } = data;
  const filters = Object.entries(data.filters)
    .filter(([name]) => name !== "limit")
    .map(([name, value]) => `${name} ${value}`);
  const counts = (of: Record<string, number>) =>
    Object.entries(of)
      .filter(([, times]) => times)
      .map(([name, times]) => `${count(times)} ${name}`)
      .join(", ");
  const errors = counts(run.plugin_errors);
  const damaged = Object.entries(data.damaged);
  const lines: [string, string][] = [];
  if (filters.length) lines.push(["note", `Only rollouts with ${filters.join(", ")} are listed. The charts show all.`]);
  if (data.matched > data.rollouts.length)
    lines.push([
      "note",
      `This page lists ${count(data.rollouts.length)} of ${plural(data.matched, "rollout")}${data.filters.order ? ", the first in the order asked for" : ": whole groups, spread over the steps"}. The charts show all.`,
    ]);
  if (errors) lines.push(["warn", `Errors of plugins: ${errors}.`]);
  const warnings = Object.entries(run.warnings);
  for (const [text, times] of warnings.slice(0, 5))
    lines.push(["warn", `Warning: ${text}${times > 1 ? ` (${count(times)} times)` : ""}`]);
  if (warnings.length > 5)
    lines.push(["warn", `And ${plural(warnings.length - 5, "other warning")}, see run.warnings.`]);
  for (const [name, why] of damaged) lines.push(["warn", `${name} cannot be read and is not counted: ${why}`]);
  if (data.texts_cut)
    lines.push([
      "note",
      `${plural(data.texts_cut, "text")} had to be shortened in the middle to keep this file small; each says so where it is.`,
    ]);
  if (data.images_spared)
    lines.push([
      "note",
      `${plural(data.images_spared, "image")} are smaller than they were, or left out, to keep this file small; each says so where it is.`,
    ]);
  if (!lines.length) return null;
  return (
    <ul class="notices">
      {lines.map(([kind, line]) => (
        <li key={line} class={kind}>
          {line}
        </li>
      ))}
    </ul>
  );
}

/** How many calls failed, with their share unless they are a handful. */
function failures(failed: number, calls: number): string {
  const share = calls >= HANDFUL ? ` (${percent(failed, calls)})` : "";
  return failed ? `${count(failed)} failed${share}` : "none failed";
}

function Tiles() {
  const splits = Object.entries(data.steps);
  const [name, series] = splits[0] ?? ["", {}];
  const ends = (key: string): [Scalar, Scalar] | null => {
    const known = (series[key] ?? []).filter((value) => real(value) !== null);
    return known.length ? [known[0]!, known[known.length - 1]!] : null;
  };
  const sum = (key: string) => (series[key] ?? []).reduce((total: number, value) => total + (real(value) ?? 0), 0);
  const change = (key: string, write: (value: Scalar) => string) => {
    const known = ends(key);
    return known
      ? write(known[0]) === write(known[1])
        ? write(known[0])
        : `${write(known[0])} \u2192 ${write(known[1])}`
      : null;
  };
  const steps = ends("step")?.map((step) => number(step)) ?? [];
  const over = steps[0] === steps[1] ? `step ${steps[0]}` : `steps ${steps.join(" \u2013 ")}`;
  const tiles: [string, string | null, string][] = [
    [
      "rollouts",
      count(data.total),
      splits.length > 1
        ? splits
            .map(
              ([split, one]) =>
                `${count((one.rollouts ?? []).reduce((total: number, value) => total + Number(value), 0))} ${split}`,
            )
            .join(", ")
        : steps.length
          ? over
          : "",
    ],
    ["reward", change("reward", score), "first and last step"],
    ["answer length", change("completion_tokens", (value) => count(Math.round(Number(value)))), "tokens"],
    ["cut off", sum("truncated") ? percent(sum("truncated"), sum("rollouts")) : null, "at the length limit"],
    [
      "tool calls",
      sum("tool_calls") ? count(sum("tool_calls")) : null,
      failures(sum("tool_errors"), sum("tool_calls")),
    ],
    ["errors", sum("errors") ? count(sum("errors")) : null, "failed rollouts"],
  ];
  return (
    <dl class="tiles" aria-label={splits.length > 1 ? `The run in numbers, ${name}` : "The run in numbers"}>
      {tiles
        .filter(([, value]) => value)
        .map(([label, value, note]) => (
          <div key={label}>
            <dt>{label}</dt>
            <dd>
              <b class="num">{value}</b>
              {note && <span class="dim small">{note}</span>}
            </dd>
          </div>
        ))}
    </dl>
  );
}
