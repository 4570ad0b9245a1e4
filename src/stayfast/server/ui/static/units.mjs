// Figures with their units. null and undefined: "–".
const NONE = "–";
const has = (value) => value !== null && value !== undefined && Number.isFinite(value);
const digits = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));

/** Seconds as "120 ms", "1.24 s", "3 min 20 s", "2 h 5 min", "3 d 4 h". */
export function seconds(value) {
  if (!has(value)) return NONE;
  if (value === 0) return "0 s";
  if (value < 0) return `-${seconds(-value)}`;
  if (value < 0.000_999_5) return `${digits(value * 1e6)} µs`;
  if (value < 0.999_5) return value < 0.01 ? `${digits(value * 1e3)} ms` : `${(value * 1e3).toFixed(0)} ms`;
  if (value < 120) return `${digits(value)} s`;
  const whole = Math.round(value);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor((whole % 86_400) / 3600)} h`;
}

/** A share as "12.3 %". */
export function percent(value) {
  if (!has(value)) return NONE;
  const of100 = value * 100;
  return `${of100 === 0 ? "0" : Math.abs(of100) < 0.1 ? of100.toPrecision(1) : of100.toFixed(of100 < 10 ? 1 : 0)} %`;
}

/** Bytes as "1.2 MB". */
export function bytes(value) {
  if (!has(value)) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0, rest = value;
  for (; Math.abs(rest) >= 1000 && at < units.length - 1; at += 1) rest /= 1000;
  return `${at ? digits(rest) : rest} ${units[at]}`;
}

/** A count as "1,234", "12.3 k", "1.20 M". */
export function count(value) {
  if (!has(value)) return NONE;
  if (Math.abs(value) >= 1e9) return `${digits(value / 1e9)} G`;
  if (Math.abs(value) >= 1e6) return `${digits(value / 1e6)} M`;
  if (Math.abs(value) >= 1e4) return `${digits(value / 1e3)} k`;
  return Math.round(value).toLocaleString("en-US");
}

/** A rate such as requests a second. */
export const rate = (value) => (has(value) ? (value === 0 ? "0" : digits(value)) : NONE);

/** US dollars. */
export function dollars(value) {
  if (!has(value)) return NONE;
  if (value === 0) return "0 USD";
  return `${value < 0.01 ? value.toPrecision(2) : value < 100 ? value.toFixed(2) : count(value)} USD`;
}

/** A time of day, of seconds since the epoch, in this browser's zone. */
export function clock(at, { withDate = false } = {}) {
  if (!has(at)) return NONE;
  const date = new Date(at * 1000);
  const two = (value) => String(value).padStart(2, "0");
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return withDate ? `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}` : time;
}

/** This browser's time zone as "UTC+02:00". */
export function zone(date = new Date()) {
  const minutes = -date.getTimezoneOffset(), size = Math.abs(minutes);
  const two = (value) => String(value).padStart(2, "0");
  return minutes === 0 ? "UTC" : `UTC${minutes < 0 ? "-" : "+"}${two(Math.floor(size / 60))}:${two(size % 60)}`;
}
