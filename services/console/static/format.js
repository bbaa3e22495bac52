/** Numbers as people read them: few digits, always the same width where they change, and their unit beside them. */

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

export const NONE = "–";
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

export const count = (value) => (known(value) ? whole.format(value) : NONE);

/** A rate: one decimal while it is small. */
export function rate(value) {
  if (!known(value)) return NONE;
  return value < 9.95 ? tenth.format(value) : whole.format(value);
}

/** A share as a percentage, without the sign. Only all is 100, only nothing is 0. */
export function percent(share) {
  if (!known(share)) return NONE;
  const value = share * 100;
  if (value <= 0) return "0";
  if (value < 9.95) return tenth.format(Math.max(value, 0.1));
  if (value < 100 && value >= 99) return tenth.format(Math.min(value, 99.9));
  return whole.format(value);
}

export function ms(value) {
  if (!known(value)) return NONE;
  return value < 9.95 && value > 0 ? tenth.format(value) : whole.format(value);
}

/** Seconds with one decimal from milliseconds, where a sentence has to be short. */
export function span(value) {
  if (!known(value)) return NONE;
  return value < 1000 ? `${ms(value)} ms` : `${tenth.format(value / 1000)} s`;
}

export function clock(at_ms) {
  const at = new Date(at_ms);
  return [at.getHours(), at.getMinutes(), at.getSeconds()].map((part) => String(part).padStart(2, "0")).join(":");
}

/** "1 request", "2 requests". */
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** "a, b and c". */
export function list(words) {
  if (words.length < 2) return words.join("");
  return `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}
