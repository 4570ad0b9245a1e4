// Doctor: what is wrong, the evidence, the cause, what to change, how to see that it worked.
import { html, endpoint, useEffect, useRef } from "../lib.mjs";
import { go } from "../address.mjs";
import { Command, Empty, State, Table, stateOfSeverity } from "../parts.mjs";
import { bytes, clock, count, dollars, percent, seconds, zone } from "../units.mjs";
import { AsText, Loaded, matches, right, usePolled } from "./shared.mjs";

const PATH = "/admin/findings";
const WORDS = { act: "act now", warn: "warning", info: "notice" };
const UNITS = { s: seconds, ms: (value) => seconds(value / 1000), ratio: percent, bytes, USD: dollars };

/** A figure of the evidence with its unit. */
export function figureOf({ value, unit }) {
  if (UNITS[unit]) return UNITS[unit](value);
  const size = Math.abs(value);
  const words = Number.isInteger(value) || size >= 100 ? count(value) : size.toPrecision(3) * Math.sign(value);
  return unit ? `${words} ${unit}` : String(words);
}

/** A place in words. */
export const placeOf = (where) => ["route", "upstream", "tenant", "store", "worker"].filter((kind) => where?.[kind] !== undefined
  && where[kind] !== null && where[kind] !== "").map((kind) => `${kind} ${where[kind]}`).join(", ") || "this gateway";

const source = (row) => (row.source?.startsWith("/") ? html`<a href=${endpoint(row.source)}>${row.source}</a>` : html`<code>${row.source || "–"}</code>`);
const EVIDENCE = [
  { id: "name", title: "Figure", align: "wrap", render: (row) => row.name },
  right("value", "Value", figureOf),
  right("window", "Over", (row) => (row.window_s ? seconds(row.window_s) : "now")),
  { id: "source", title: "Read it at", render: source },
];

function Change({ change, at }) {
  return html`<li key=${at}><p>${change.effect} <span class="note">(${change.confidence ?? "estimated"}${change.saves_s ? `, about ${seconds(change.saves_s)} of the p99` : ""})</span></p>
    ${change.patch && html`<${Command} text=${change.patch} />`}</li>`;
}

function Card({ finding, hidden, isChosen }) {
  const box = useRef(null);
  useEffect(() => { if (isChosen) box.current?.scrollIntoView?.({ block: "nearest" }); }, [isChosen]);
  const id = `${finding.id} ${placeOf(finding.where)}`;
  return html`<article class=${`panel finding ${finding.severity}${isChosen ? " chosen" : ""}`} ref=${box} aria-label=${id} data-finding=${finding.id}>
    <h2><${State} state=${stateOfSeverity(finding.severity)}>${WORDS[finding.severity] ?? finding.severity}<//> ${finding.summary}</h2>
    <p class="note"><b>${placeOf(finding.where)}</b> · <code>${finding.id}</code>${finding.since ? ` · since ${clock(finding.since, { withDate: true })} ${zone()}` : ""}</p>
    <h3>Because</h3><p>${finding.because}</p>
    ${finding.evidence?.length > 0 && html`<h3>Evidence</h3><${Table} caption=${`Evidence of ${id}`} columns=${EVIDENCE} rows=${finding.evidence} keyOf=${(row) => row.name} />`}
    ${finding.do?.length > 0 && html`<h3>What to do</h3><ol class="changes">${finding.do.map((change, at) => html`<${Change} change=${change} at=${at} />`)}</ol>`}
    ${finding.verify && html`<h3>How to see that it worked</h3>${/^(stayfast|curl) /.test(finding.verify) ? html`<${Command} text=${finding.verify} />` : html`<p>${finding.verify}</p>`}`}
    ${hidden.length > 0 && html`<details class="figures"><summary>${hidden.length === 1 ? "1 consequence" : `${hidden.length} consequences`} of this</summary>
      <ul class="findings">${hidden.map((each) => html`<li key=${each.id + placeOf(each.where)}><${State} state=${stateOfSeverity(each.severity)}>${WORDS[each.severity] ?? each.severity}<//>
        <b>${placeOf(each.where)}</b> ${each.summary} <code>${each.id}</code></li>`)}</ul></details>`}</article>`;
}

const overlaps = (one, other) => ["route", "upstream", "tenant", "store"].every((kind) => !one?.[kind] || !other?.[kind] || one[kind] === other[kind]);

function Healthy({ answer }) {
  return html`<${Empty} title="No findings"><p>The last ${count(answer.checks?.length ?? 0)} checks found nothing to change. They are run over the
    figures of the last hour. ${answer.n_requests ? "" : "There were no requests in it: most checks need some."}</p>
    <details class="figures"><summary>What is checked</summary><ul class="findings">${(answer.checks ?? []).map((each) => html`<li key=${each.id}><code>${each.id}</code> ${each.title}</li>`)}</ul></details><//>`;
}

export function View({ address, isPaused }) {
  const held = usePolled(PATH, isPaused);
  return html`<${Loaded} held=${held} path=${PATH}>${(answer) => {
    const findings = answer.findings ?? [], roots = findings.filter((each) => !each.hidden_by);
    const shown = roots.filter((each) => matches(address.q, each.id, each.summary, placeOf(each.where))
      && (!address.route || !each.where?.route || each.where.route === address.route)
      && (!address.upstream || !each.where?.upstream || each.where.upstream === address.upstream));
    if (!roots.length) return html`<${Healthy} answer=${answer} />`;
    return html`<p class="note">${roots.length === 1 ? "1 finding" : `${roots.length} findings`} at ${clock(answer.at)} ${zone()}, the most urgent first.
        ${shown.length < roots.length && html`${shown.length} match the filter. <button type="button" onClick=${() => go({ q: "", route: "", upstream: "" })}>show all</button>`}</p>
      ${shown.map((each) => html`<${Card} key=${each.id + placeOf(each.where)} finding=${each} isChosen=${address.tab === each.id}
        hidden=${findings.filter((other) => other.hidden_by === each.id && overlaps(each.where, other.where))} />`)}`;
  }}<//><p class="note">In a terminal: <code>stayfast doctor</code>.</p><${AsText} paths=${[PATH, "/admin/snapshot"]} />`;
}
