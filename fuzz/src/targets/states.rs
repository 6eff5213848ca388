//! Histories of a key. Replicas and loads from disk accept every state and effect that calls lead to. A state from an
//! edited payload or effect that is accepted can be followed by calls in the same way.

mod words;

use self::words::{BANS, COSTS, IDS, KEEPS, LIMITS, NAMES, POLICY_SPEC_OPTIONS, SPEC_OPTIONS};
use crate::key::{CallEffect, Key, Value};
use crate::laws::{Field, Fields};
use arbitrary::{Arbitrary, Unstructured};
use ratelimit_core::syntax::{KeyRequest, Policy};
use ratelimit_core::wire::args::Args;
use ratelimit_core::{Amount, Span, Timestamp};

/// List of 1 to `MAX` elements. An arbitrary `Vec` mostly has one or none.
#[derive(Debug)]
struct Few<T, const MAX: usize>(Vec<T>);

impl<'a, T: Arbitrary<'a>, const MAX: usize> Arbitrary<'a> for Few<T, MAX> {
    fn arbitrary(u: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let count = u.int_in_range(1..=MAX)?;
        (0..count).map(|_| u.arbitrary()).collect::<arbitrary::Result<_>>().map(Few)
    }
}

#[derive(Arbitrary, Debug)]
struct Step {
    clock: Clock,
    command: Command,
}

/// Movement of the clock before a command.
#[derive(Arbitrary, Debug)]
enum Clock {
    Unchanged,
    /// Step ahead by one of [`LENGTHS`], plus a few microseconds.
    StepAhead(u8, i8),
    /// Step back by one of [`LENGTHS`], plus a few microseconds.
    StepBack(u8, i8),
    /// Set to one of [`INSTANTS`].
    SetTo(u8),
}

#[derive(Arbitrary, Debug)]
enum Command {
    Take(Call),
    /// Call of one of [`LIMITS`] with one of [`COSTS`].
    TakeOne(u8, u8),
    /// Call with the specs of the last call and other options.
    TakeAgain(Call),
    Limit(Call),
    Release(u8),
    Ban(u8),
    /// RESTORE with an edited payload of the current value, and one of [`LENGTHS`] as TTL.
    Restore(Few<Edit, 3>, u8),
    /// RL.EFFECT with an edited copy of the last effect.
    Effect(Few<Edit, 3>),
    /// Deletion of the key if `true`; otherwise its expiry if the time has come.
    Remove(bool),
}

/// Words of a call.
#[derive(Arbitrary, Debug)]
struct Call {
    options: [u8; 3],
    specs: Few<Spec, 5>,
    ban: u8,
}

#[derive(Arbitrary, Debug)]
struct Spec {
    limit: u8,
    /// Name (AS) and another option.
    options: [u8; 2],
}

/// Change of a field.
#[derive(Arbitrary, Debug)]
struct Edit {
    index: u16,
    change: FieldChange,
}

#[derive(Arbitrary, Debug)]
enum FieldChange {
    Add(i16),
    AddLength(u8, i8),
    /// Replacement by one of [`EDGES`], plus a small number.
    Edge(u8, i8),
    /// Replacement by the value of another field.
    CopyOf(u16),
    Remove,
    /// Insertion of a copy of another field.
    Insert(u16),
}

/// Durations in microseconds.
const LENGTHS: [u64; 12] = [
    0,
    1,
    1_000,
    1_000_000,
    3_000_000,
    60_000_000,
    3_600_000_000,
    86_400_000_000,
    31 * 86_400_000_000,
    366 * 86_400_000_000,
    3_650 * 86_400_000_000,
    36_500 * 86_400_000_000,
];
/// Timestamps in microseconds since the epoch. The start of each history is repeated, so that it is picked more often.
const INSTANTS: [u64; 7] = [
    1_700_000_000_000_000,
    1_700_000_000_000_000,
    1_699_999_980_000_000,
    0,
    1_000_000,
    365_000 * 86_400_000_000,
    365_000 * 86_400_000_000 - 1,
];
/// Values at the edges of valid ranges.
const EDGES: [u64; 11] = [
    0,
    1,
    2,
    1_000_000,
    1_000_000_000_000_000_000,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX,
    1_700_000_000_000_000,
    3_650 * 86_400_000_000,
    365_000 * 86_400_000_000,
];

/// Returns the element at `index`, modulo the length of the list.
fn pick<T: Copy>(list: &[T], index: u8) -> T {
    list[usize::from(index) % list.len()]
}

impl Clock {
    fn next(&self, now: Timestamp) -> Timestamp {
        let micros = match *self {
            Clock::Unchanged => now.micros(),
            Clock::StepAhead(length, more) => {
                now.micros().saturating_add(pick(&LENGTHS, length)).saturating_add_signed(more.into())
            }
            Clock::StepBack(length, more) => {
                now.micros().saturating_sub(pick(&LENGTHS, length)).saturating_add_signed(more.into())
            }
            Clock::SetTo(instant) => pick(&INSTANTS, instant),
        };
        Timestamp::from_clock(i64::try_from(micros).unwrap_or(i64::MAX))
    }
}

impl Call {
    fn options(&self) -> String {
        let [cost, keep, id] = self.options;
        // SETTLE cannot be combined with COST or KEEP.
        match pick(&IDS, id) {
            settle if settle.starts_with("SETTLE") => settle.to_owned(),
            id => format!("{} {} {id}", pick(&COSTS, cost), pick(&KEEPS, keep)),
        }
    }

    /// Returns the words of the specs, each with one of `spec_options`.
    fn specs(&self, spec_options: &[&str]) -> String {
        let specs = self.specs.0.iter().map(|spec| {
            let [name, option] = spec.options;
            format!("{} {} {}", pick(&LIMITS, spec.limit), pick(&NAMES, name), pick(spec_options, option))
        });
        specs.collect::<Vec<_>>().join(" ")
    }

    /// Returns the words of RL.TAKE.
    fn take_text(&self) -> String {
        format!("RL.TAKE {} {} {}", self.options(), self.specs(&SPEC_OPTIONS), pick(&BANS, self.ban))
    }

    /// Returns the words of RL.POLICYSET.
    fn policy_text(&self) -> String {
        // A policy names no holders.
        let specs = self.specs(&POLICY_SPEC_OPTIONS);
        let specs = specs.split(' ').filter(|word| !["h1", "h2", "h3"].contains(word)).collect::<Vec<_>>().join(" ");
        format!("RL.POLICYSET {specs} {}", pick(&BANS, self.ban))
    }
}

/// Splits a text into words.
fn words(text: &str) -> Vec<&[u8]> {
    text.split_whitespace().map(str::as_bytes).collect()
}

impl Edit {
    fn edit(&self, fields: &mut Fields) {
        let length = fields.fields.len();
        if length == 0 {
            return;
        }
        let index = usize::from(self.index) % length;
        let copy_of = |index: u16| fields.fields[usize::from(index) % length].clone();
        match (&self.change, &fields.fields[index]) {
            (FieldChange::Remove, _) => {
                fields.fields.remove(index);
            }
            (FieldChange::Insert(other), _) => {
                let copy = copy_of(*other);
                fields.fields.insert(index, copy);
            }
            (FieldChange::CopyOf(other), _) => fields.fields[index] = copy_of(*other),
            (change, Field::Integer(value)) => fields.fields[index] = Field::Integer(change.apply(*value)),
            (_, Field::Bytes(_)) => {}
        }
    }

    /// Edits an effect in its readable form, word by word.
    fn edit_text(&self, words: &mut Vec<String>) {
        let length = words.len();
        let index = usize::from(self.index) % length;
        let copy_of = |index: u16| words[usize::from(index) % length].clone();
        match &self.change {
            FieldChange::Remove if length > 1 => {
                words.remove(index);
            }
            FieldChange::Insert(other) => {
                let copy = copy_of(*other);
                words.insert(index, copy);
            }
            FieldChange::CopyOf(other) => words[index] = copy_of(*other),
            change => {
                if let Ok(value) = words[index].parse() {
                    words[index] = change.apply(value).to_string();
                }
            }
        }
    }
}

impl FieldChange {
    /// Returns the changed integer.
    fn apply(&self, value: u64) -> u64 {
        match *self {
            FieldChange::Add(more) => value.wrapping_add_signed(more.into()),
            FieldChange::AddLength(length, more) => {
                value.wrapping_add(pick(&LENGTHS, length)).wrapping_add_signed(more.into())
            }
            FieldChange::Edge(edge, more) => pick(&EDGES, edge).wrapping_add_signed(more.into()),
            FieldChange::CopyOf(_) | FieldChange::Remove | FieldChange::Insert(_) => value,
        }
    }
}

pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let mut key = Key::default();
    let mut now = Timestamp::from_clock(1_700_000_000_000_000);
    // Last effect, with the value before it.
    let mut last_effect: Option<(Value, Vec<u8>)> = None;
    let mut last_text = String::new();
    while !input.is_empty()
        && let Ok(step) = Step::arbitrary(&mut input)
    {
        now = step.clock.next(now);
        let effect = match &step.command {
            Command::Take(call) => {
                last_text = call.take_text();
                take(&mut key, &last_text, now)
            }
            Command::TakeOne(limit, cost) => {
                last_text = format!("RL.TAKE {} {}", pick(&LIMITS, *limit), pick(&COSTS, *cost));
                take(&mut key, &last_text, now)
            }
            Command::TakeAgain(call) => {
                let specs = last_text.split_whitespace().skip_while(|word| !is_algorithm(word));
                let specs = specs.collect::<Vec<_>>().join(" ");
                take(&mut key, &format!("RL.TAKE {} {specs}", call.options()), now)
            }
            Command::Limit(call) => limit(&mut key, call, now),
            Command::Release(holder) => key.release(pick(&[&b"h1"[..], b"h2", b"r1", b"r2"], *holder), now),
            Command::Ban(length) => key.ban(Span::from_micros(pick(&LENGTHS, *length)).min(Span::MAX_ARGUMENT), now),
            Command::Restore(edits, ttl) => {
                if let Some((source, _)) = key.value.clone() {
                    let edit = |fields: &mut Fields| edits.0.iter().for_each(|edit| edit.edit(fields));
                    let expires_at = now.floor_millis() + pick(&LENGTHS, *ttl) / 1000;
                    key.restore(&source, edit, (*ttl != 0).then_some(expires_at));
                }
                continue;
            }
            Command::Effect(edits) => {
                if let Some((before, text)) = &last_effect {
                    let text = String::from_utf8_lossy(text);
                    let mut words: Vec<String> = text.split(' ').map(str::to_owned).collect();
                    edits.0.iter().for_each(|edit| edit.edit_text(&mut words));
                    key.apply(before, words.join(" ").as_bytes());
                }
                continue;
            }
            Command::Remove(is_deleted) => {
                let is_expired = key.value.as_ref().and_then(|(_, at)| *at).is_some_and(|at| at <= now.floor_millis());
                if *is_deleted || is_expired {
                    key = Key::default();
                }
                continue;
            }
        };
        if let CallEffect::Change(before, text) = effect {
            last_effect = Some((before, text.as_bytes().to_vec()));
        }
    }
}

fn is_algorithm(word: &str) -> bool {
    matches!(word, "TOKENBUCKET" | "LEAKYBUCKET" | "FIXED" | "SLIDING" | "SLIDINGLOG" | "CONCURRENCY")
}

fn take(key: &mut Key, text: &str, now: Timestamp) -> CallEffect {
    let words = words(text);
    KeyRequest::take(&mut Args::new(&words), None).map_or(CallEffect::None, |request| key.take(&request, now))
}

/// Makes a call on a policy, which may be scaled.
fn limit(key: &mut Key, call: &Call, now: Timestamp) -> CallEffect {
    let (policy_text, take_text) = (call.policy_text(), format!("RL.TAKE {} POLICY p", call.options()));
    let (policy_words, take_words) = (words(&policy_text), words(&take_text));
    let (Ok(policy), Ok(KeyRequest::Policy(unresolved))) =
        (Policy::parse(&mut Args::new(&policy_words)), KeyRequest::take(&mut Args::new(&take_words), None))
    else {
        return CallEffect::None;
    };
    let factor = pick(&[1_000_000, 1_000_000, 0, 500_000, 3_000_000], call.ban);
    let scaled = policy.scaled(Amount::saturating(factor));
    unresolved.request(&scaled).map_or(CallEffect::None, |request| key.take(&request, now))
}
