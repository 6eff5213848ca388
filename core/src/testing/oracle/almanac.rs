//! Calendar without arithmetic: each day follows the previous one, and the lengths of months are written out. Local
//! times are in microseconds since local clocks showed the Unix epoch, and may be negative.

use crate::algorithm::fixed_window::calendar::{Anchor, Calendar};
use proptest::prelude::*;
use proptest::sample::select;
use std::sync::LazyLock;

pub const DAY: i128 = 86_400_000_000;

/// Last day of the table, since the epoch: a year after the last timestamp.
const LAST_DAY: i64 = 365_000 + 366;

/// Date: year, month (January is 1), day, and day of the week (Monday is 1).
pub type Date = (u32, u8, u8, u8);

/// Dates from 1969-12-31 on, which is the local date of the epoch west of UTC.
static DATES: LazyLock<Vec<Date>> = LazyLock::new(|| {
    // 1970-01-01 was a Thursday.
    std::iter::successors(Some((1969, 12, 31, 3)), |date| Some(next_date(*date)))
        .take((LAST_DAY + 2).try_into().unwrap())
        .collect()
});

fn next_date((year, month, day, weekday): Date) -> Date {
    let weekday = if weekday == 7 { 1 } else { weekday + 1 };
    if day < days_in_month(year, month) {
        (year, month, day + 1, weekday)
    } else if month < 12 {
        (year, month + 1, 1, weekday)
    } else {
        (year + 1, 1, 1, weekday)
    }
}

fn days_in_month(year: u32, month: u8) -> u8 {
    let is_leap_year = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let february = if is_leap_year { 29 } else { 28 };
    [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][usize::from(month - 1)]
}

/// Returns the date of a day since the epoch, from -1.
pub fn date(day: i64) -> Date {
    DATES[usize::try_from(day + 1).unwrap()]
}

/// Calendar window with its anchor.
#[derive(Clone, Copy, Debug)]
pub struct CalendarWindow {
    pub unit: &'static str,
    pub anchor: u8,
}

impl CalendarWindow {
    /// Returns every valid calendar window.
    pub fn all() -> impl Iterator<Item = CalendarWindow> {
        let anchored =
            ["1mo", "3mo"].into_iter().flat_map(|unit| (1..=31).map(move |anchor| CalendarWindow { unit, anchor }));
        ["1w", "1y"].into_iter().map(|unit| CalendarWindow { unit, anchor: 1 }).chain(anchored)
    }

    pub fn any() -> impl Strategy<Value = CalendarWindow> + Clone {
        (select(vec!["1w", "1mo", "3mo", "1y"]), prop_oneof![Just(1), 1..=31_u8, 28..=31_u8])
            .prop_map(|(unit, anchor)| CalendarWindow { unit, anchor: if unit.ends_with("mo") { anchor } else { 1 } })
    }

    pub fn implementation(self) -> Calendar {
        let calendar = Calendar::parse(self.unit.as_bytes()).unwrap();
        let anchor = Anchor::parse(self.anchor.to_string().as_bytes()).unwrap();
        if self.unit.ends_with("mo") { calendar.anchored(anchor).unwrap() } else { calendar }
    }

    /// Returns `true` if a window begins on this day.
    pub fn begins_on(self, day: i64) -> bool {
        let (year, month, day, weekday) = date(day);
        let is_anchor_day = day == self.anchor.min(days_in_month(year, month));
        match self.unit {
            "1w" => weekday == 1,
            "1mo" => is_anchor_day,
            "3mo" => [1, 4, 7, 10].contains(&month) && is_anchor_day,
            "1y" => month == 1 && day == 1,
            other => unreachable!("{other}"),
        }
    }

    /// Returns the local end of the window that contains a local time.
    pub fn end(self, local: i128) -> i128 {
        let day = i64::try_from(local.div_euclid(DAY)).unwrap();
        i128::from((day + 1..=day + 366).find(|day| self.begins_on(*day)).unwrap()) * DAY
    }
}

/// Generates distances from UTC in minutes: common and extreme ones.
pub fn offsets() -> impl Strategy<Value = i64> + Clone {
    prop_oneof![Just(0), select(vec![-840, -570, -1, 1, 345, 540, 840]), -840..=840_i64]
}

/// Formats a distance from UTC like an argument.
pub fn offset(minutes: i64) -> String {
    let (hours, rest) = (minutes.abs() / 60, minutes.abs() % 60);
    format!("{}{hours:02}:{rest:02}", if minutes < 0 { '-' } else { '+' })
}
