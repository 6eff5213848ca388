/** Offsets of named time zones, for aligned windows. */

const DAY_MS = 86_400_000;

/**
 * Returns the `offset` for windows of `fixed` that follow the days of a time zone: `fixed(1000,
 * "1d", { aligned: true, offset: zoneOffset("Europe/Berlin") })`.
 *
 * The result is the smallest offset of the zone in the year of `date`, by default now. It does not
 * change with daylight saving time: days begin at midnight in winter and at 1:00 in summer. With
 * the offset of the moment, a limit would be granted twice on the day when clocks go back. Throws a
 * RangeError if there is no such zone.
 */
export function zoneOffset(zone: string, date: Date = new Date()): string {
  const newYear = Date.UTC(date.getUTCFullYear(), 0, 1);
  const format = formatOf(zone);
  // One sample a week is enough, as every offset lasts for weeks.
  const minutes = Array.from({ length: 53 }, (_, week) =>
    minutesOf(format, newYear + week * 7 * DAY_MS),
  );
  const smallest = Math.min(...minutes);
  const twoDigits = (number: number) => `${Math.floor(number)}`.padStart(2, "0");
  const distance = Math.abs(smallest);
  return `${smallest < 0 ? "-" : "+"}${twoDigits(distance / 60)}:${twoDigits(distance % 60)}`;
}

function formatOf(timeZone: string): Intl.DateTimeFormat {
  try {
    return new Intl.DateTimeFormat("en-US", { timeZone, timeZoneName: "longOffset" });
  } catch (error) {
    const message = `no time zone ${JSON.stringify(timeZone)}: name one such as "Europe/Berlin"`;
    throw new RangeError(message, { cause: error });
  }
}

/**
 * Returns the offset at an instant in minutes. Parses "GMT-03:30", and "GMT" for an offset of zero.
 */
function minutesOf(format: Intl.DateTimeFormat, instant: number): number {
  const part = format.formatToParts(instant).find(({ type }) => type === "timeZoneName");
  const match = /GMT([+-])(\d\d):(\d\d)/.exec(part?.value ?? "");
  if (!match) return 0;
  const distance = Number(match[2]) * 60 + Number(match[3]);
  return match[1] === "-" ? -distance : distance;
}
