// The state of the page is in its address: `#/now?route=chat&upstream=openai&window=300&paused=1&request=ID`.
// A copied address shows the same view; back and forward work.
import { useEffect, useState } from "./lib.mjs";

export const DEFAULTS = { view: "now", route: "", upstream: "", window: "900", paused: "", request: "", sort: "", q: "", tab: "",
  outcome: "" };

/** The state of an address's hash. Unknown names are ignored. */
export function readAddress(hash = location.hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const given = new URLSearchParams(query ?? "");
  const state = { ...DEFAULTS, view: path || DEFAULTS.view };
  for (const name of Object.keys(DEFAULTS)) {
    if (name !== "view" && given.has(name)) state[name] = given.get(name);
  }
  return state;
}

/** The hash of a state; values that are the defaults are left out. */
export function writeAddress(state) {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (name !== "view" && value !== "" && value !== DEFAULTS[name]) given.set(name, value);
  }
  const query = given.toString();
  return `#/${state.view}${query ? `?${query}` : ""}`;
}

/** Change a part of the state. replace: without an entry in the history, for text while it is typed. */
export function go(change, { replace = false } = {}) {
  const hash = writeAddress({ ...readAddress(), ...change });
  if (hash === location.hash) return;
  history[replace ? "replaceState" : "pushState"](null, "", hash);
  dispatchEvent(new Event("addresschange"));
}

/** The hash of the present state with a change: for links. */
export const hrefOf = (change) => writeAddress({ ...readAddress(), ...change });

/** A hook: the state of the address. */
export function useAddress() {
  const [state, setState] = useState(() => readAddress());
  useEffect(() => {
    const read = () => setState(readAddress());
    const names = ["popstate", "hashchange", "addresschange"];
    for (const name of names) addEventListener(name, read);
    return () => names.forEach((name) => removeEventListener(name, read));
  }, []);
  return state;
}
