import { real, type Scalar } from "./data";

const MINUS = "\u2212";
const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 });

export const count = (value: number): string => grouped.format(value);

/** As short as it must be beside an axis: 1,500, 20K, 1.25M. */
export const short = (value: number): string => compact.format(value).replace("-", MINUS);

export const plural = (value: number, one: string, many = `${one}s`): string =>
  `${count(value)} ${value === 1 ? one : many}`;

/** A reward as a person writes it: 0.731, 12, 3.2e-5; a dash where there is none. */
export function number(value: Scalar | undefined, digits = 3): string {
  const known = real(value);
  if (known === null) return value === null || value === undefined ? "\u2013" : String(value);
  if (!Number.isFinite(known)) return String(value).replace("-", MINUS);
  const size = Math.abs(known);
  let written: string;
  if (Number.isInteger(known) && size < 1e9) written = count(size);
  else if (size >= 1e6 || (size > 0 && size < 10 ** -digits)) written = size.toExponential(1);
  else written = size.toFixed(digits).replace(/\.?0+$/, "");
  return known < 0 && Number(written.replaceAll(",", "")) !== 0 ? MINUS + written : written;
}

/** With as many decimals as its neighbours in a table, so that the points stand below each other. */
export function fixed(value: Scalar | undefined, digits: number): string {
  const known = real(value);
  const size = Math.abs(known ?? NaN);
  return known !== null && size < 1e6 && (size === 0 || size >= 10 ** -digits)
    ? (known < 0 ? MINUS : "") +
        Math.abs(known).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })
    : number(value);
}

/** A reward or an advantage: with the same decimals wherever it stands. */
export const score = (value: Scalar | undefined): string => fixed(value, 3);

export function signed(value: Scalar | undefined): string {
  const known = real(value);
  return known !== null && known > 0 ? `+${score(value)}` : score(value);
}

export const percent = (part: number, whole: number): string => {
  const share = (100 * part) / whole;
  return whole ? `${share > 0 && share < 1 ? share.toFixed(1) : Math.round(share)}%` : "\u2013";
};

export function duration(seconds: number | undefined): string {
  if (seconds === undefined || seconds < 0) return "";
  if (seconds < 0.001) return "<1 ms";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const moment = (time: Scalar | undefined): string =>
  typeof time === "number" && time > 0
    ? new Date(time * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" })
    : "";

/** On one line; what does not fit is cut with an ellipsis. */
export function oneLine(text: string, most = 200): string {
  const line = text
    .slice(0, 4 * most)
    .replace(/\s+/g, " ")
    .trim();
  return line.length > most ? `${line.slice(0, most - 1)}\u2026` : line;
}
