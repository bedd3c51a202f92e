// Formatting of numbers: three digits and a unit, as in `pepd status`.

const BITS = ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"];
const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];

function three(value) {
  if (value >= 99.95) return value.toFixed(0);
  return value.toFixed(value >= 9.995 ? 1 : 2);
}

function scaled(value, base, units) {
  let unit = 0;
  while (value >= base * 0.9995 && unit < units.length - 1) {
    value /= base;
    unit += 1;
  }
  const number = unit === 0 ? Math.round(value).toString() : three(value);
  return `${number}\u00a0${units[unit]}`;
}

export const bits = (value) => scaled(value, 1000, BITS);
export const bytes = (value) => scaled(value, 1024, BYTES);
export const count = (value) => Math.round(value).toLocaleString("en").replaceAll(",", "\u2009");

// Formats a share between 0 and 1.
export function percent(value) {
  const share = 100 * value;
  if (share === 0) return "0\u00a0%";
  if (share < 0.01) return "<\u20090.01\u00a0%";
  return `${share >= 9.95 ? share.toFixed(0) : share.toPrecision(2)}\u00a0%`;
}

export function milliseconds(seconds) {
  const ms = 1000 * seconds;
  return `${ms >= 9.95 ? ms.toFixed(0) : ms.toPrecision(2)}\u00a0ms`;
}

// Removes trailing zeros from the labels of a scale.
export const round = (text) => text.replace(/(\.\d*?)0+(?=\D)/, "$1").replace(/\.(?=\D)/, "");

// Formats a duration in its two largest units.
export function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([length]) => whole >= length);
  if (first < 0) return "0s";
  let text = "";
  let rest = whole;
  for (const [length, unit] of parts.slice(first, first + 2)) {
    const number = Math.floor(rest / length);
    rest -= number * length;
    if (number > 0) text += number + unit;
  }
  return text;
}

// Formats Unix time as local time.
export function clock(at, seconds = false) {
  const options = { hour: "2-digit", minute: "2-digit", hour12: false };
  if (seconds) options.second = "2-digit";
  return new Date(1000 * at).toLocaleTimeString("en-GB", options);
}

export function day(at) {
  const date = new Date(1000 * at).toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  return `${date} ${clock(at, true)}`;
}
