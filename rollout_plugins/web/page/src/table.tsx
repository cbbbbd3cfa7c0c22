/** The rollouts as a table: any number of rows, of which only those in sight exist. */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { columns, type Column } from "./columns";
import { data, real, type Rollout } from "./data";
import { count, plural } from "./format";
import { hint } from "./query";
import {
  address,
  asked,
  listed,
  noteAddress,
  onPhone,
  open,
  parsed,
  printing,
  query,
  range,
  sort,
  visible,
} from "./state";

const ROW = 34;
const SPARE = 12;
const PRINTED = 60;
let scrolled = 0;
let current = 0;

export function Filter() {
  const wrong = parsed.value.wrong;
  useEffect(noteAddress, [query.value, range.value, sort.value]);
  return (
    <div class="filter">
      <div class="box">
        <input
          id="filter"
          type="search"
          placeholder={'reward<0.5 step>=10 finish=length tool:name "some words"'}
          aria-label="Filter and search"
          aria-describedby="filter-says"
          aria-invalid={wrong ? true : undefined}
          spellcheck={false}
          autocomplete="off"
          value={query.value}
          onInput={(event) => (query.value = event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Escape") query.value ? (query.value = "") : event.currentTarget.blur();
            else if (event.key === "ArrowDown" || event.key === "Enter") focusRow(current);
            else return;
            event.preventDefault();
            event.stopPropagation();
          }}
        />
        <Picker />
      </div>
      <p id="filter-says" class={wrong ? "bad small" : "dim small"} role="status">
        {wrong || `${count(listed.value.length)} of ${plural(data.rollouts.length, "rollout")}`}
        {!wrong && data.matched > data.rollouts.length && `; ${count(data.matched)} in the run`}
      </p>
    </div>
  );
}

function Picker() {
  const place = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    const close = (event: Event) => {
      if (!place.current!.contains(event.target as Node)) place.current!.open = false;
    };
    addEventListener("pointerdown", close);
    return () => removeEventListener("pointerdown", close);
  }, []);
  const onKey = (event: KeyboardEvent) => {
    if (event.key !== "Escape" || !place.current!.open) return;
    place.current!.open = false;
    place.current!.querySelector("summary")!.focus();
    event.stopPropagation();
  };
  return (
    <details class="picker" ref={place} onKeyDown={onKey}>
      <summary>Columns</summary>
      <fieldset>
        <legend class="sr">Columns of the table</legend>
        {columns.map((one) => (
          <label key={one.key}>
            <input
              type="checkbox"
              checked={visible.value.has(one.key)}
              onChange={(event) => {
                const chosen = new Set(visible.value);
                if (event.currentTarget.checked) chosen.add(one.key);
                else chosen.delete(one.key);
                visible.value = chosen;
              }}
            />
            {one.key}
          </label>
        ))}
      </fieldset>
    </details>
  );
}

export function Table() {
  const place = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(scrolled);
  const [height, setHeight] = useState(480);
  const rows = listed.value;
  const chosen = columns.filter((one) => visible.value.has(one.key));
  const shown = onPhone() ? [...chosen].sort((a, b) => Number(b.wide ?? false) - Number(a.wide ?? false)) : chosen;
  useLayoutEffect(() => {
    const box = place.current!;
    box.scrollTop = scrolled;
    const watching = new ResizeObserver(() => setHeight(box.clientHeight));
    watching.observe(box);
    return () => watching.disconnect();
  }, []);
  const first = useRef(rows);
  useLayoutEffect(() => {
    if (first.current === rows) return;
    first.current = rows;
    current = 0;
    if (place.current) place.current.scrollTop = 0;
  }, [rows]);
  const from = printing.value ? 0 : Math.max(0, Math.floor(top / ROW) - SPARE);
  const to = printing.value
    ? Math.min(rows.length, PRINTED)
    : Math.min(rows.length, Math.ceil((top + height) / ROW) + SPARE);
  const least = rows.length ? extremes(rows) : null;
  return (
    <>
      <div ref={place} class="scroll rows" onScroll={(event) => setTop((scrolled = event.currentTarget.scrollTop))}>
        <table aria-rowcount={rows.length + 1} aria-label="Rollouts">
          <thead>
            <tr aria-rowindex={1}>
              {shown.map((one) => (
                <Head key={one.key} column={one} />
              ))}
            </tr>
          </thead>
          <tbody onKeyDown={(event) => walk(event, rows.length)}>
            <Gap rows={from} wide={shown.length} />
            {rows.slice(from, to).map((one, at) => (
              <Row key={one.id} rollout={one} place={from + at} columns={shown} extremes={least} />
            ))}
            <Gap rows={printing.value ? 0 : rows.length - to} wide={shown.length} />
          </tbody>
        </table>
        {!rows.length && <Nothing />}
      </div>
      {printing.value && rows.length > PRINTED && (
        <p class="dim">
          The first {PRINTED} of {count(rows.length)} rows.
        </p>
      )}
    </>
  );
}

function Nothing() {
  return (
    <p class="nothing">
      No rollout in this page matches.{" "}
      <button
        type="button"
        class="link"
        onClick={() => {
          query.value = "";
          range.value = null;
        }}
      >
        Show all {count(data.rollouts.length)}
      </button>
      {!asked.value.length && <span class="dim small"> {hint()}</span>}
    </p>
  );
}

const Gap = ({ rows, wide }: { rows: number; wide: number }) =>
  rows > 0 ? (
    <tr class="gap" aria-hidden="true">
      <td colSpan={wide} style={{ height: `${rows * ROW}px` }} />
    </tr>
  ) : null;

function Head({ column }: { column: Column }) {
  const { key, down } = sort.value;
  const chosen = key === column.key;
  const order = chosen ? (down ? "descending" : "ascending") : "none";
  const next = () => {
    // numbers are asked for from the top first, words from A on
    if (!chosen)
      sort.value = { key: column.key, down: column.numeric && column.key !== "step" && column.key !== "group" };
    else if (down === (column.numeric && column.key !== "step" && column.key !== "group"))
      sort.value = { key: column.key, down: !down };
    else sort.value = { key: "", down: false };
  };
  return (
    <th scope="col" aria-sort={order} class={kind(column)}>
      <button type="button" onClick={next}>
        {column.label}
        <span class="arrow" aria-hidden="true">
          {chosen ? (down ? "\u2193" : "\u2191") : ""}
        </span>
      </button>
    </th>
  );
}

const kind = (column: Column): string => (column.numeric ? "num" : column.wide ? "wide" : "");

/** The bounds of the reward, for the bar beside it. */
function extremes(rows: Rollout[]): [number, number] | null {
  let [low, high] = [0, 0];
  for (const one of data.rollouts.length < 20000 ? data.rollouts : rows) {
    const value = real(one.reward);
    if (value !== null && Number.isFinite(value)) [low, high] = [Math.min(low, value), Math.max(high, value)];
  }
  return high > low ? [low, high] : null;
}

function Row({
  rollout,
  place,
  columns: shown,
  extremes: bounds,
}: {
  rollout: Rollout;
  place: number;
  columns: Column[];
  extremes: [number, number] | null;
}) {
  return (
    <tr
      aria-rowindex={place + 2}
      data-place={place}
      tabIndex={place === current ? 0 : -1}
      class={rollout.error === undefined ? undefined : "failed"}
      onClick={(event) => {
        current = place;
        if (!(event.target as Element).closest("a") && !String(getSelection())) open(rollout, "conversation");
      }}
      onFocus={() => (current = place)}
    >
      {shown.map((one, at) => {
        const written = one.write(one.get(rollout));
        return (
          <td key={one.key} class={`${kind(one)} ${one.key === "finish" ? `finish ${rollout.finish}` : ""}`}>
            {at === 0 ? (
              <a href={address(rollout.id)} tabIndex={-1} aria-label={`rollout ${rollout.id}, ${one.label} ${written}`}>
                {written}
              </a>
            ) : (
              written
            )}
            {one.key === "reward" && bounds && <Level value={real(rollout.reward)} bounds={bounds} />}
          </td>
        );
      })}
    </tr>
  );
}

function Level({ value, bounds: [low, high] }: { value: number | null; bounds: [number, number] }) {
  if (value === null || !Number.isFinite(value)) return null;
  const zero = (-low / (high - low)) * 100;
  const at = ((value - low) / (high - low)) * 100;
  return (
    <span class="level" aria-hidden="true">
      <i
        class={value < 0 ? "below" : ""}
        style={{ left: `${Math.min(zero, at)}%`, width: `${Math.abs(at - zero)}%` }}
      />
    </span>
  );
}

function walk(event: KeyboardEvent, rows: number): void {
  const by = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: 12, PageUp: -12, Home: -rows, End: rows }[event.key];
  const row = (event.target as Element).closest<HTMLElement>("tr[data-place]");
  if (!row || event.metaKey || event.ctrlKey || event.altKey) return;
  const place = Number(row.dataset.place);
  if (by !== undefined) focusRow(Math.max(0, Math.min(rows - 1, place + by)));
  else if (event.key === "Enter") open(listed.value[place], "conversation");
  else return;
  event.preventDefault();
  event.stopPropagation();
}

/** Bring a row into sight and go to it; it may not exist yet. */
function focusRow(place: number): void {
  const box = document.querySelector<HTMLElement>(".rows");
  if (!box || !listed.value.length) return;
  current = Math.min(place, listed.value.length - 1);
  const [above, below] = [current * ROW, (current + 2) * ROW - box.clientHeight];
  if (box.scrollTop > above) box.scrollTop = above;
  else if (box.scrollTop < below) box.scrollTop = below;
  const wait = (tries: number): void => {
    const row = box.querySelector<HTMLElement>(`tr[data-place="${current}"]`);
    if (row) row.focus({ preventScroll: true });
    else if (tries) requestAnimationFrame(() => wait(tries - 1));
  };
  wait(10);
}

export const focusCurrent = (): void => focusRow(current);
