// Formatting of numbers, times and names.

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 6 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

/** Formats a number: 12,345.5 */
export const number = (value) => grouped.format(value);
/** Formats a number briefly: 12.3K */
export const compact = (value) => (Math.abs(value) < 10_000 ? grouped.format(Math.round(value * 10) / 10) : short.format(value));
/** Formats a rate a second: 0.3, 12, 3,400 */
export const rate = (value) => (value === 0 ? "0" : value < 10 ? value.toFixed(1) : compact(Math.round(value)));
/** Formats a share from 0 to 1 in percent. A share above 0 is never shown as 0. */
export const percent = (share) => (share > 0 && share < 0.001 ? "< 0.1 %" : `${grouped.format(Math.round(share * 1000) / 10)} %`);

const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1000]];

/** Formats milliseconds in at most two units: 1 h 5 min, 12 s, 340 ms. A negative number stands for never. */
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

/** Formats milliseconds since the Unix epoch in the user's time zone. */
export const instant = (ms) => {
  const date = new Date(ms);
  const sameDay = date.toDateString() === new Date().toDateString();
  const time = date.toLocaleTimeString("en-GB");
  const day = [date.getFullYear(), date.getMonth() + 1, date.getDate()].map((part) => String(part).padStart(2, "0")).join("-");
  return sameDay ? time : `${day} ${time}`;
};

// Control characters, and invisible or direction-changing characters, by which a name could look like another.
const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** Formats a name with its invisible characters made visible: ␊ and <U+202E>. */
export const visible = (name) =>
  name.replace(INVISIBLE, (character) => {
    const code = character.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return `<U+${code.toString(16).toUpperCase().padStart(4, "0")}>`;
  });
