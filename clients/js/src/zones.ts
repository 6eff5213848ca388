/** Offsets of named time zones, for aligned windows. */

const DAY = 86_400_000;

/**
 * Returns the `offset` for windows of `fixed` that follow the days of a time zone:
 * `fixed(1000, "1d", { aligned: true, offset: zoneOffset("Europe/Berlin") })`.
 *
 * The result is the zone's smallest offset in the year of `at` (now), and does not change when clocks
 * do. Days begin at midnight in winter and at 1:00 in summer, and none is granted twice, as it would
 * be with the offset of the moment when clocks go back. Throws a RangeError if there is no such zone.
 */
export function zoneOffset(zone: string, at: Date = new Date()): string {
  const first = Date.UTC(at.getUTCFullYear(), 0, 1);
  const format = formatOf(zone);
  // Samples once a week, as every offset lasts for weeks.
  const minutes = Array.from({ length: 53 }, (_, week) =>
    minutesOf(format, first + week * 7 * DAY),
  );
  const smallest = Math.min(...minutes);
  const two = (number: number) => `${Math.floor(number)}`.padStart(2, "0");
  const distance = Math.abs(smallest);
  return `${smallest < 0 ? "-" : "+"}${two(distance / 60)}:${two(distance % 60)}`;
}

function formatOf(timeZone: string): Intl.DateTimeFormat {
  try {
    return new Intl.DateTimeFormat("en-US", { timeZone, timeZoneName: "longOffset" });
  } catch (error) {
    const message = `no time zone ${JSON.stringify(timeZone)}: name one such as "Europe/Berlin"`;
    throw new RangeError(message, { cause: error });
  }
}

/** Parses "GMT-03:30", and "GMT" for an offset of zero. */
function minutesOf(format: Intl.DateTimeFormat, at: number): number {
  const part = format.formatToParts(at).find(({ type }) => type === "timeZoneName");
  const match = /GMT([+-])(\d\d):(\d\d)/.exec(part?.value ?? "");
  if (!match) return 0;
  const distance = Number(match[2]) * 60 + Number(match[3]);
  return match[1] === "-" ? -distance : distance;
}
