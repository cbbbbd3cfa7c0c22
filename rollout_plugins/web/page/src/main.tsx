import { effect } from "@preact/signals";
import { options, render } from "preact";
import { useEffect, useRef } from "preact/hooks";
import "uplot/dist/uPlot.min.css";
import { findColumns } from "./columns";
import { foldAll } from "./conversation";
import { data, load } from "./data";
import { moment } from "./format";
import "./page.css";
import { Overview } from "./overview";
import { go, Missing, RolloutPage } from "./rollout";
import {
  address,
  close,
  help,
  keep,
  mono,
  printing,
  readAddress,
  restore,
  rollout,
  shown,
  theme,
  view,
  type Theme,
  type View,
} from "./state";
import { focusCurrent } from "./table";

const THEMES: Theme[] = ["auto", "light", "dark"];

function App() {
  return (
    <>
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault();
          document.getElementById("main")!.focus();
        }}
      >
        Skip to the content
      </a>
      <Bar />
      <main id="main" tabIndex={-1}>
        {shown.value === null ? (
          <Overview />
        ) : rollout.value ? (
          <RolloutPage one={rollout.value} />
        ) : (
          <Missing id={shown.value} />
        )}
      </main>
      <footer class="dim small">
        Made {moment(data.made)} by <span class="tool">rollouts report</span>, rollout-plugins {data.version}. This file
        needs no network and sends nothing.
      </footer>
      <Help />
    </>
  );
}

function Bar() {
  const next = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length]!;
  return (
    <div class="bar-top screen" role="banner">
      <span class="brand">rollouts</span>
      <span class="tools">
        <button
          type="button"
          aria-pressed={mono.value}
          onClick={() => (mono.value = !mono.value)}
          title="Fixed-width text (m)"
        >
          Mono
        </button>
        <button
          type="button"
          onClick={() => (theme.value = next)}
          title="Colours: as the system, light or dark (d)"
          aria-label={`Colours: ${theme.value}. Change to ${next}`}
        >
          <span aria-hidden="true">{"\u25d0"} </span>
          {{ auto: "Auto", light: "Light", dark: "Dark" }[theme.value]}
        </button>
        <button type="button" onClick={() => (help.value = true)} aria-label="Keyboard help" title="Keyboard help (?)">
          ?
        </button>
      </span>
    </div>
  );
}

const KEYS: [string, string][] = [
  ["/", "filter and search"],
  ["\u2191 \u2193 or j k", "between rows; in a rollout to the previous and next one"],
  ["Enter", "open the rollout, or list the chart's step"],
  ["Esc", "back to all rollouts"],
  ["c g t", "conversation, group, same prompt through the run"],
  ["f", "fold or unfold all turns"],
  ["m", "fixed-width text"],
  ["d", "colours: as the system, light, dark"],
  ["?", "this help"],
];

function Help() {
  const place = useRef<HTMLDialogElement>(null);
  const isOpen = help.value;
  useEffect(() => {
    if (isOpen) place.current?.showModal();
    else place.current?.close();
  }, [isOpen]);
  return (
    <dialog
      ref={place}
      aria-labelledby="help-title"
      onClose={() => (help.value = false)}
      onClick={(event) => event.target === place.current && (help.value = false)}
    >
      <div>
        <h2 id="help-title">Keys</h2>
        <dl class="keys">
          {KEYS.map(([key, what]) => (
            <div key={key}>
              <dt>{key.split(" ").map((one) => (one === "or" ? " or " : <kbd key={one}>{one}</kbd>))}</dt>
              <dd>{what}</dd>
            </div>
          ))}
        </dl>
        <h2>Filter</h2>
        <p>
          Words are searched for everywhere; <code>"several words"</code> together, <code>-without</code>. Columns are
          compared: <code>reward&lt;0.5</code>, <code>step&gt;=10</code>, <code>finish=length</code>,{" "}
          <code>answered:because</code>, <code>reward=none</code>; <code>tool:name</code> called that tool.
        </p>
        <button type="button" autofocus onClick={() => (help.value = false)}>
          Close
        </button>
      </div>
    </dialog>
  );
}

function onKey(event: KeyboardEvent): void {
  const target = event.target as HTMLElement;
  if (event.ctrlKey || event.metaKey || event.altKey || help.value || /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName))
    return;
  const one = rollout.value;
  const show = (as: View) => one && (location.hash = address(one.id, as));
  const acts: Record<string, () => unknown> = {
    "?": () => (help.value = true),
    "/": () => (
      shown.value === null ? undefined : close(),
      setTimeout(() => document.getElementById("filter")?.focus())
    ),
    d: () => (theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length]!),
    m: () => (mono.value = !mono.value),
    Escape: () => shown.value !== null && close(),
    j: () => (one ? go(1) : focusCurrent()),
    k: () => (one ? go(-1) : focusCurrent()),
    c: () => show("conversation"),
    g: () => show("group"),
    t: () => show("time"),
    f: () => one && view.value === "conversation" && foldAll(),
  };
  const act = acts[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

/** Print what is folded and out of sight too, in light colours. */
function print(on: boolean): void {
  const later = options.debounceRendering;
  options.debounceRendering = (draw) => draw();
  printing.value = on;
  options.debounceRendering = later;
}

async function start(): Promise<void> {
  const place = document.getElementById("page")!;
  await load();
  findColumns();
  restore();
  readAddress();
  effect(() => {
    const chosen = theme.value;
    document.documentElement.dataset.theme = chosen;
    keep("theme", chosen);
  });
  effect(() => {
    document.documentElement.classList.toggle("mono", mono.value);
    keep("mono", mono.value ? "yes" : "no");
  });
  addEventListener("hashchange", readAddress);
  addEventListener("keydown", onKey);
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  render(<App />, place);
  place.dataset.ready = "yes";
}

start().catch((error: unknown) => {
  document.getElementById("page")!.textContent =
    `This report cannot be shown: ${String(error)}. A current browser is needed (Chrome 123, Firefox 121, Safari 17.5 or later).`;
});
