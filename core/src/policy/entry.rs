//! What the servers know of one policy: two registers, its definition and its scale.
//!
//! The server that writes a register stamps it, and of two values the one with the later stamp stands, on every server
//! and in whatever order they come. So a definition and a scale that two servers set at the same time both survive. A
//! deletion is a definition too: without text.
//!
//! A scale that ends by itself makes a record of the second form, and one that MUL or ADD has changed a record of the
//! third, which earlier versions of the module do not read. All other records keep the first form, so that the nodes of
//! a cluster can be upgraded one by one.
//!
//! The words of a record are:
//!
//! 1. `rl-policy`, and the form;
//! 2. the name behind its length;
//! 3. the stamp of the definition (microseconds and node), and that of its birth, from before which no scale counts;
//! 4. the version of the policy (which later forms take from the stamp), and when it was set, in milliseconds;
//! 5. the specs behind their length (none: deleted);
//! 6. the stamp of the scale, the factor in millionths, and the microsecond at which it ends (0: never);
//! 7. in forms 2 and 3, the duration of the scale in microseconds (0 in form 3: none);
//! 8. in form 3, the microseconds at which MUL and ADD changed the scale last (0: never);
//! 9. in form 3, how many microseconds ago that was by the sender's steady clock (0: never), which are in no digest;
//! 10. with a duration, the microseconds of it that the sender has left, which are in no digest.

use super::scale_timing::ScaleTiming;
use super::stamp::{Horizon, Stamp};
use crate::effect::{Fields, Text};
use crate::number::{Amount, Period, Span, Timestamp};
use crate::wire::codec::{Decoder, Encoder};
use crate::wire::name::MAX_NAME;

/// The longest text of specs, in bytes. What this version can write is far shorter; it keeps those of later ones.
pub const MAX_TEXT: usize = 16 * 1024;

/// What a record begins with: its kind, and its form.
const HEADING: &[u8] = b"rl-policy 1";

/// The form of a record that also says for how long its scale is.
const HEADING_FOR: &[u8] = b"rl-policy 2";

/// The form of a record that also says when MUL and ADD changed its scale.
const HEADING_STEPS: &[u8] = b"rl-policy 3";

/// What a policy says. The order of two is that of their stamps; if those are the same, some other on which all servers
/// agree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Definition {
    /// When it was set or deleted, and by whom.
    pub stamp: Stamp,
    /// Of the set that made the policy when there was none of that name. What was scaled before was another one.
    pub born: Stamp,
    /// What the first version of the module shows as the policy's version, and counts up. This one writes there what
    /// [`Definition::version`] is.
    pub counted: u64,
    /// By the clock of the server that wrote it, in milliseconds since the epoch.
    pub set_at: u64,
    /// The words of its specs; of a policy that was deleted, none. A later version may know more words than this one,
    /// which then keeps them as they are.
    pub text: Box<[u8]>,
}

impl Definition {
    /// What the definition is known by: no other has the same, whatever server it was set on.
    pub fn version(&self) -> u64 {
        self.stamp.at
    }
}

/// When a factor was last changed by each word, by the clock of the server that changed it; the epoch stands for never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepTimes {
    /// By MUL.
    pub multiplied: Timestamp,
    /// By ADD.
    pub added: Timestamp,
}

impl StepTimes {
    /// No word has changed it.
    pub const NEVER: StepTimes = StepTimes { multiplied: Timestamp::EPOCH, added: Timestamp::EPOCH };
}

/// By how much a policy is scaled. The order is as that of definitions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scale {
    /// When it was set, and by whom.
    pub stamp: Stamp,
    /// What limits and rates are multiplied by: at most [`Scale::MOST`].
    pub factor: Amount,
    /// When it ends.
    pub end: End,
    /// When MUL and ADD changed it.
    pub times: StepTimes,
}

/// When a scale ends, by the clock of the server that set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// It does not.
    Never,
    /// At that instant, as the first version of the module wrote it.
    At(Timestamp),
    /// So long after it was set.
    For {
        /// How long.
        duration: Period,
        /// When that is over.
        until: Timestamp,
    },
}

impl Scale {
    /// Of a policy that was never scaled.
    pub const NONE: Scale =
        Scale { stamp: Stamp::OLDEST, factor: Amount::ONE, end: End::Never, times: StepTimes::NEVER };
    /// The highest factor: 1000.
    pub const MOST: Amount = Amount::saturating(1_000_000_000);

    /// How much of it is left until its end when the clock shows `now`: not more than it had at first. `None`: it has
    /// no end.
    pub fn left_by_clock(&self, now: Timestamp) -> Option<Span> {
        match self.end {
            End::Never => None,
            End::At(until) => {
                // It was set when it was stamped, or before: a stamp may be ahead of its server's clock.
                let most = until.since(Timestamp::from_micros(self.stamp.at).unwrap_or_default());
                Some(until.since(now).min(most))
            }
            End::For { duration, until } => Some(until.since(now).min(duration.span())),
        }
    }
}

/// The later of two values of a register, of which one that is beyond the horizon counts as the oldest.
trait Register: Ord {
    fn stamp(&self) -> Stamp;

    fn is_later_than(&self, other: &Self, horizon: Horizon) -> bool {
        (horizon.covers(self.stamp()), self) > (horizon.covers(other.stamp()), other)
    }
}

impl Register for Definition {
    fn stamp(&self) -> Stamp {
        self.stamp
    }
}

impl Register for Scale {
    fn stamp(&self) -> Stamp {
        self.stamp
    }
}

/// What is known by one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyEntry {
    /// The name: 1 to [`MAX_NAME`] bytes.
    pub name: Box<[u8]>,
    /// What it says, or that it was deleted.
    pub definition: Definition,
    /// The scale that was set last, even if that was of a policy before this one.
    pub scale: Scale,
}

/// What a server tells of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What it knows.
    pub entry: PolicyEntry,
    /// Timing of the scale: what is left of one that is for a time ([`End::For`]), and when it was changed.
    pub timing: ScaleTiming,
}

impl Record {
    /// Reads what [`PolicyEntry::record`] writes, and no other way; `None` if no server can have written it.
    pub fn read(record: &[u8]) -> Option<Record> {
        let forms = [(HEADING_FOR, RecordForm::For), (HEADING_STEPS, RecordForm::Steps), (HEADING, RecordForm::First)];
        forms.into_iter().find_map(|(heading, form)| Record::read_fields(Fields::behind(heading, record)?, form))
    }

    fn read_fields(mut fields: Fields, form: RecordForm) -> Option<Record> {
        let name = fields.bytes(MAX_NAME).filter(|name| !name.is_empty())?;
        let (stamp, born) = (Stamp::decode(&mut fields)?, Stamp::decode(&mut fields)?);
        let (counted, set_at) = (fields.integer()?, fields.integer()?);
        let text = fields.bytes(MAX_TEXT)?;
        let scaled = Stamp::decode(&mut fields)?;
        let factor = Amount::from_millionths(fields.integer()?).filter(|factor| *factor <= Scale::MOST)?;
        let until = Timestamp::from_micros(fields.integer()?)?;
        let mut timing = ScaleTiming::default();
        let (duration, times) = match form {
            RecordForm::First => (Span::ZERO, StepTimes::NEVER),
            RecordForm::For => {
                (Span::from_micros(fields.integer().filter(|duration| *duration > 0)?), StepTimes::NEVER)
            }
            RecordForm::Steps => {
                let (duration, times) = (Span::from_micros(fields.integer()?), read_times(&mut fields)?);
                timing.since_multiplied = read_age(&mut fields, times.multiplied)?;
                timing.since_added = read_age(&mut fields, times.added)?;
                (duration, times)
            }
        };
        let end = if duration != Span::ZERO {
            let duration = Period::new(duration)?;
            timing.left = Some(Span::from_micros(fields.integer()?)).filter(|left| *left <= duration.span());
            timing.left?;
            End::For { duration, until }
        } else if until == Timestamp::EPOCH {
            End::Never
        } else {
            End::At(until)
        };
        let possible = born <= stamp && counted > 0 && set_at <= Timestamp::MAX.floor_millis();
        let definition = Definition { stamp, born, counted, set_at, text };
        let entry = PolicyEntry { name, definition, scale: Scale { stamp: scaled, factor, end, times } };
        (possible && fields.end()).then_some(Record { entry, timing })
    }
}

/// The forms of a record.
#[derive(Clone, Copy)]
enum RecordForm {
    First,
    For,
    Steps,
}

/// When MUL and ADD changed a scale, of which one has.
fn read_times(fields: &mut Fields) -> Option<StepTimes> {
    let mut instant = || Timestamp::from_micros(fields.integer()?);
    let times = StepTimes { multiplied: instant()?, added: instant()? };
    (times != StepTimes::NEVER).then_some(times)
}

/// Reads the time since a change at `at`: zero if there was none.
fn read_age(fields: &mut Fields, at: Timestamp) -> Option<Span> {
    let most = if at == Timestamp::EPOCH { Span::ZERO } else { Span::MAX };
    fields.integer().map(Span::from_micros).filter(|age| *age <= most)
}

impl PolicyEntry {
    /// Encodes the entry as text: what is propagated, saved, and sent to other members of a cluster, by a server that
    /// has this timing of the scale.
    pub fn record(&self, timing: ScaleTiming) -> Text {
        let mut record = self.heading_and_fields();
        let Scale { times, end, .. } = self.scale;
        if times != StepTimes::NEVER {
            for (at, age) in [(times.multiplied, timing.since_multiplied), (times.added, timing.since_added)] {
                record.integer(if at == Timestamp::EPOCH { 0 } else { age.min(Span::MAX).micros() });
            }
        }
        if let End::For { duration, .. } = end {
            record.integer(timing.left.unwrap_or_default().min(duration.span()).micros());
        }
        record
    }

    /// What is the same in the records of all servers that know the same.
    pub fn identity(&self) -> Text {
        self.heading_and_fields()
    }

    fn heading_and_fields(&self) -> Text {
        let PolicyEntry { name, definition, scale } = self;
        let (heading, until, duration) = match scale.end {
            End::Never => (HEADING, Timestamp::EPOCH, None),
            End::At(until) => (HEADING, until, None),
            End::For { duration, until } => (HEADING_FOR, until, Some(duration)),
        };
        let is_stepped = scale.times != StepTimes::NEVER;
        let heading = if is_stepped { HEADING_STEPS } else { heading };
        let mut record = Text::beginning_with(heading);
        record.bytes(name);
        definition.stamp.encode(&mut record);
        definition.born.encode(&mut record);
        record.integer(definition.counted);
        record.integer(definition.set_at);
        record.bytes(&definition.text);
        scale.stamp.encode(&mut record);
        record.integer(scale.factor.millionths());
        record.integer(until.micros());
        if is_stepped || duration.is_some() {
            record.integer(duration.map_or(0, |duration| duration.span().micros()));
        }
        if is_stepped {
            record.integer(scale.times.multiplied.micros());
            record.integer(scale.times.added.micros());
        }
        record
    }

    /// Takes over what another server knows later of the same name; which of definition and scale that is.
    pub fn merge(&mut self, other: PolicyEntry, horizon: Horizon) -> (bool, bool) {
        let later = (
            other.definition.is_later_than(&self.definition, horizon),
            other.scale.is_later_than(&self.scale, horizon),
        );
        if later.0 {
            self.definition = other.definition;
        }
        if later.1 {
            self.scale = other.scale;
        }
        later
    }

    /// Whether there is no such policy any more.
    pub fn is_deleted(&self) -> bool {
        self.definition.text.is_empty()
    }

    /// Returns the stamp of the set that made the policy. If that is beyond the horizon, it is the earliest that keeps
    /// the scale in force, or out of force, as it is.
    pub fn born_within(&self, horizon: Horizon) -> Stamp {
        if horizon.covers(self.definition.born) {
            self.definition.born
        } else if self.scale().is_none() && horizon.covers(self.scale.stamp) {
            self.scale.stamp
        } else {
            Stamp::OLDEST
        }
    }

    /// Its scale, if that was set since the policy was made.
    pub fn scale(&self) -> Option<&Scale> {
        (self.scale.stamp > self.definition.born).then_some(&self.scale)
    }

    /// The latest time of its stamps that is not beyond the horizon. When it was made is one of them: where the set
    /// after that is beyond, the next one is behind the first.
    pub fn latest(&self, horizon: Horizon) -> u64 {
        let PolicyEntry { definition: Definition { stamp, born, .. }, scale, .. } = self;
        [*stamp, *born, scale.stamp].iter().map(|stamp| horizon.or_first(stamp.at)).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
