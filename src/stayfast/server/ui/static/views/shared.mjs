// What the views besides Now share: the snapshot, states of reading, choices, links to the text endpoints.
import { html, endpoint, useEffect, useRef, useState } from "../lib.mjs";
import { useJson } from "../parts.mjs";
import { clock } from "../units.mjs";

export const POLL_S = 5;

/** A hook: an endpoint, read every 5 seconds while the view is open. */
export const usePolled = (path, isPaused) => useJson(path, { everyS: POLL_S, isPaused });

/** A hook: the whole snapshot. */
export const useSnapshot = (isPaused) => usePolled("/admin/snapshot", isPaused);

/** The view once its data are there; before that, what it waits for; after a failure, why. children: a function of the data. */
export function Loaded({ held, path, children }) {
  if (!held.data) {
    return held.error
      ? html`<p class="banner bad" role="alert">${path} cannot be read: ${held.error}
          ${held.status === 404 ? " This gateway does not have it." : " It is read again every 5 s."}</p>`
      : html`<p class="note" role="status">Reading <a href=${endpoint(path)}>${path}</a> …</p>`;
  }
  return html`${held.error && html`<p class="banner warn" role="status">Figures of ${clock(held.at)}: ${held.error}</p>`}
    ${children(held.data)}`;
}

/** Links to the endpoints that have the same figures as text. */
export function AsText({ paths }) {
  return html`<p class="note">As text: ${paths.map((path) => html`<a key=${path} href=${endpoint(path)}>${path}</a> `)}</p>`;
}

/** One of several values as buttons. options: [[value, words]] */
export function Choice({ label, options, value, onChoose }) {
  return html`<span class="choice left" role="group" aria-label=${label}>${options.map(([id, words]) => html`<button type="button"
    key=${id} aria-pressed=${String(value === id)} onClick=${() => onChoose(id)}>${words}</button>`)}</span>`;
}

/** A list to choose one value from; the first entry is all. */
export function Select({ label, all, options, value, onChoose }) {
  const values = options.includes(value) || !value ? options : [value, ...options];
  return html`<label class="select">${label} <select value=${value} onChange=${(event) => onChoose(event.target.value)}>
    <option value="">${all}</option>${values.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>`;
}

/** A hook: a reference, and the width of its element in CSS pixels. */
export function useWidth(initial = 600) {
  const box = useRef(null);
  const [width, setWidth] = useState(initial);
  useEffect(() => {
    if (!box.current) return undefined;
    const watch = new ResizeObserver(([entry]) => setWidth(Math.max(240, Math.round(entry.contentRect.width))));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  return [box, width];
}

/** A column of right-aligned figures. */
export const right = (id, title, render, unit = "") => ({ id, title, unit, align: "right", render });

/** Whether a row's names contain the text of the filter. */
export const matches = (text, ...names) => !text || names.some((name) => (name ?? "").toLowerCase().includes(text.toLowerCase()));
