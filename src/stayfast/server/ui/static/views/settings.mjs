// Settings: what the gateway runs with, and where each value comes from.
import { html, useMemo } from "../lib.mjs";
import { go } from "../address.mjs";
import { Table } from "../parts.mjs";
import { count } from "../units.mjs";
import { AsText, Choice, Loaded, matches, usePolled } from "./shared.mjs";

const PATH = "/admin/settings";
const LISTS = [["", "Not a default"], ["all", "All"]];

const step = (name) => (/^[A-Za-z0-9_*-]+$/.test(name) ? name : JSON.stringify(name));

/** Each value with its dotted path, as in the sources. */
export function flatten(value, path = "") {
  if (Array.isArray(value) && value.some((item) => item !== null && typeof item === "object")) {
    return value.flatMap((item, at) => flatten(item, `${path}[${at}]`));
  }
  if (value === null || typeof value !== "object" || Array.isArray(value) || !Object.keys(value).length) return [{ path, value }];
  return Object.entries(value).flatMap(([name, item]) => flatten(item, path ? `${path}.${step(name)}` : step(name)));
}

const shownValue = (value) => (typeof value === "string" ? value || '""' : JSON.stringify(value));
const COLUMNS = [
  { id: "path", title: "Setting", align: "wrap", render: (row) => html`<code>${row.path}</code>` },
  { id: "value", title: "Value", align: "wrap", render: (row) => html`<code class=${row.value === "(hidden)" ? "secret" : ""}>${shownValue(row.value)}</code>` },
  { id: "source", title: "From", align: "wrap", render: (row) => row.source ?? html`<span class="note">default</span>` },
];

export function View({ address, isPaused }) {
  const held = usePolled(PATH, isPaused);
  const every = useMemo(() => (held.data ? flatten(held.data.settings).map((row) => ({ ...row, source: held.data.sources[row.path] })) : []), [held.data]);
  return html`<section class="panel"><header><h2>Effective settings</h2>
      <${Choice} label="Which settings" options=${LISTS} value=${address.tab === "all" ? "all" : ""} onChoose=${(tab) => go({ tab })} />
      <label class="select">Search <input type="search" value=${address.q} onInput=${(event) => go({ q: event.target.value }, { replace: true })} /></label></header>
    <${Loaded} held=${held} path=${PATH}>${() => {
      const rows = every.filter((row) => (address.tab === "all" || row.source) && matches(address.q, row.path, shownValue(row.value), row.source));
      return rows.length ? html`<${Table} columns=${COLUMNS} rows=${rows} keyOf=${(row) => row.path}
          caption=${`${count(rows.length)} of ${count(every.length)} settings; secrets are hidden; a file is read again on SIGHUP`} />`
        : html`<p class="note">${every.some((row) => row.source) || address.tab === "all" ? "No setting matches." : "Every setting is a default."}
            <button type="button" onClick=${() => go({ q: "", tab: "all" })}>show all settings</button></p>`;
    }}<//><p class="note">As a file: <code>stayfast check --effective</code>.</p><${AsText} paths=${[PATH]} /></section>`;
}
