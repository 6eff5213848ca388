//! States of a key. Every state and effect that calls make can be read, by replicas and from the disk. Calls can
//! continue from every state that is read from an edited payload or effect, and the resulting states can be read again.

mod words;

use self::words::{BANS, COSTS, IDS, KEEPS, LIMITS, NAMES, OWN, OWN_OF_POLICY};
use crate::key::{CallEffect, Key, Value};
use crate::laws::{Field, Fields};
use arbitrary::{Arbitrary, Unstructured};
use ratelimit_core::syntax::{KeyRequest, Policy};
use ratelimit_core::wire::args::Args;
use ratelimit_core::{Amount, Span, Timestamp};

/// List of 1 to `MOST` elements, whereas an arbitrary `Vec` mostly has one or none.
#[derive(Debug)]
struct Few<T, const MOST: usize>(Vec<T>);

impl<'a, T: Arbitrary<'a>, const MOST: usize> Arbitrary<'a> for Few<T, MOST> {
    fn arbitrary(u: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let count = u.int_in_range(1..=MOST)?;
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
    Stays,
    /// Step forwards by one of the lengths and a few microseconds; `Earlier` is the opposite.
    Later(u8, i8),
    Earlier(u8, i8),
    At(u8),
}

#[derive(Arbitrary, Debug)]
enum Command {
    Take(Call),
    /// Single limit, and the cost.
    TakeOne(u8, u8),
    TakeAgain(Call),
    Limit(Call),
    Release(u8),
    Ban(u8),
    /// Edited payload of the current value.
    Restore(Few<Edit, 3>, u8),
    /// Edited copy of the last effect.
    Effect(Few<Edit, 3>),
    /// Deletion of the key if `true`, otherwise its expiry if it is due.
    Goes(bool),
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
    own: [u8; 2],
}

/// Change of a field.
#[derive(Arbitrary, Debug)]
struct Edit {
    place: u16,
    to: To,
}

#[derive(Arbitrary, Debug)]
enum To {
    Add(i16),
    AddLength(u8, i8),
    Edge(u8, i8),
    /// Value of another field.
    Other(u16),
    Goes,
    Comes(u16),
}

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
const INSTANTS: [u64; 7] = [
    1_700_000_000_000_000,
    1_700_000_000_000_000,
    1_699_999_980_000_000,
    0,
    1_000_000,
    365_000 * 86_400_000_000,
    365_000 * 86_400_000_000 - 1,
];
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

fn of<T: Copy>(list: &[T], index: u8) -> T {
    list[usize::from(index) % list.len()]
}

impl Clock {
    fn after(&self, now: Timestamp) -> Timestamp {
        let micros = match *self {
            Clock::Stays => now.micros(),
            Clock::Later(length, more) => {
                now.micros().saturating_add(of(&LENGTHS, length)).saturating_add_signed(more.into())
            }
            Clock::Earlier(length, more) => {
                now.micros().saturating_sub(of(&LENGTHS, length)).saturating_add_signed(more.into())
            }
            Clock::At(instant) => of(&INSTANTS, instant),
        };
        Timestamp::from_clock(i64::try_from(micros).unwrap_or(i64::MAX))
    }
}

impl Call {
    fn options(&self) -> String {
        let [cost, keep, id] = self.options;
        // SETTLE includes the cost.
        match of(&IDS, id) {
            settles if settles.starts_with("SETTLE") => settles.to_owned(),
            id => format!("{} {} {id}", of(&COSTS, cost), of(&KEEPS, keep)),
        }
    }

    /// Returns the words of the specs, each with one of `own`.
    fn specs(&self, own: &[&str]) -> String {
        let specs = self.specs.0.iter().map(|spec| {
            let [name, word] = spec.own;
            format!("{} {} {}", of(&LIMITS, spec.limit), of(&NAMES, name), of(own, word))
        });
        specs.collect::<Vec<_>>().join(" ")
    }

    fn inline(&self) -> String {
        format!("RL.TAKE {} {} {}", self.options(), self.specs(&OWN), of(&BANS, self.ban))
    }

    fn policy(&self) -> String {
        // The call names the holder of a policy's leases.
        let specs = self.specs(&OWN_OF_POLICY);
        let specs = specs.split(' ').filter(|word| !["h1", "h2", "h3"].contains(word)).collect::<Vec<_>>().join(" ");
        format!("RL.POLICYSET {specs} {}", of(&BANS, self.ban))
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
        let place = usize::from(self.place) % length;
        let of_place = |place: u16| fields.fields[usize::from(place) % length].clone();
        match (&self.to, &fields.fields[place]) {
            (To::Goes, _) => {
                fields.fields.remove(place);
            }
            (To::Comes(other), _) => {
                let other = of_place(*other);
                fields.fields.insert(place, other);
            }
            (To::Other(other), _) => fields.fields[place] = of_place(*other),
            (to, Field::Integer(value)) => fields.fields[place] = Field::Integer(to.of(*value)),
            (_, Field::Bytes(_)) => {}
        }
    }

    /// Edits an effect in its readable form, word by word.
    fn edit_text(&self, words: &mut Vec<String>) {
        let length = words.len();
        let place = usize::from(self.place) % length;
        let of_place = |place: u16| words[usize::from(place) % length].clone();
        match &self.to {
            To::Goes if length > 1 => {
                words.remove(place);
            }
            To::Comes(other) => {
                let other = of_place(*other);
                words.insert(place, other);
            }
            To::Other(other) => words[place] = of_place(*other),
            to => {
                if let Ok(value) = words[place].parse() {
                    words[place] = to.of(value).to_string();
                }
            }
        }
    }
}

impl To {
    fn of(&self, value: u64) -> u64 {
        match *self {
            To::Add(more) => value.wrapping_add_signed(more.into()),
            To::AddLength(length, more) => value.wrapping_add(of(&LENGTHS, length)).wrapping_add_signed(more.into()),
            To::Edge(edge, more) => of(&EDGES, edge).wrapping_add_signed(more.into()),
            To::Other(_) | To::Goes | To::Comes(_) => value,
        }
    }
}

pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let mut key = Key::default();
    let mut now = Timestamp::from_clock(1_700_000_000_000_000);
    let mut last: Option<(Value, Vec<u8>)> = None;
    let mut text_before = String::new();
    while !input.is_empty()
        && let Ok(step) = Step::arbitrary(&mut input)
    {
        now = step.clock.after(now);
        let effect = match &step.command {
            Command::Take(call) => {
                text_before = call.inline();
                take(&mut key, &text_before, now)
            }
            Command::TakeOne(limit, cost) => {
                text_before = format!("RL.TAKE {} {}", of(&LIMITS, *limit), of(&COSTS, *cost));
                take(&mut key, &text_before, now)
            }
            // Another call with the limits of the last one.
            Command::TakeAgain(call) => {
                let specs = text_before.split_whitespace().skip_while(|word| !is_algorithm(word));
                let specs = specs.collect::<Vec<_>>().join(" ");
                take(&mut key, &format!("RL.TAKE {} {specs}", call.options()), now)
            }
            Command::Limit(call) => limit(&mut key, call, now),
            Command::Release(holder) => key.release(of(&[&b"h1"[..], b"h2", b"r1", b"r2"], *holder), now),
            Command::Ban(length) => key.ban(Span::from_micros(of(&LENGTHS, *length)).min(Span::MAX_ARGUMENT), now),
            Command::Restore(edits, ttl) => {
                if let Some((like, _)) = key.value.clone() {
                    let edit = |fields: &mut Fields| edits.0.iter().for_each(|edit| edit.edit(fields));
                    let expires_at = now.floor_millis() + of(&LENGTHS, *ttl) / 1000;
                    key.restore(&like, edit, (*ttl != 0).then_some(expires_at));
                }
                continue;
            }
            Command::Effect(edits) => {
                if let Some((before, text)) = &last {
                    let text = String::from_utf8_lossy(text);
                    let mut words: Vec<String> = text.split(' ').map(str::to_owned).collect();
                    edits.0.iter().for_each(|edit| edit.edit_text(&mut words));
                    key.apply(before, words.join(" ").as_bytes());
                }
                continue;
            }
            Command::Goes(deleted) => {
                let expired = key.value.as_ref().and_then(|(_, at)| *at).is_some_and(|at| at <= now.floor_millis());
                if *deleted || expired {
                    key = Key::default();
                }
                continue;
            }
        };
        if let CallEffect::Change(before, text) = effect {
            last = Some((before, text.as_bytes().to_vec()));
        }
    }
}

fn is_algorithm(word: &str) -> bool {
    matches!(word, "TOKENBUCKET" | "LEAKYBUCKET" | "FIXED" | "SLIDING" | "SLIDINGLOG" | "CONCURRENCY")
}

fn take(key: &mut Key, text: &str, now: Timestamp) -> CallEffect {
    let words = words(text);
    KeyRequest::take(&mut Args::new(&words), None).map_or(CallEffect::Nothing, |request| key.take(&request, now))
}

/// Makes a call by a policy, which may be scaled.
fn limit(key: &mut Key, call: &Call, now: Timestamp) -> CallEffect {
    let (policy, said) = (call.policy(), format!("RL.TAKE {} POLICY p", call.options()));
    let (policy, said) = (words(&policy), words(&said));
    let (Ok(policy), Ok(KeyRequest::Policy(by))) =
        (Policy::parse(&mut Args::new(&policy)), KeyRequest::take(&mut Args::new(&said), None))
    else {
        return CallEffect::Nothing;
    };
    let factor = of(&[1_000_000, 1_000_000, 0, 500_000, 3_000_000], call.ban);
    let scaled = policy.scaled(Amount::saturating(factor));
    by.request(&scaled).map_or(CallEffect::Nothing, |request| key.take(&request, now))
}
