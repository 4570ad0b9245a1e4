// The live frames: one connection for all tabs of a browser.
//
// HTTP/1.1 permits six connections to a host, so the tabs share one: the tab that holds a lock reads the stream and sends each
// frame to the others by a BroadcastChannel; when it closes, the next tab gets the lock. Without locks (an insecure origin
// other than localhost) each tab reads its own stream.
import { mergeFrames, slotOf } from "./figures.mjs";
import { endpoint } from "./lib.mjs";

export const STALE_S = 3;
const SILENT_S = 10; // a dead network sends no end: reconnect
const BACKOFF_S = [0.5, 1, 2, 4, 8, 15];
const WHOLE_S = 30; // younger frames are held whole, older ones are merged into slots of 5 s
const HELD_S = 1900;
const ALONE_S = 12; // without a frame from the tab that reads the stream: read it here

/** Parses a stream of server-sent events. `feed(text)` returns the events that are whole: {event, id, data}. */
export function makeParser() {
  let rest = "", event = "", id = "", data = [];
  return {
    feed(text) {
      const found = [];
      const lines = (rest + text).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length) found.push({ event: event || "message", id, data: data.join("\n") });
          event = "";
          data = [];
        } else if (!line.startsWith(":")) {
          const at = line.indexOf(":");
          const name = at < 0 ? line : line.slice(0, at);
          const value = at < 0 ? "" : line.slice(at + 1).replace(/^ /, "");
          if (name === "data") data.push(value);
          else if (name === "event") event = value;
          else if (name === "id") id = value;
        }
      }
      return found;
    },
  };
}

/** The frames and the state of the connection. `subscribe(f)` calls f at each change; `now()`: seconds since the epoch. */
export class Live {
  constructor({ now = () => Date.now() / 1000, fetcher = (...given) => fetch(...given) } = {}) {
    this.now = now;
    this.fetcher = fetcher;
    this.frames = []; // oldest first; those of the history are 5 s apart
    this.frame = null;
    this.receivedAt = null; // by this machine's clock
    this.openedAt = now();
    this.problem = ""; // why there is no stream
    this.needsSignIn = false;
    this.listeners = new Set();
    this.isStopped = false;
    this.lastId = "";
    this.abort = null;
    this.ended = new AbortController();
    this.watch = null;
    this.channel = null;
    this.running = null;
  }

  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Seconds without data; 0 while frames arrive. */
  silence() {
    const age = this.now() - (this.receivedAt ?? this.openedAt);
    return age > STALE_S ? age : 0;
  }

  async start() {
    this.openedAt = this.now();
    if ("BroadcastChannel" in globalThis) {
      this.channel = new BroadcastChannel(`stayfast-live ${endpoint("/admin/live")}`);
      this.channel.onmessage = ({ data }) => (data.frame ? this.take(data.frame) : this.fail(data));
    }
    this.loadHistory();
    if (this.channel && navigator.locks) {
      const options = { signal: this.ended.signal };
      navigator.locks.request(`stayfast-live ${endpoint("/admin/live")}`, options, () => this.run()).catch(() => {});
      this.watch = setInterval(() => this.silence() > ALONE_S && this.run(), 5000);
    } else {
      this.channel = null;
      this.run();
    }
  }

  stop() {
    this.isStopped = true;
    this.ended.abort();
    clearInterval(this.watch);
    this.abort?.abort();
    this.channel?.close();
  }

  async loadHistory(seconds = 1800) {
    try {
      const answer = await this.fetcher(endpoint(`/admin/live/history?seconds=${seconds}`), { cache: "no-store" });
      if (!answer.ok) return;
      const { frames } = await answer.json();
      const first = this.frames[0]?.at ?? Infinity;
      this.frames = [...frames.filter((frame) => frame.at < first - 0.5).map((frame) => ({ ...frame, slot_s: 5 })),
        ...this.frames];
      if (!this.frame && frames.length) this.frame = frames.at(-1);
      this.notify();
    } catch { /* the stream reports what is wrong */ }
  }

  /** Read the stream until `stop`; once, however often it is called. */
  run() {
    this.running ??= this.readAgain().finally(() => { this.running = null; });
    return this.running;
  }

  async readAgain() {
    for (let failures = 0; !this.isStopped;) {
      const before = this.receivedAt;
      await this.read();
      if (this.isStopped || this.needsSignIn) return;
      failures = this.receivedAt !== before ? 0 : failures + 1;
      const wait = BACKOFF_S[Math.min(failures, BACKOFF_S.length - 1)] * (0.75 + Math.random() / 2);
      await new Promise((resume) => setTimeout(resume, wait * 1000));
    }
  }

  async read() {
    const abort = (this.abort = new AbortController());
    let timer = setTimeout(() => abort.abort(), SILENT_S * 1000);
    try {
      const headers = { accept: "text/event-stream", ...(this.lastId ? { "last-event-id": this.lastId } : {}) };
      const answer = await this.fetcher(endpoint("/admin/live"), { headers, signal: abort.signal, cache: "no-store" });
      if (!answer.ok) {
        this.share({ problem: `the gateway answers ${answer.status} to /admin/live`,
          needsSignIn: answer.status === 401 || answer.status === 403 });
        return;
      }
      const parser = makeParser(), decoder = new TextDecoder();
      for (const reader = answer.body.getReader(); ;) {
        const { done, value } = await reader.read();
        if (done) break;
        clearTimeout(timer);
        timer = setTimeout(() => abort.abort(), SILENT_S * 1000);
        for (const { event, id, data } of parser.feed(decoder.decode(value, { stream: true }))) {
          if (id) this.lastId = id;
          if (event === "frame" || event === "message") this.share({ frame: JSON.parse(data) });
        }
      }
      this.share({ problem: "the gateway ended the stream" });
    } catch {
      if (!this.isStopped) this.share({ problem: "the gateway cannot be reached" });
    } finally {
      clearTimeout(timer);
    }
  }

  share(message) {
    this.channel?.postMessage(message);
    if (message.frame) this.take(message.frame);
    else this.fail(message);
  }

  fail({ problem, needsSignIn = false }) {
    this.problem = problem;
    this.needsSignIn = needsSignIn;
    this.notify();
  }

  take(frame) {
    if (this.frame && frame.gateway === this.frame.gateway && frame.at <= this.frame.at && !this.frame.slot_s) return;
    this.frame = frame;
    this.lastId = String(frame.n);
    this.frames.push(frame);
    this.compact(frame.at);
    this.receivedAt = this.now();
    this.problem = "";
    this.notify();
  }

  /** Merge the frames of each past slot into one, and drop the oldest. */
  compact(now) {
    const young = this.frames.findIndex((frame) => frame.at > now - WHOLE_S && !frame.slot_s);
    if (young > 0 && !this.frames[young - 1].slot_s) {
      const first = this.frames.findIndex((frame) => !frame.slot_s), old = this.frames.slice(first, young);
      const last = slotOf(this.frames[young]); // its slot is not over yet
      const slots = new Map();
      for (const frame of old) {
        if (slotOf(frame) < last) slots.set(slotOf(frame), [...(slots.get(slotOf(frame)) ?? []), frame]);
      }
      const n = [...slots.values()].reduce((total, each) => total + each.length, 0);
      this.frames.splice(first, n, ...[...slots.values()].map(mergeFrames));
    }
    const drop = this.frames.findIndex((frame) => frame.at > now - HELD_S);
    if (drop > 0) this.frames.splice(0, drop);
  }

  notify() {
    for (const listener of this.listeners) listener(this);
  }
}
