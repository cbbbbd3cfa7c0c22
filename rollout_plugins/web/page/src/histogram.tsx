/** How the rollouts are spread over a number. Dragging, or moving either handle, keeps those in between. */

import { useRef } from "preact/hooks";
import { column, columns } from "./columns";
import { data, real } from "./data";
import { number, oneLine, plural } from "./format";
import { asked, histogram, range, type Range } from "./state";

const BINS = 36;

interface Bins {
  low: number;
  width: number;
  all: number[];
  /** Those the filter box lets through. */
  some: number[];
}

function bins(key: string): Bins | null {
  const get = column(key)?.get;
  if (!get) return null;
  const values = data.rollouts
    .map((one) => real(get(one)))
    .filter((value) => value !== null && Number.isFinite(value)) as number[];
  if (!values.length) return null;
  const [low, high] = values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  const whole = values.every(Number.isInteger) && high - low < BINS;
  const size = whole ? high - low + 1 : high > low ? BINS : 1;
  const width = whole ? 1 : (high - low || 1) / size;
  const start = whole ? low - 0.5 : high > low ? low : low - 0.5;
  const fill = (some: (number | null)[]) => {
    const made = Array<number>(size).fill(0);
    for (const value of some)
      if (value !== null && Number.isFinite(value))
        made[Math.max(0, Math.min(size - 1, Math.floor((value - start) / width)))]!++;
    return made;
  };
  return { low: start, width, all: fill(values), some: fill(asked.value.map((one) => real(get(one)))) };
}

export function Histogram() {
  const key = histogram.value;
  const made = bins(key);
  const numbers = columns.filter(
    (one) => one.numeric && data.rollouts.some((rollout) => real(one.get(rollout)) !== null),
  );
  if (!numbers.length) return null;
  return (
    <div class="histogram">
      <div class="row">
        <label>
          <span class="dim">Spread of </span>
          <select
            value={key}
            onChange={(event) => {
              histogram.value = event.currentTarget.value;
              range.value = null;
            }}
          >
            {numbers.map((one) => (
              <option key={one.key} value={one.key}>
                {oneLine(one.key, 60)}
              </option>
            ))}
          </select>
        </label>
        <Chosen />
      </div>
      {made ? <Bars key={key} name={key} bins={made} /> : <p class="dim">No rollout has this number.</p>}
    </div>
  );
}

function Chosen() {
  const chosen = range.value;
  if (!chosen) return <span class="dim small screen">drag across the bars to filter</span>;
  return (
    <button
      type="button"
      class="chip on"
      onClick={() => (range.value = null)}
      aria-label={`Remove the filter ${spoken(chosen)}`}
    >
      {spoken(chosen)} <span aria-hidden="true">{"\u2715"}</span>
    </button>
  );
}

const spoken = (one: Range): string => `${one.key} ${number(one.low)} to ${number(one.high)}`;

function Bars({ name, bins: { low, width, all, some } }: { name: string; bins: Bins }) {
  const place = useRef<HTMLDivElement>(null);
  const start = useRef<number | null>(null);
  const top = Math.max(...all);
  const size = all.length;
  const chosen = range.value?.key === name ? range.value : null;
  const from = chosen ? Math.round((chosen.low - low) / width) : 0;
  const to = chosen ? Math.round((chosen.high - low) / width) : size;
  const choose = (a: number, b: number) => {
    const [first, last] = [Math.max(0, Math.min(a, b)), Math.min(size, Math.max(a, b))];
    range.value =
      first === 0 && last === size
        ? null
        : { key: name, low: tidy(low + first * width), high: tidy(low + last * width) };
  };
  const at = (event: PointerEvent) => {
    const box = place.current!.getBoundingClientRect();
    return Math.max(0, Math.min(size - 1, Math.floor(((event.clientX - box.left) / box.width) * size)));
  };
  const press = (event: PointerEvent) => {
    if (event.button !== 0 || (event.target as Element).closest("[role=slider]")) return;
    start.current = at(event);
    place.current!.setPointerCapture(event.pointerId);
    choose(start.current, start.current + 1);
    event.preventDefault();
  };
  const move = (event: PointerEvent) => {
    if (start.current === null) return;
    const now = at(event);
    choose(Math.min(start.current, now), Math.max(start.current, now) + 1);
  };
  const handle = (which: "lowest" | "highest", bin: number, set: (bin: number) => void) => (
    <div
      class="handle"
      role="slider"
      tabIndex={0}
      style={{ left: `${(100 * bin) / size}%` }}
      aria-label={`${which} ${name}`}
      aria-valuemin={tidy(low)}
      aria-valuemax={tidy(low + size * width)}
      aria-valuenow={tidy(low + bin * width)}
      onKeyDown={(event) => {
        const by = {
          ArrowLeft: -1,
          ArrowDown: -1,
          ArrowRight: 1,
          ArrowUp: 1,
          PageDown: -5,
          PageUp: 5,
          Home: -size,
          End: size,
        }[event.key];
        if (event.key === "Escape") range.value = null;
        else if (by === undefined) return;
        else set(bin + by);
        event.preventDefault();
        event.stopPropagation();
      }}
    />
  );
  return (
    <>
      <div
        ref={place}
        class="bars"
        onPointerDown={press}
        onPointerMove={move}
        onPointerUp={() => (start.current = null)}
        onPointerCancel={() => (start.current = null)}
        onDblClick={() => (range.value = null)}
      >
        {all.map((total, bin) => (
          <div
            key={bin}
            class={bin >= from && bin < to ? "bar in" : "bar"}
            title={`${number(tidy(low + bin * width))} to ${number(tidy(low + (bin + 1) * width))}: ${plural(some[bin]!, "rollout")}`}
          >
            <i class="all" style={{ height: `${(100 * total) / top}%` }} />
            <i class="some" style={{ height: `${(100 * some[bin]!) / top}%` }} />
          </div>
        ))}
        {handle("lowest", from, (bin) => choose(Math.min(bin, to - 1), to))}
        {handle("highest", to, (bin) => choose(from, Math.max(bin, from + 1)))}
      </div>
      <div class="ends num dim small">
        <span>{number(tidy(low))}</span>
        <span>
          {plural(
            some.slice(from, to).reduce((sum, value) => sum + value, 0),
            "rollout",
          )}
        </span>
        <span>{number(tidy(low + size * width))}</span>
      </div>
    </>
  );
}

/** Without the dust of binary fractions, so that it can stand in an address. */
const tidy = (value: number): number => Number(value.toPrecision(10));
