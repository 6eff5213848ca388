//! Window of FIXED: a duration or a calendar unit, and the position of its boundaries.

use super::numbers::DURATION;
use super::options::Alignment;
use super::words::{Word, out_of_place};
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::fixed_window::calendar::Calendar;
use crate::number::decimal::MAX_NUMBER;
use crate::number::{Amount, Period};
use crate::wire::args::Args;
use crate::wire::error::{Error, Hint, MustBe, Reason, Syntax};

/// Syntax of FIXED.
pub(super) const FIXED: Syntax = Syntax { word: "FIXED", arguments: "limit window" };
/// Valid windows of FIXED, including calendar windows.
pub(super) const WINDOW: MustBe =
    MustBe::other("a duration from 1us to 3650d, or with ALIGNED 1w, 1mo, 3mo or 1y", "60s");

/// Parsed window. The word ALIGNED may follow.
#[derive(Clone, Copy, Debug)]
pub(super) enum Window {
    /// Window of this duration.
    Duration(Period),
    /// Week, month, quarter or year.
    Calendar(Calendar),
}

impl Window {
    /// Parses the window.
    #[inline(always)]
    pub(super) fn parse(args: &mut Args) -> Result<Window, Error> {
        let word = args.argument("window", &FIXED)?;
        Period::parse(word).map_or_else(|| Window::parse_calendar(word, args), |period| Ok(Window::Duration(period)))
    }

    /// Parses a calendar window.
    #[cold]
    fn parse_calendar(word: &[u8], args: &Args) -> Result<Window, Error> {
        Calendar::parse(word).map(Window::Calendar).ok_or_else(|| {
            // Longer words are never valid windows.
            let word = word.get(..MAX_NUMBER).unwrap_or(word).to_ascii_lowercase();
            let digit_count = word.iter().position(|byte| !byte.is_ascii_digit());
            let unit = digit_count.filter(|count| *count > 0).and_then(|count| word.get(count..));
            match unit {
                // The word looks like a calendar window, but is not a valid one.
                Some([b'w' | b'q' | b'y', ..] | [b'm', b'o', ..]) => {
                    Error::out_of_range("window", &WINDOW, args.recent_word(0))
                }
                _ => args.invalid("window", &DURATION, &FIXED),
            }
        })
    }

    /// Creates a limit of `limit` per window. `is_aligned` is `true` if the call has ALIGNED.
    #[inline(never)]
    pub(super) fn limit(self, limit: Amount, is_aligned: bool, alignment: Alignment) -> Result<FixedWindow, Error> {
        let Alignment { offset, anchor } = alignment;
        if !is_aligned {
            let misplaced = [offset.map(|_| Word::Offset), anchor.map(|_| Word::Anchor)].into_iter().flatten().next();
            return match (misplaced, self) {
                (Some(word), _) => Err(out_of_place(word, Reason::NotAligned)),
                (None, Window::Duration(window)) => Ok(FixedWindow::new(limit, window)),
                (None, Window::Calendar(calendar)) => {
                    let word = calendar.to_string();
                    Err(Error::hinted("window", &WINDOW, word.as_bytes(), Hint::NotAligned))
                }
            };
        }
        let offset = offset.unwrap_or_default();
        let calendar = match (self, anchor) {
            (Window::Duration(window), None) => return Ok(FixedWindow::aligned(limit, window, offset)),
            (Window::Calendar(calendar), None) => Some(calendar),
            (Window::Calendar(calendar), Some(anchor)) => calendar.anchored(anchor),
            (Window::Duration(_), Some(_)) => None,
        };
        let no_day = || out_of_place(Word::Anchor, Reason::NoDayOfMonth);
        Ok(FixedWindow::calendar(limit, calendar.ok_or_else(no_day)?, offset))
    }
}

#[cfg(test)]
mod tests;
