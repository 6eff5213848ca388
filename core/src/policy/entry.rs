//! Entry of one policy: two registers, its definition and its scale.
//!
//! The server that writes a register stamps it. The value with the later stamp wins on every server, in any order of
//! arrival. So a definition and a scale that two servers write at the same time both survive. A deletion is a
//! definition without text.
//!
//! A record has one of three forms: the second if the scale has a duration, the third if MUL or ADD has changed the
//! scale, and otherwise the first, which is the shortest.
//!
//! A record consists of these words:
//!
//! 1. `rl-policy`, and the form;
//! 2. the name, preceded by its length;
//! 3. the stamp of the definition (microseconds and node), and the stamp of the creation of the policy: a scale counts
//!    only if its stamp is later;
//! 4. the version of the policy (later forms take it from the stamp), and the time of the change in milliseconds;
//! 5. the specs, preceded by their length (empty: deleted);
//! 6. the stamp of the scale, the factor in millionths, and the microsecond at which it ends (0: never, as in form 1);
//! 7. in forms 2 and 3, the duration of the scale in microseconds (0 in form 3: no duration);
//! 8. in form 3, the microseconds at which MUL and ADD last changed the scale (0: never);
//! 9. in form 3, the microseconds since these changes by the sender's steady clock (0: never), not in the digest;
//! 10. for a scale with a duration, the microseconds until its end at the sender, not in the digest.

use super::scale_timing::ScaleTiming;
use super::stamp::{Horizon, Stamp};
use crate::effect::{EncodedText, TextDecoder};
use crate::number::{Amount, Period, Span, Timestamp};
use crate::wire::codec::{Decoder, Encoder};
use crate::wire::name;

/// Maximum length of the specs, in bytes. This version writes far shorter texts, but keeps those of later versions.
pub const MAX_TEXT: usize = 16 * 1024;

/// First word of a record. The form follows.
const HEADING: &[u8] = b"rl-policy";
/// Form of a record whose scale has no end and was never changed by MUL or ADD.
const FIRST_FORM: u64 = 1;
/// Form of a record with the duration of the scale.
const FORM_WITH_DURATION: u64 = 2;
/// Form of a record with the times at which MUL and ADD changed the scale.
const FORM_WITH_STEPS: u64 = 3;

/// Definition of a policy. Ordered by the stamp, and for equal stamps by the other fields, so that all servers agree on
/// the latest definition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Definition {
    /// Stamp of the call that set or deleted the policy.
    pub stamp: Stamp,
    /// Stamp of the call that created the policy. A scale with an earlier stamp belongs to a former policy of the same
    /// name.
    pub created: Stamp,
    /// Version number for the first version of the module, which counted the sets of a policy. This version of the
    /// module writes [`Definition::version`] in its place.
    pub legacy_version: u64,
    /// Time of the change by the clock of the writer, in milliseconds since the epoch.
    pub set_at: u64,
    /// Specs as words; empty for a deleted policy. Words of a later version of the module are kept unchanged.
    pub text: Box<[u8]>,
}

impl Definition {
    /// Returns the version of the definition, which is unique across servers.
    pub fn version(&self) -> u64 {
        self.stamp.at
    }
}

/// Times of the last change of a factor by each word, by the clock of the server that changed it. The epoch stands for
/// never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepTimes {
    /// Last change by MUL.
    pub multiplied: Timestamp,
    /// Last change by ADD.
    pub added: Timestamp,
}

impl StepTimes {
    /// Times of a factor that neither word has changed.
    pub const NEVER: StepTimes = StepTimes { multiplied: Timestamp::EPOCH, added: Timestamp::EPOCH };
}

/// Scale of a policy. Ordered by the stamp, and for equal stamps by the other fields.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scale {
    /// Stamp of the change.
    pub stamp: Stamp,
    /// Factor of limits and refills, at most [`Scale::MAX_FACTOR`].
    pub factor: Amount,
    /// End of the scale.
    pub end: End,
    /// Times of the last changes by MUL and ADD.
    pub times: StepTimes,
}

/// End of a scale, by the clock of the server that set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// The scale has no end.
    Never,
    /// The scale ends after a duration.
    For {
        /// Duration of the scale.
        duration: Period,
        /// End of the duration.
        until: Timestamp,
    },
}

impl Scale {
    /// Scale of a policy that was never scaled.
    pub const NONE: Scale =
        Scale { stamp: Stamp::OLDEST, factor: Amount::ONE, end: End::Never, times: StepTimes::NEVER };
    /// Maximum factor: 1000.
    pub const MAX_FACTOR: Amount = Amount::saturating(1_000_000_000);

    /// Returns the time until the scale ends when the clock shows `now`, at most its duration. Returns `None` if it has
    /// no end.
    pub fn left_by_clock(&self, now: Timestamp) -> Option<Span> {
        match self.end {
            End::Never => None,
            End::For { duration, until } => Some(until.since(now).min(duration.span())),
        }
    }

    /// Returns the timing of this scale when it is loaded at `now`. `stored` is the timing in the record. The times
    /// only advance, even if the clock was set back since the record was stored.
    pub fn loaded_timing(&self, stored: ScaleTiming, now: Timestamp) -> ScaleTiming {
        let by_clock = self.left_by_clock(now);
        ScaleTiming {
            time_left: by_clock.map(|by_clock| stored.time_left.map_or(by_clock, |stored| stored.min(by_clock))),
            since_multiplied: stored.since_multiplied.max(now.since(self.times.multiplied)),
            since_added: stored.since_added.max(now.since(self.times.added)),
        }
    }
}

/// State of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyEntry {
    /// Name, 1 to [`MAX_NAME`](name::MAX_NAME) bytes.
    pub name: Box<[u8]>,
    /// Current definition, or the deletion.
    pub definition: Definition,
    /// Last scale, which may belong to a former policy of the same name.
    pub scale: Scale,
}

/// Entry with the timing of its scale, as sent to other servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// State of the name.
    pub entry: PolicyEntry,
    /// Timing of the scale: the time left with a duration ([`End::For`]), and the times since its changes.
    pub timing: ScaleTiming,
}

impl Record {
    /// Parses the output of [`PolicyEntry::record`]. Returns `None` for any other text.
    pub fn read(record: &[u8]) -> Option<Record> {
        let mut fields = TextDecoder::of(record.strip_prefix(HEADING)?);
        let form = fields.integer().filter(|form| (FIRST_FORM..=FORM_WITH_STEPS).contains(form))?;
        let name = name::decode_boxed(&mut fields)?;
        let (stamp, created) = (Stamp::decode(&mut fields)?, Stamp::decode(&mut fields)?);
        let (legacy_version, set_at) = (fields.integer()?, fields.integer()?);
        let text = fields.bytes(MAX_TEXT)?;
        let scale_stamp = Stamp::decode(&mut fields)?;
        let factor = Amount::from_millionths(fields.integer()?).filter(|factor| *factor <= Scale::MAX_FACTOR)?;
        let until = Timestamp::from_micros(fields.integer()?)?;
        let mut timing = ScaleTiming::default();
        let (duration, times) = match form {
            FIRST_FORM => (Span::ZERO, StepTimes::NEVER),
            FORM_WITH_DURATION => {
                (Span::from_micros(fields.integer().filter(|duration| *duration > 0)?), StepTimes::NEVER)
            }
            _ => {
                let (duration, times) = (Span::from_micros(fields.integer()?), read_times(&mut fields)?);
                timing.since_multiplied = read_age(&mut fields, times.multiplied)?;
                timing.since_added = read_age(&mut fields, times.added)?;
                (duration, times)
            }
        };
        let end = if duration == Span::ZERO {
            Some(End::Never).filter(|_| until == Timestamp::EPOCH)?
        } else {
            let duration = Period::new(duration)?;
            timing.time_left = Some(Span::from_micros(fields.integer()?)).filter(|left| *left <= duration.span());
            timing.time_left?;
            End::For { duration, until }
        };
        let is_possible = created <= stamp && legacy_version > 0 && set_at <= Timestamp::MAX.floor_millis();
        let definition = Definition { stamp, created, legacy_version, set_at, text };
        let entry = PolicyEntry { name, definition, scale: Scale { stamp: scale_stamp, factor, end, times } };
        (is_possible && fields.is_at_end()).then_some(Record { entry, timing })
    }
}

/// Decodes the times of changes by MUL and ADD. Returns `None` if neither has changed the scale.
fn read_times(fields: &mut TextDecoder) -> Option<StepTimes> {
    let mut instant = || Timestamp::from_micros(fields.integer()?);
    let times = StepTimes { multiplied: instant()?, added: instant()? };
    (times != StepTimes::NEVER).then_some(times)
}

/// Decodes the time since a change at `at`. Must be zero if there was no change.
fn read_age(fields: &mut TextDecoder, at: Timestamp) -> Option<Span> {
    let max = if at == Timestamp::EPOCH { Span::ZERO } else { Span::MAX };
    fields.integer().map(Span::from_micros).filter(|age| *age <= max)
}

impl PolicyEntry {
    /// Encodes the entry as a record, which is propagated, saved and sent to other members of a cluster. `timing` is
    /// the timing of the scale on this server.
    pub fn record(&self, timing: ScaleTiming) -> EncodedText {
        let mut record = self.identity();
        let Scale { times, end, .. } = self.scale;
        if times != StepTimes::NEVER {
            for (at, age) in [(times.multiplied, timing.since_multiplied), (times.added, timing.since_added)] {
                record.integer(if at == Timestamp::EPOCH { 0 } else { age.min(Span::MAX).micros() });
            }
        }
        if let End::For { duration, .. } = end {
            record.integer(timing.time_left.unwrap_or_default().min(duration.span()).micros());
        }
        record
    }

    /// Encodes the fields that are equal on all servers with the same state, as input of the digest.
    pub fn identity(&self) -> EncodedText {
        let PolicyEntry { name, definition, scale } = self;
        let (until, duration) = match scale.end {
            End::Never => (Timestamp::EPOCH, None),
            End::For { duration, until } => (until, Some(duration)),
        };
        let form = match duration {
            _ if scale.times != StepTimes::NEVER => FORM_WITH_STEPS,
            Some(_) => FORM_WITH_DURATION,
            None => FIRST_FORM,
        };
        let mut record = EncodedText::beginning_with(HEADING);
        record.integer(form);
        record.bytes(name);
        definition.stamp.encode(&mut record);
        definition.created.encode(&mut record);
        record.integer(definition.legacy_version);
        record.integer(definition.set_at);
        record.bytes(&definition.text);
        scale.stamp.encode(&mut record);
        record.integer(scale.factor.millionths());
        record.integer(until.micros());
        if form != FIRST_FORM {
            record.integer(duration.map_or(0, |duration| duration.span().micros()));
        }
        if form == FORM_WITH_STEPS {
            record.integer(scale.times.multiplied.micros());
            record.integer(scale.times.added.micros());
        }
        record
    }

    /// Replaces the registers that are later in `other`. Returns `true` if the definition was replaced, and `true` if
    /// the scale was.
    pub fn merge(&mut self, other: PolicyEntry, horizon: Horizon) -> (bool, bool) {
        let definition_changed = horizon.is_later(&other.definition, &self.definition, |definition| definition.stamp);
        let scale_changed = horizon.is_later(&other.scale, &self.scale, |scale| scale.stamp);
        if definition_changed {
            self.definition = other.definition;
        }
        if scale_changed {
            self.scale = other.scale;
        }
        (definition_changed, scale_changed)
    }

    /// Returns `true` if the policy is deleted.
    pub fn is_deleted(&self) -> bool {
        self.definition.text.is_empty()
    }

    /// Returns the stamp of the creation of the policy. If it is beyond the horizon, returns the earliest stamp that
    /// does not change whether the scale is in force.
    pub fn created_within(&self, horizon: Horizon) -> Stamp {
        if horizon.covers(self.definition.created) {
            self.definition.created
        } else if self.current_scale().is_none() && horizon.covers(self.scale.stamp) {
            self.scale.stamp
        } else {
            Stamp::OLDEST
        }
    }

    /// Returns the last scale if it belongs to the current policy: its stamp is later than the creation.
    pub fn current_scale(&self) -> Option<&Scale> {
        (self.scale.stamp > self.definition.created).then_some(&self.scale)
    }

    /// Returns the latest time of the entry's stamps within the horizon. Includes the creation, because the next stamp
    /// must be later than it even if the stamp of the definition is beyond the horizon.
    pub fn latest(&self, horizon: Horizon) -> u64 {
        let PolicyEntry { definition: Definition { stamp, created, .. }, scale, .. } = self;
        [*stamp, *created, scale.stamp].iter().map(|stamp| horizon.zero_if_beyond(stamp.at)).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
