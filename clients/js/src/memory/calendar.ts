/**
 * Ends of aligned windows: multiples of their length, or weeks, months, quarters and years.
 *
 * Days and months are counted from the 1st of March of year 0, so that a leap day is the last day
 * of its year (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
 */

import { DAY } from "./rule.js";

const DAYS_BEFORE_EPOCH = 719_468n;

/** Length of each calendar window in months; 0 for a week. */
const MONTHS: Readonly<Record<string, bigint>> = { "1w": 0n, "1mo": 1n, "3mo": 3n, "1y": 12n };

export function isCalendar(window: string): boolean {
  return Object.hasOwn(MONTHS, window);
}

/** Boundaries of aligned windows. */
export class AlignedWindows {
  readonly calendar: string | undefined;
  /** Name that distinguishes windows of the same length. */
  readonly key: string;
  readonly #window: bigint;
  readonly #offset: bigint;
  readonly #anchor: bigint;

  /**
   * Creates the boundaries. `offset` is the difference from UTC in microseconds, `anchor` the day
   * on which months begin.
   */
  constructor(window: bigint, calendar: string | undefined, offset: bigint, anchor: bigint) {
    this.calendar = calendar;
    this.key = `${calendar} ${offset} ${anchor}`;
    this.#window = window;
    this.#offset = offset;
    this.#anchor = anchor;
  }

  /** Returns the end of the window that contains an instant. */
  end(instant: bigint): bigint {
    if (this.calendar === undefined) {
      const passed = (instant + this.#offset) % this.#window;
      return instant + this.#window - (passed < 0n ? passed + this.#window : passed);
    }
    const local = instant + DAYS_BEFORE_EPOCH * DAY + this.#offset;
    return instant + this.#nextBegin(local / DAY, MONTHS[this.calendar]!) * DAY - local;
  }

  /** Returns the day on which the window after that of `day` begins. */
  #nextBegin(day: bigint, months: bigint): bigint {
    // Day 0 was a Wednesday, and month 0 a March.
    if (months === 0n) return day + 7n - ((day + 2n) % 7n);
    const month = monthOf(day);
    const firstMonth = month - ((month + 2n) % months);
    const begin = this.#beginIn(firstMonth);
    return day < begin ? begin : this.#beginIn(firstMonth + months);
  }

  /** Returns the day in a month on which a window begins: the anchor, or the last day. */
  #beginIn(month: bigint): bigint {
    const [afterAnchor, nextMonth] = [firstDay(month) + this.#anchor, firstDay(month + 1n)];
    return (afterAnchor < nextMonth ? afterAnchor : nextMonth) - 1n;
  }
}

function monthOf(day: bigint): bigint {
  const [era, dayOfEra] = [day / 146_097n, day % 146_097n];
  const yearOfEra = (dayOfEra - dayOfEra / 1460n + dayOfEra / 36_524n - dayOfEra / 146_096n) / 365n;
  const year = era * 400n + yearOfEra;
  return year * 12n + ((day - firstDay(year * 12n)) * 5n + 2n) / 153n;
}

function firstDay(month: bigint): bigint {
  const [year, monthOfYear] = [month / 12n, month % 12n];
  return year * 365n + year / 4n + year / 400n - year / 100n + (monthOfYear * 153n + 2n) / 5n;
}
