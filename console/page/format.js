// Numbers, times and names as people read them.

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 6 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

/** 12,345.5 */
export const number = (value) => grouped.format(value);
/** 12.3K */
export const compact = (value) => (Math.abs(value) < 10_000 ? grouped.format(Math.round(value * 10) / 10) : short.format(value));
/** A rate a second: 0.3, 12, 3,400 */
export const rate = (value) => (value === 0 ? "0" : value < 10 ? value.toFixed(1) : compact(Math.round(value)));
/** 12 %, of a share from 0 to 1. What is not nothing does not read as nothing. */
export const percent = (share) => (share > 0 && share < 0.001 ? "< 0.1 %" : `${grouped.format(Math.round(share * 1000) / 10)} %`);

const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1000]];

/** Milliseconds as two units at the most: 1 h 5 min, 12 s, 340 ms. */
export function duration(ms) {
  if (ms < 0) return "never";
  if (ms < 1000) return `${Math.ceil(ms)} ms`;
  if (ms < 10_000) return `${Math.round(ms / 100) / 10} s`;
  let rest = Math.round(ms / 1000) * 1000;
  const parts = [];
  for (const [unit, size] of UNITS) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count > 0) parts.push(`${count} ${unit}`);
    else if (parts.length > 0) break;
    if (parts.length === 2) break;
  }
  return parts.join(" ");
}

/** An instant of milliseconds since 1970, in the reader's own time. */
export const instant = (ms) => {
  const date = new Date(ms);
  const sameDay = date.toDateString() === new Date().toDateString();
  const time = date.toLocaleTimeString("en-GB");
  return sameDay ? time : `${date.toISOString().slice(0, 10)} ${time}`;
};

// Control characters, and those that turn the direction of writing or do not show at all: a name could look like
// another by them.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** A name with what does not show made visible: ␊ and <U+202E>. */
export const visible = (name) =>
  name.replace(UNSEEN, (one) => {
    const code = one.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return `<U+${code.toString(16).toUpperCase().padStart(4, "0")}>`;
  });
