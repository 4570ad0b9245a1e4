// What several views draw: tiles, tables, states, sparklines, empty views; and the hooks that read endpoints.
import { endpoint, html, useEffect, useRef, useState } from "./lib.mjs";

/** The words of a view without data: what will appear, and how to make it appear. */
export function Empty({ title, children, command }) {
  return html`<section class="empty"><h2>${title}</h2>${children}${command && html`<${Command} text=${command} />`}</section>`;
}

/** A command to copy. */
export function Command({ text }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard?.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<div class="command"><pre tabindex="0"><code>${text}</code></pre>${navigator.clipboard && html`
    <button type="button" onClick=${copy}>${isCopied ? "copied" : "copy"}</button>`}</div>`;
}

/** A figure with its name and unit; href: the text endpoint that has the same figure. */
export function Tile({ name, value, note, href, state, children }) {
  return html`<div class=${`tile ${state ?? ""}`}>
    <div class="tile-name">${href ? html`<a href=${href} title=${`The same figure as text: ${href}`}>${name}</a>` : name}</div>
    <div class="tile-value">${value}</div>
    ${note && html`<div class="tile-note">${note}</div>`}${children}</div>`;
}

const STATES = { // shape and letter as well as colour
  good: ["●", "good"], warn: ["▲", "warning"], bad: ["■", "bad"], off: ["○", "off"], unknown: ["?", "unknown"],
};

/** A state as shape, word and colour. state: good, warn, bad, off or unknown. */
export function State({ state, children }) {
  const [shape, word] = STATES[state] ?? STATES.unknown;
  return html`<span class=${`state state-${state}`}><span aria-hidden="true">${shape}</span> ${children ?? word}</span>`;
}

/** How loud a finding is, as a state. */
export const stateOfSeverity = (severity) => ({ act: "bad", warn: "warn", info: "unknown" })[severity] ?? "unknown";

/**
 * A table. columns: [{id, title, unit, align, render(row), value(row)}]; rows: objects; keyOf(row); onSelect(row): Enter or a
 * click; onHover(row); selected: a key. Sorted by the parent. The first column is the row's header. Its rows can be walked with j and k.
 */
export function Table({ columns, rows, keyOf, onSelect, onHover, selected, caption, empty }) {
  if (!rows.length) return empty ?? null;
  const act = (event, row) => {
    if (event.target.closest("a, button")) return;
    if (event.type === "click" || event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      onSelect(row);
    }
  };
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}><table>
    <caption class=${caption ? "" : "hidden"}>${caption}</caption>
    <thead><tr>${columns.map((column) => html`<th key=${column.id} scope="col" class=${column.align ?? ""}>${column.title}
      ${column.unit && html` <span class="unit">${column.unit}</span>`}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${keyOf(row)} data-row=${keyOf(row)} tabindex=${onSelect ? 0 : undefined}
        class=${keyOf(row) === selected ? "selected" : ""} aria-current=${keyOf(row) === selected ? "true" : undefined}
        onMouseEnter=${onHover && (() => onHover(row))}
        onClick=${onSelect && ((event) => act(event, row))} onKeyDown=${onSelect && ((event) => act(event, row))}>
      ${columns.map((column, at) => at === 0
        ? html`<th key=${column.id} scope="row">${column.render(row)}</th>`
        : html`<td key=${column.id} class=${column.align ?? ""} data-title=${column.title}>${column.render(row)}</td>`)}</tr>`)}
    </tbody></table></div>`;
}

/** A line without axes. values: numbers or null (a gap stays a gap). The figure that it belongs to has the words. */
export function Sparkline({ values, width = 120, height = 28 }) {
  const known = values.filter((value) => value !== null && value !== undefined);
  if (known.length < 2) return html`<svg class="spark" width=${width} height=${height} aria-hidden="true"></svg>`;
  const top = Math.max(...known, 1e-12);
  const step = width / Math.max(1, values.length - 1);
  let path = "", isOpen = false;
  values.forEach((value, at) => {
    if (value === null || value === undefined) {
      isOpen = false;
      return;
    }
    path += `${isOpen ? "L" : "M"}${(at * step).toFixed(1)} ${(height - 2 - (value / top) * (height - 4)).toFixed(1)}`;
    isOpen = true;
  });
  return html`<svg class="spark" viewBox=${`0 0 ${width} ${height}`} preserveAspectRatio="none" aria-hidden="true">
    <path d=${path} /></svg>`;
}

/** The figures behind a chart, as a table and as CSV. columns: [{title, of(row)}]; the newest row is first in the table. */
export function Figures({ name, columns, rows }) {
  const [isOpen, setOpen] = useState(false);
  const save = () => {
    const quote = (value) => `"${String(value ?? "").replaceAll('"', '""')}"`;
    const lines = [columns.map((column) => quote(column.title)), ...rows.map((row) => columns.map((column) => quote(column.of(row))))];
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([lines.map((line) => line.join(",")).join("\r\n")], { type: "text/csv" }));
    link.download = `stayfast-${name}.csv`;
    link.click();
    URL.revokeObjectURL(link.href);
  };
  return html`<details class="figures" onToggle=${(event) => setOpen(event.target.open)}><summary>Table</summary>
    ${isOpen && html`<button type="button" onClick=${save}>save as CSV</button>
      <div class="scroll low" tabindex="0" role="region" aria-label=${`Table of ${name}`}><table>
      <thead><tr>${columns.map((column) => html`<th scope="col">${column.title}</th>`)}</tr></thead>
      <tbody>${[...rows].reverse().map((row) => html`<tr>${columns.map((column) => html`<td>${column.of(row)}</td>`)}</tr>`)}
      </tbody></table></div>`}</details>`;
}

/** Read a JSON endpoint. Returns {data, error, status}. */
export async function readJson(path, signal) {
  try {
    const answer = await fetch(endpoint(path), { cache: "no-store", signal });
    const body = await answer.json().catch(() => null);
    if (answer.ok) return { data: body, error: "", status: answer.status };
    return { data: null, error: body?.error?.message ?? `status ${answer.status}`, status: answer.status };
  } catch (error) {
    return { data: null, error: error.name === "AbortError" ? "" : "The gateway cannot be reached.", status: 0 };
  }
}

/** A hook: a JSON endpoint, read again every `everyS` seconds while the page is visible (0: once). path null: nothing.
 *  Returns {data, error, status, at}; after a failure the old data stay, with `error` set. */
export function useJson(path, { everyS = 0, isPaused = false } = {}) {
  const [held, setHeld] = useState({ data: null, error: "", status: 0, at: null });
  const last = useRef(null);
  useEffect(() => {
    if (path === null) return undefined;
    const abort = new AbortController();
    let timer;
    const read = async () => {
      if (!document.hidden || last.current !== path) {
        const found = await readJson(path, abort.signal);
        if (abort.signal.aborted) return;
        const isSame = last.current === path;
        last.current = path;
        setHeld((old) => ({ ...found, data: found.data ?? (isSame ? old.data : null),
          at: found.data ? Date.now() / 1000 : isSame ? old.at : null }));
      }
      if (everyS && !isPaused) timer = setTimeout(read, everyS * 1000);
    };
    if (!isPaused || last.current !== path) read();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [path, everyS, isPaused]);
  return held;
}
