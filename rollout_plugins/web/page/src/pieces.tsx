/** What every view of a conversation is made of. Model output is only ever a text node. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { data, plain, said, text, type Call, type Panel, type Part, type Picture, type Turn, type Value } from "./data";
import { duration, number, plural } from "./format";
import { parsed, printing } from "./state";

const LONG = 6000;
const LINES = 80;

/** A text as it is; the rest of a long one when it is asked for. */
export function Text({ of, most = LONG, lines = LINES }: { of: string; most?: number; lines?: number }) {
  const [whole, setWhole] = useState(false);
  const head = whole || printing.value ? of : beginning(of, most, lines);
  const hidden = of.length - head.length;
  return (
    <div class="text">
      <Marked of={head} />
      {hidden > 0 && (
        <>
          {"\u2026 "}
          <button type="button" class="link more" onClick={() => setWhole(true)}>
            show {plural(hidden, "more character")}
          </button>
        </>
      )}
    </div>
  );
}

/** Whole unless a good deal longer than what is shown at first. */
function beginning(of: string, most: number, lines: number): string {
  let end = of.length > most * 1.2 ? most : of.length;
  for (let line = 0, at = -1; line < lines; line++) {
    at = of.indexOf("\n", at + 1);
    if (at < 0 || at >= end) return of.slice(0, end);
    if (line === lines - 1 && of.length - at > 400) end = at;
  }
  return of.slice(0, end);
}

/** With the words that were searched for marked. */
function Marked({ of }: { of: string }) {
  const words = parsed.value.words.filter(Boolean);
  if (!words.length || of.length > 200_000) return <>{of}</>;
  const pattern = new RegExp(`(${words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})`, "gi");
  return <>{of.split(pattern).map((piece, at) => (at % 2 ? <mark key={at}>{piece}</mark> : piece))}</>;
}

export function Parts({ parts, most, lines }: { parts: Part[] | undefined; most?: number; lines?: number }) {
  return (
    <>
      {parts?.map((part, at) =>
        typeof part === "number" ? (
          <Text key={at} of={text(part)} most={most} lines={lines} />
        ) : (
          <Pixels key={at} of={data.images[part.image]} />
        ),
      )}
    </>
  );
}

export function Pixels({ of }: { of: Picture | undefined }) {
  const [large, setLarge] = useState(false);
  if (!of) return null;
  const size = of.width && of.height ? `${of.width}\u00d7${of.height}` : "";
  const facts = [of.name, size, of.note, of.reduced ? "smaller here" : ""].filter(Boolean).join(" \u00b7 ");
  if (!of.data) return <p class="image none">Image not shown: {[of.why, facts].filter(Boolean).join(" \u00b7 ")}</p>;
  return (
    <figure class={large ? "image large" : "image"}>
      <button
        type="button"
        onClick={() => setLarge(!large)}
        aria-label={large ? "Show the image smaller" : "Show the image larger"}
        aria-pressed={large}
      >
        <img src={of.data} alt={facts ? `Image: ${facts}` : "Image"} />
      </button>
      {facts && <figcaption class="dim small">{facts}</figcaption>}
    </figure>
  );
}

const STATUS = { ok: "ok", error: "failed", unknown: "no such tool", not_run: "not run" };

export function ToolCall({ call, most, lines }: { call: Call; most?: number; lines?: number }) {
  const bad = call.status === "error" || call.status === "unknown";
  // tools are mostly answered with the error itself, in some wrapping
  const same = call.error !== undefined && said(call.result).includes(text(call.error));
  return (
    <div class={`call ${call.status}`}>
      <div class="head">
        <span class="tool">{call.name || "(no name)"}</span>
        <span class={`status ${bad ? "bad" : call.status === "ok" ? "good" : "dim"}`}>
          <span aria-hidden="true">{bad ? "\u2715 " : call.status === "ok" ? "\u2713 " : "\u2013 "}</span>
          {STATUS[call.status]}
        </span>
        <span class="dim num">{duration(call.seconds)}</span>
      </div>
      {call.arguments !== undefined && text(call.arguments) && (
        <div class="arguments">
          <Text of={text(call.arguments)} most={most} lines={lines} />
        </div>
      )}
      {call.error !== undefined && !same && (
        <div class="wrong">
          <Text of={text(call.error)} most={most} lines={lines} />
        </div>
      )}
      {call.result && (
        <div class={same ? "result wrong" : "result"}>
          <Parts parts={call.result} most={most} lines={lines} />
        </div>
      )}
    </div>
  );
}

export function PanelView({ panel }: { panel: Panel }) {
  const [head, ...rows] = panel.table ?? [];
  return (
    <div class="panel">
      {panel.title && <h2 class="minor">{panel.title}</h2>}
      {panel.text !== undefined && (
        <div class="code">
          <Text of={text(panel.text)} />
        </div>
      )}
      {head && (
        <div class="scroll" tabIndex={0} role="group" aria-label={`${panel.title || "panel"}, table`}>
          <table class="plain">
            <thead>
              <tr>
                {head.map((cell, at) => (
                  <th scope="col" key={at}>
                    {written(cell)}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.map((row, at) => (
                <tr key={at}>
                  {row.map((cell, place) => (
                    <td key={place} class={typeof plain(cell) === "number" ? "num" : ""}>
                      {written(cell)}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {panel.image !== undefined && <Pixels of={data.images[panel.image]} />}
    </div>
  );
}

export const written = (value: Value): string => {
  const known = plain(value);
  return typeof known === "number" ? number(known) : known === null ? "\u2013" : String(known);
};

/** Names and values, one below the other. */
export function Facts({ of }: { of: Record<string, Value> }) {
  return (
    <dl class="facts">
      {Object.entries(of).map(([name, value]) => (
        <div key={name}>
          <dt>{name || "(no name)"}</dt>
          <dd>
            <Text of={written(value)} most={600} lines={12} />
          </dd>
        </div>
      ))}
    </dl>
  );
}

/** Everything a turn says in one text: to compare, to preview, to copy. */
export function wordsOf(turn: Turn): string {
  const calls = (turn.calls ?? []).map((call) =>
    [
      `${call.name}(${text(call.arguments).replaceAll("\n", ", ")})`,
      said(call.result).includes(text(call.error)) ? "" : text(call.error),
      said(call.result),
    ]
      .filter(Boolean)
      .join("\n\u2192 "),
  );
  return [text(turn.reasoning), said(turn.parts), ...calls].filter(Boolean).join("\n");
}

export function Fold({
  title,
  open,
  children,
}: {
  title: ComponentChildren;
  open?: boolean;
  children: ComponentChildren;
}) {
  return (
    <details class="fold" open={open || printing.value}>
      <summary>{title}</summary>
      {children}
    </details>
  );
}
