//! The straight way of the call that is most common: rates alone, whose parts are all there, and nothing beside them.
//! Whatever else a call may bring goes the general way (`look.rs`, `charge.rs`, `answer.rs`). For such a call that comes
//! to the same, but takes about twice as many instructions of ours.

use super::answer::first_to_run_out;
use super::{Answer, Changed, Part, PartsUsage};
use crate::algorithm::any::{Single, with_limit};
use crate::evaluate::{Ask, Change};
use crate::kind::Kind;
use crate::limit::{Decision, Limit, Verdict};
use crate::number::{Amount, Span, Timestamp};
use crate::syntax::{Call, Counts, MAX_SPECS, Purpose, Spec};

/// What a look has shown such a call.
#[derive(Clone, Debug)]
pub struct Straight {
    /// Where each limit's part is.
    places: [usize; MAX_SPECS],
    /// Which limits stand in the call's way.
    denying: [bool; MAX_SPECS],
    /// The longest of all, and the first limit that says so.
    verdict: Verdict,
    longest: usize,
}

impl Straight {
    /// Whether it stands in the call's way.
    #[must_use]
    pub fn denies(&self) -> bool {
        !self.verdict.allowed()
    }

    /// The kind of each limit, and whether it stood in the call's way.
    pub fn limits<'a>(&'a self, call: &'a Call) -> impl Iterator<Item = (Kind, bool)> + 'a {
        call.specs.iter().zip(self.denying).map(|(spec, denies)| (spec.limit.kind(), denies))
    }
}

impl PartsUsage {
    /// What a look shows a call that goes the straight way; `None` of any other.
    #[must_use]
    pub fn look_straight(&self, call: &Call, now: Timestamp) -> Option<Straight> {
        let is_plain =
            call.counts == Counts::Every && call.purpose == Purpose::Charge && !call.each && call.ban.is_none();
        if !is_plain || self.beside.is_some() || now < self.written {
            return None;
        }
        let at_once = Verdict::Allowed(Span::ZERO);
        let mut seen = Straight { places: [0; MAX_SPECS], denying: [false; MAX_SPECS], verdict: at_once, longest: 0 };
        let rooms = seen.places.iter_mut().zip(&mut seen.denying);
        for (at, (spec, (place, denies))) in call.specs.iter().zip(rooms).enumerate() {
            let cost = spec.cost_of_rate()?;
            *place = self.place_of(spec, at)?;
            let part = self.parts.get(*place)?;
            let verdict = with_limit!(spec, limit => limit.verdict(Single::of(&part.usage)?, now, cost));
            *denies = !verdict.allowed();
            if verdict > seen.verdict {
                (seen.verdict, seen.longest) = (verdict, at);
            }
        }
        Some(seen)
    }

    /// The place of the part that is known by what the limit of a spec is known by, which most likely stands `at` its
    /// own.
    fn place_of(&self, spec: &Spec, at: usize) -> Option<usize> {
        match self.parts.get(at) {
            Some(part) if part.is_of(spec) => Some(at),
            _ => self.parts.iter().position(|part| part.is_of(spec)),
        }
    }

    /// The answer to a call that such a look denies.
    #[must_use]
    pub fn deny_straight(&self, call: &Call, seen: &Straight, now: Timestamp) -> Answer {
        self.answer_straight(call, seen, seen.longest, now)
    }

    /// Charges all limits of a call that such a look admits; the answer. What has changed is noted only if it is to be
    /// `told`.
    pub fn charge_straight(&mut self, call: &Call, seen: &Straight, told: bool, now: Timestamp) -> Answer {
        self.begin(now, None);
        let PartsUsage { parts, delta, .. } = self;
        let charged = call.specs.iter().zip(seen.places).enumerate().filter_map(|(at, (spec, place))| {
            let (part, cost) = (parts.get_mut(place)?, spec.cost_of_rate()?);
            if told {
                let (serial, kind) = (part.serial, part.usage.kind());
                delta.changed.push(Changed { serial, kind, is_new: false, named: false });
            }
            Some((with_limit!(spec, limit => part.charge(limit, cost, now)), spec, at))
        });
        let governing = first_to_run_out(charged);
        let answer = self.answer_straight(call, seen, governing.unwrap_or_default(), now);
        self.end(now);
        answer
    }

    /// The answer, by the limit at that place of the call.
    fn answer_straight(&self, call: &Call, seen: &Straight, governing: usize, now: Timestamp) -> Answer {
        let verdict = seen.verdict;
        let decision = || {
            let (spec, place) = call.specs.get(governing).zip(seen.places.get(governing))?;
            let part = self.parts.get(*place)?;
            with_limit!(spec, limit => {
                let usage = Single::of(&part.usage)?;
                let (remaining, reset) = (limit.remaining(usage, now), limit.reset(usage, now));
                Some(Decision { verdict, limit: limit.limit(), remaining, reset, granted: None }.keeping(spec.kept))
            })
        };
        Answer::of(decision().unwrap_or_else(|| Decision::unlimited(verdict)))
    }
}

impl Part {
    /// Charges it; what remains.
    fn charge<L: Limit>(&mut self, limit: &L, cost: Amount, now: Timestamp) -> Amount
    where
        L::Usage: Single,
    {
        self.change(limit, Change::Charge(cost), false, now);
        L::Usage::of(&self.usage).map_or(Amount::ZERO, |usage| limit.remaining(usage, now))
    }
}

impl Spec<'_> {
    /// What it charges, if it has a say and is of a rate that never changes and keeps no entries.
    fn cost_of_rate(&self) -> Option<Amount> {
        match self.ask {
            Ask::Take(cost) if cost != Amount::ZERO && !self.limit.grows() && !self.shadow && self.slower.is_none() => {
                Some(cost)
            }
            _ => None,
        }
    }
}
