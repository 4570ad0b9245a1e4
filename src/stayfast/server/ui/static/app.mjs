// The shell: sign-in, header, views, keys, banners.
import { html, render, endpoint, useEffect, useLayoutEffect, useRef, useState } from "./lib.mjs";
import { go, hrefOf, readAddress, useAddress } from "./address.mjs";
import { Live } from "./live.mjs";
import { State, readJson, stateOfSeverity } from "./parts.mjs";
import { THEMES, applyTheme, readTheme } from "./theme.mjs";
import { clock, seconds, zone } from "./units.mjs";
import { VIEWS } from "./views.mjs";

const KEYS = [
  ["1 … 9", "views"], ["/", "filter by route or upstream"], ["j, k", "next, previous row"], ["Enter", "open the row"],
  ["p", "pause, resume"], ["t", "theme"], ["Esc", "clear the filter, close"], ["?", "this list"],
];

function SignIn({ onSignedIn }) {
  const [error, setError] = useState("");
  const field = useRef(null);
  useEffect(() => field.current?.focus(), []);
  const submit = async (event) => {
    event.preventDefault();
    const key = new FormData(event.target).get("key").trim();
    try {
      const answer = await fetch(endpoint("/ui/login"), { method: "POST", headers: { authorization: `Bearer ${key}` } });
      const body = await answer.json().catch(() => null);
      if (answer.ok) onSignedIn();
      else setError(body?.error?.message ?? `The gateway answers ${answer.status}.`);
    } catch {
      setError("The gateway cannot be reached.");
    }
  };
  return html`<main id="main" class="sign-in"><h1>Stayfast</h1>
    <form onSubmit=${submit}>
      <label for="key">Admin key</label>
      <input id="key" name="key" type="password" autocomplete="current-password" required ref=${field}
        aria-describedby="key-help" />
      <p id="key-help" class="note">A key whose name is in <code>server.admins</code>. It is sent once; the session lasts
        12 hours and can read figures only.</p>
      <button type="submit">Sign in</button>
      <p role="alert" class="error">${error}</p>
    </form></main>`;
}

/** The latest state of the connection, redrawn at each frame and each second; frozen while paused. */
function useLive(live, isPaused) {
  const [, redraw] = useState(0);
  const frozen = useRef(null);
  useEffect(() => {
    const draw = () => redraw((n) => n + 1);
    const leave = live.subscribe(draw);
    const timer = setInterval(draw, 1000);
    return () => {
      leave();
      clearInterval(timer);
    };
  }, [live]);
  if (!isPaused) frozen.current = null;
  else if (frozen.current === null && live.frame) frozen.current = { frame: live.frame, frames: [...live.frames] };
  return frozen.current ?? { frame: live.frame, frames: live.frames };
}

function Header({ address, frame, user, theme, onTheme, filter, onSignOut }) {
  return html`<header>
    <a class="brand" href="#/now"><span aria-hidden="true">∿</span> Stayfast</a>
    <nav aria-label="Views">${VIEWS.map((view, at) => html`<a key=${view.id} href=${hrefOf({ view: view.id, request: "", tab: "" })}
      aria-current=${view.id === address.view ? "page" : undefined} title=${`${view.title} (${at + 1})`}>${view.title}</a>`)}</nav>
    <div class="tools">
      <input type="search" placeholder="filter  /" aria-label="Filter by route or upstream" value=${address.q} ref=${filter}
        onInput=${(event) => go({ q: event.target.value }, { replace: true })} />
      <button type="button" aria-pressed=${address.paused === "1"} onClick=${() => go({ paused: address.paused ? "" : "1" })}>
        ${address.paused ? "▶ resume" : "❚❚ pause"}</button>
      <button type="button" onClick=${onTheme} title="Theme (t)" aria-label=${`Theme: ${theme}`}>◐ ${theme}</button>
      ${user && html`<button type="button" onClick=${onSignOut}>sign out ${user}</button>`}
    </div>
    <p class="about">${frame ? [frame.gateway || "gateway", frame.stayfast, `up ${seconds(frame.uptime_s ?? 0)}`,
      `${frame.n_workers ?? 1} ${(frame.n_workers ?? 1) === 1 ? "worker" : "workers"}`, `${clock(frame.at)} ${zone()}`].join(" · ")
      : zone()}</p>
  </header>`;
}

function Banners({ live, address, frame }) {
  const silence = live.silence();
  const findings = frame?.findings ?? [];
  const age = silence < 120 ? `${Math.floor(silence)} s` : seconds(silence);
  const loudest = findings.find((finding) => finding.severity === "act");
  return html`<div class="banners">
    <div>${silence > 0 && html`<p class="banner bad" id="no-data"><${State} state="bad">No data for ${age}<//>: ${
      live.problem || "waiting for a frame"}. ${frame && !address.paused ? "The figures below are old. " : ""}Connecting again.</p>`}
      ${address.paused === "1" && html`<p class="banner">Paused${frame ? ` at ${clock(frame.at)} ${zone()}` : ""}.
        <button type="button" onClick=${() => go({ paused: "" })}>Resume (p)</button></p>`}
      ${frame?.is_draining && html`<p class="banner warn"><${State} state="warn">This gateway is shutting down.<//></p>`}
      ${frame?.n_silent_workers > 0 && html`<p class="banner warn"><${State} state="warn">${frame.n_silent_workers} of ${frame.n_workers}
        workers did not answer: their figures are missing.<//></p>`}</div>
    <div aria-live="polite">${silence > 0 && html`<span class="hidden">The gateway sends no data.</span>`}
      ${loudest && html`<p class="banner act"><${State} state=${stateOfSeverity(loudest.severity)}>${loudest.where}<//>: ${
        loudest.summary} <a href=${hrefOf({ view: "doctor", tab: loudest.id })}>what to do</a></p>`}</div></div>`;
}

function Help({ onClose }) {
  const box = useRef(null);
  useEffect(() => box.current?.showModal(), []);
  return html`<dialog ref=${box} onClose=${onClose} aria-labelledby="help-title"><h2 id="help-title">Keys</h2>
    <dl class="keys">${KEYS.map(([key, what]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl>
    <form method="dialog"><button>Close</button></form></dialog>`;
}

/** Move the focus to the next (1) or previous (-1) row of a table of the view. */
function walkRows(step) {
  const rows = [...document.querySelectorAll("main tr[data-row][tabindex]")];
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement?.closest?.("tr"));
  rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + step))].focus();
}

function useKeys({ filter, setHelp, onTheme }) {
  useEffect(() => {
    const press = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const isTyping = event.target.closest?.("input, textarea, select, dialog");
      if (event.key === "Escape" && !event.target.closest?.("dialog")) {
        go({ q: "", request: "" });
        document.activeElement?.blur?.();
      }
      if (isTyping) return;
      const view = VIEWS[Number(event.key) - 1];
      if (view) go({ view: view.id, request: "", tab: "" });
      else if (event.key === "/") filter.current?.focus();
      else if (event.key === "j") walkRows(1);
      else if (event.key === "k") walkRows(-1);
      else if (event.key === "p") togglePause();
      else if (event.key === "t") onTheme();
      else if (event.key === "?") setHelp(true);
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, [onTheme]);
}

const togglePause = () => go({ paused: location.hash.includes("paused=1") ? "" : "1" });

const viewOf = (id) => VIEWS.find((each) => each.id === id) ?? VIEWS[0];

/** The component of a view; null until its module is there. */
function useView(id) {
  const [loaded, setLoaded] = useState({});
  const view = viewOf(id);
  useEffect(() => {
    let isWanted = true;
    view.load().then((module) => isWanted && setLoaded({ id: view.id, View: module.View }),
      () => isWanted && setLoaded({ id: view.id, View: () => html`<p class="error">This view could not be loaded.</p>` }));
    document.title = `${view.title} · Stayfast`;
    return () => { isWanted = false; };
  }, [view.id]);
  return [view, loaded.id === view.id ? loaded.View : null];
}

function Page({ live, user, onSignOut }) {
  const address = useAddress();
  const shown = useLive(live, address.paused === "1");
  const [theme, setTheme] = useState(readTheme);
  const [hasHelp, setHelp] = useState(false);
  const filter = useRef(null);
  const onTheme = () => setTheme((old) => {
    const next = THEMES[(THEMES.indexOf(old) + 1) % THEMES.length];
    applyTheme(next);
    return next;
  });
  useKeys({ filter, setHelp, onTheme });
  const [view, View] = useView(address.view);
  const isOld = live.silence() > 0;
  return html`
    <${Header} address=${address} frame=${shown.frame} user=${user} theme=${theme} onTheme=${onTheme} filter=${filter}
      onSignOut=${onSignOut} />
    <${Banners} live=${live} address=${address} frame=${shown.frame} />
    <main id="main" tabindex="-1" class=${isOld ? "old" : ""} data-view=${view.id}><h1 class="hidden">${view.title}</h1>
      ${View && html`<${View} address=${address} live=${live} frame=${shown.frame} frames=${shown.frames} isOld=${isOld}
        isPaused=${address.paused === "1"} theme=${theme} />`}</main>
    ${hasHelp && html`<${Help} onClose=${() => setHelp(false)} />`}`;
}

const UNREACHABLE = { signed_in: true, user: null }; // the banner of the page explains it
const readSession = async () => (await readJson("/ui/session")).data ?? UNREACHABLE;

function App({ first }) {
  const [session, setSession] = useState(first);
  const [live, setLive] = useState(null);
  const [n, setShown] = useState(0); // how often the browser has taken the page out of its cache
  useEffect(() => {
    const show = (event) => event.persisted && setShown((old) => old + 1);
    addEventListener("pageshow", show);
    return () => removeEventListener("pageshow", show);
  }, []);
  const read = async () => setSession(await readSession());
  useLayoutEffect(() => { // before the browser draws: no empty page between the static header and the first view
    if (!session.signed_in) return undefined;
    const made = new Live();
    const leave = made.subscribe(() => made.needsSignIn && session.needs_key && read());
    const hide = () => made.stop(); // a page in the browser's cache must not hold the stream of all tabs
    addEventListener("pagehide", hide);
    setLive(made);
    made.start();
    return () => {
      removeEventListener("pagehide", hide);
      leave();
      made.stop();
      setLive(null);
    };
  }, [session.signed_in, session.user, n]);
  const signOut = async () => {
    await fetch(endpoint("/ui/logout"), { method: "POST" }).catch(() => null);
    read();
  };
  if (!session.signed_in) return html`<${SignIn} onSignedIn=${read} />`;
  return live && html`<${Page} live=${live} user=${session.user} onSignOut=${signOut} />`;
}

viewOf(readAddress().view).load().catch(() => null); // while the session is read; `useView` shows what is wrong
const session = await readSession();
const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} first=${session} />`, root);
