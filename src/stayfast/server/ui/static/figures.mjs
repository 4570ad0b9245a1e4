// Figures of frames: sums over routes, shares weighed by requests, slots of time, percentiles of a heat map.
export const HEAT_BOUNDS_S = Array.from({ length: 29 }, (_, at) => 0.01 * 2 ** (at / 2)); // core/snapshot.py
export const SLOT_S = 5;
const LINE_S = 60; // percentiles are of the last minute, as in the tables
const FRAME_S = 1; // between two live frames
const LEAST = 20; // a p99 of fewer requests is their maximum

const sum = (rows, value) => rows.reduce((total, row) => total + (value(row) ?? 0), 0);
const mean = (rows, weight, value) => {
  const whole = sum(rows, weight);
  return whole > 0 ? sum(rows, (row) => weight(row) * (value(row) ?? 0)) / whole : 0;
};

/** The rows of a frame that the filters of the address leave: {routes, upstreams}. */
export function filterRows(frame, { route, upstream, q }) {
  const text = (q ?? "").toLowerCase();
  const has = (name) => !text || name.toLowerCase().includes(text);
  const routes = frame?.routes ?? [], upstreams = frame?.upstreams ?? [];
  const isOfRoute = routes.some((each) => has(each.route)), isOfUpstream = upstreams.some((each) => has(each.name));
  return { // a text that names routes only leaves the upstreams alone, and the other way round
    routes: routes.filter((each) => (!route || each.route === route) && (has(each.route) || (!isOfRoute && isOfUpstream))),
    upstreams: upstreams.filter((each) => (!upstream || each.name === upstream)
      && (has(each.name) || (!isOfUpstream && isOfRoute))),
  };
}

const held = new WeakMap(); // by frame: the sums under the last filter

/** The sums of a frame under the filters. An upstream has no shares of hedges, caches and cost: null. */
export function totals(frame, filter) {
  const key = JSON.stringify([filter.route, filter.upstream, filter.q]), found = held.get(frame);
  if (found?.key === key) return found.sums;
  const sums = addUp(frame, filter);
  held.set(frame, { key, sums });
  return sums;
}

function addUp(frame, filter) {
  const { routes, upstreams } = filterRows(frame, filter);
  if (filter.upstream) {
    const rps = (each) => each.rps ?? 0;
    return { rps: sum(upstreams, rps), in_flight: sum(upstreams, (each) => each.in_flight),
      waiting: sum(upstreams, (each) => each.waiting), failed: mean(upstreams, rps, (each) => each.failed_ratio),
      late: null, hedged: null, cached: null, shed: null, usd_per_h: null, tokens: null, ttft: upstreams[0]?.ttft_s ?? {} };
  }
  const rps = (each) => each.rps ?? (each.n ?? 0) / (frame?.slot_s ?? 1);
  const active = (value) => (filter.route ? null : sum(upstreams, value)); // counted by upstream: a route has none
  return { rps: sum(routes, rps), in_flight: active((each) => each.in_flight), waiting: active((each) => each.waiting),
    failed: mean(routes, rps, (each) => each.failed_ratio), late: mean(routes, rps, (each) => each.late_ratio),
    hedged: mean(routes, rps, (each) => each.hedged_ratio), cached: mean(routes, rps, (each) => each.cached_ratio),
    shed: mean(routes, rps, (each) => each.shed_ratio), usd_per_h: sum(routes, (each) => each.usd_per_h),
    tokens: sum(routes, (each) => each.output_tokens_per_s), ttft: routes.length === 1 ? routes[0].ttft_s ?? {} : null };
}

/** How many requests fell into each row of the heat map, and how many had no first token. */
export function heatOf(frame, filter) {
  const rows = new Array(HEAT_BOUNDS_S.length + 1).fill(0);
  const { routes, upstreams } = filterRows(frame, filter);
  const from = filter.upstream ? upstreams : routes;
  for (const each of from) for (const [row, n] of each.heat ?? []) rows[row] += n;
  return { rows, failed: filter.upstream ? 0 : sum(routes, (each) => each.n_heat_failed) };
}

/** The number of the slot that a frame belongs to. A frame of the history ends at its instant. */
export const slotOf = (frame) => Math.floor((frame.at - (frame.slot_s ? 0.001 : 0)) / SLOT_S);

/** One frame for the frames of a slot: the figures of the last one, the heat of all. */
export function mergeFrames(frames) {
  const merge = (rows, nameOf) => rows.at(-1)?.map((row) => {
    const same = rows.map((each) => each.find((other) => nameOf(other) === nameOf(row))).filter(Boolean);
    const heat = new Map();
    for (const each of same) for (const [at, n] of each.heat ?? []) heat.set(at, (heat.get(at) ?? 0) + n);
    return { ...row, n: sum(same, (each) => each.n), n_heat_failed: sum(same, (each) => each.n_heat_failed), heat: [...heat] };
  }) ?? [];
  const last = frames.at(-1);
  return { ...last, at: (slotOf(last) + 1) * SLOT_S, slot_s: SLOT_S, findings: [],
    routes: merge(frames.map((frame) => frame.routes ?? []), (row) => row.route),
    upstreams: merge(frames.map((frame) => frame.upstreams ?? []), (row) => row.name) };
}

/** Slots of SLOT_S seconds that cover the last `windowS` seconds, oldest first: {at, rows, failed, n, isGap}. */
export function slotsOf(frames, windowS, filter, now) {
  const last = Math.floor(now / SLOT_S), n = Math.max(1, Math.round(windowS / SLOT_S)), first = last - n + 1;
  const slots = Array.from({ length: n }, (_, at) => ({ at: (first + at) * SLOT_S, rows: null, failed: 0, n: 0, isGap: true }));
  for (let at = frames.length - 1; at >= 0; at -= 1) {
    const frame = frames[at];
    const before = slots[Math.floor((frame.at - (frame.slot_s ?? FRAME_S)) / SLOT_S) - first];
    if (before) before.isGap = false; // the frame covers a part of it
    const slot = slots[slotOf(frame) - first];
    if (!slot) {
      if (frame.at < first * SLOT_S) break;
      continue;
    }
    const heat = heatOf(frame, filter);
    slot.isGap = false;
    slot.rows = slot.rows ? slot.rows.map((count, row) => count + heat.rows[row]) : heat.rows;
    slot.failed += heat.failed;
  }
  for (const slot of slots) slot.n = slot.rows ? slot.rows.reduce((total, count) => total + count, 0) : 0;
  return slots;
}

/** A percentile of a heat map's rows, in seconds: within its row, interpolated on the log scale. null without requests. */
export function percentileOf(rows, share) {
  const n = rows.reduce((total, count) => total + count, 0);
  if (!n) return null;
  const place = share * n;
  let before = 0;
  for (let row = 0; row < rows.length; row += 1) {
    if (before + rows[row] >= place && rows[row] > 0) {
      const high = HEAT_BOUNDS_S[row] ?? HEAT_BOUNDS_S.at(-1) * Math.SQRT2, low = high / Math.SQRT2;
      return low * (high / low) ** ((place - before) / rows[row]);
    }
    before += rows[row];
  }
  return null;
}

/** p50 and p99 of the last minute at each slot; null where there is a gap or nothing to say. */
export function linesOf(slots) {
  const width = LINE_S / SLOT_S;
  return slots.map((slot, at) => {
    const part = slots.slice(Math.max(0, at - width + 1), at + 1).filter((each) => each.rows);
    if (slot.isGap || !part.length) return { at: slot.at, p50: null, p99: null, n: 0 };
    const rows = part.reduce((all, each) => all.map((count, row) => count + each.rows[row]),
      new Array(HEAT_BOUNDS_S.length + 1).fill(0));
    const n = rows.reduce((total, count) => total + count, 0);
    return { at: slot.at, p50: percentileOf(rows, 0.5), p99: n >= LEAST ? percentileOf(rows, 0.99) : null, n };
  });
}

/** A figure of each slot of a window; a slot without a frame is null. value(frame) */
export function seriesOf(frames, windowS, value, now) {
  const last = Math.floor(now / SLOT_S), n = Math.max(1, Math.round(windowS / SLOT_S)), first = last - n + 1;
  const found = Array.from({ length: n }, () => null);
  for (const frame of frames) {
    const at = slotOf(frame) - first;
    if (at >= 0 && at < n) found[at] = value(frame);
  }
  return { times: found.map((_, at) => (first + at) * SLOT_S), values: found };
}

/** How bad a row is: its p99 over its promise. Those without a promise follow, by their p99. Unknown: 0. */
export const badnessOf = (row) => {
  const p99 = row.ttft_s?.p99 ?? 0;
  return row.promise_s ? 1 + p99 / row.promise_s : p99 / (1 + p99);
};

/** Whether a row keeps its promise: good, warn (p99 over it, or 1 % failed), bad (share below the promised one, or 5 %). */
export function stateOf(row) {
  if (!(row.rps > 0)) return "off";
  const late = row.late_ratio ?? 0, failed = row.failed_ratio ?? 0;
  if (failed >= 0.05 || (row.promise_share && late > 2 * (1 - row.promise_share))) return "bad";
  if (failed >= 0.01 || (row.promise_share && late > 1 - row.promise_share)) return "warn";
  return "good";
}
