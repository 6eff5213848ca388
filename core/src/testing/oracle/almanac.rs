//! A calendar without arithmetic: every day is the one after the day before it, and the lengths of months are written
//! out. Local times are in microseconds since local clocks showed the Unix epoch, and may lie before it.

use crate::algorithm::fixed_window::calendar::{Anchor, Calendar};
use proptest::prelude::*;
use proptest::sample::select;
use std::sync::LazyLock;

pub const DAY: i128 = 86_400_000_000;

/// The last day that is looked at: a year after the last instant.
const LAST: i64 = 365_000 + 366;

/// A date: its year, its month (January is 1), its day, and its day of the week (Monday is 1).
pub type Date = (u32, u8, u8, u8);

/// The dates from the last day of 1969, which is a local date of the epoch, too.
static DATES: LazyLock<Vec<Date>> = LazyLock::new(|| {
    // 1970-01-01 was a Thursday.
    std::iter::successors(Some((1969, 12, 31, 3)), |date| Some(next(*date)))
        .take((LAST + 2).try_into().unwrap())
        .collect()
});

fn next((year, month, day, weekday): Date) -> Date {
    let weekday = if weekday == 7 { 1 } else { weekday + 1 };
    if day < length(year, month) {
        (year, month, day + 1, weekday)
    } else if month < 12 {
        (year, month + 1, 1, weekday)
    } else {
        (year + 1, 1, 1, weekday)
    }
}

fn length(year: u32, month: u8) -> u8 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let february = if leap { 29 } else { 28 };
    [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][usize::from(month - 1)]
}

/// The date of a day since the epoch, from -1.
pub fn date(day: i64) -> Date {
    DATES[usize::try_from(day + 1).unwrap()]
}

/// A calendar window, as words say it.
#[derive(Clone, Copy, Debug)]
pub struct Turns {
    pub unit: &'static str,
    pub anchor: u8,
}

impl Turns {
    /// Every calendar window that can be said.
    pub fn all() -> impl Iterator<Item = Turns> {
        let anchored = ["1mo", "3mo"].into_iter().flat_map(|unit| (1..=31).map(move |anchor| Turns { unit, anchor }));
        ["1w", "1y"].into_iter().map(|unit| Turns { unit, anchor: 1 }).chain(anchored)
    }

    pub fn any() -> impl Strategy<Value = Turns> + Clone {
        (select(vec!["1w", "1mo", "3mo", "1y"]), prop_oneof![Just(1), 1..=31_u8, 28..=31_u8])
            .prop_map(|(unit, anchor)| Turns { unit, anchor: if unit.ends_with("mo") { anchor } else { 1 } })
    }

    pub fn implementation(self) -> Calendar {
        let calendar = Calendar::parse(self.unit.as_bytes()).unwrap();
        let anchor = Anchor::parse(self.anchor.to_string().as_bytes()).unwrap();
        if self.unit.ends_with("mo") { calendar.anchored(anchor).unwrap() } else { calendar }
    }

    /// Whether a window begins on this day.
    pub fn begin_on(self, day: i64) -> bool {
        let (year, month, day, weekday) = date(day);
        let on_its_day = day == self.anchor.min(length(year, month));
        match self.unit {
            "1w" => weekday == 1,
            "1mo" => on_its_day,
            "3mo" => [1, 4, 7, 10].contains(&month) && on_its_day,
            "1y" => month == 1 && day == 1,
            other => unreachable!("{other}"),
        }
    }

    /// The local time at which the window of a local time ends.
    pub fn end(self, local: i128) -> i128 {
        let day = i64::try_from(local.div_euclid(DAY)).unwrap();
        i128::from((day + 1..=day + 366).find(|day| self.begin_on(*day)).unwrap()) * DAY
    }
}

/// Distances from UTC in minutes: everyday and extreme.
pub fn offsets() -> impl Strategy<Value = i64> + Clone {
    prop_oneof![Just(0), select(vec![-840, -570, -1, 1, 345, 540, 840]), -840..=840_i64]
}

/// As an argument says it.
pub fn offset(minutes: i64) -> String {
    let (hours, rest) = (minutes.abs() / 60, minutes.abs() % 60);
    format!("{}{hours:02}:{rest:02}", if minutes < 0 { '-' } else { '+' })
}
