//! Several limits, evaluated at a composite key, or at a plain or missing one that may have to become composite.

use super::commit::{Applied, Apply, Target, commit, commit_to, convert};
use super::key_evaluation::{KeyEvaluation, check_entries, count_limits};
use crate::redis::guard;
use crate::redis::key::{Contents, Writable};
use ratelimit_core::composite::{Answer, CompositeEvaluation, CompositeUsage, Held, MAX_COMPONENTS};
use ratelimit_core::syntax::{CompositeRequest, Purpose};
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Kind, Single, Span, Timestamp, with_usage_type};
use std::borrow::Cow;
use std::marker::PhantomData;

/// Several limits, or one that needs a composite key: for a name, an id or a ban. A plain key serves such a call too,
/// as the component of the first limit of its kind.
pub struct SeveralLimits<'s, 'a> {
    request: Cow<'s, CompositeRequest<'a>>,
    evaluation: CompositeEvaluation,
    /// What the key holds if it is a plain one.
    plain: Option<Kind>,
    /// Whether there was no key.
    missing: bool,
    /// Whether it may have no more entries, ids or components.
    room: Result<(), Error>,
    grows: bool,
}

impl<'s, 'a> SeveralLimits<'s, 'a> {
    /// Evaluates a call at what a key holds. Large, so it is made where it is to stay.
    #[inline(always)]
    pub fn at(
        request: Cow<'s, CompositeRequest<'a>>,
        held: Held,
        missing: bool,
        now: Timestamp,
        out_of_memory: impl FnOnce() -> bool,
    ) -> SeveralLimits<'s, 'a> {
        guard::panic_test_point();
        let plain = if let Held::Plain(_, kind) = held { Some(kind) } else { None };
        let mut evaluation = SeveralLimits {
            evaluation: CompositeEvaluation::default(),
            request,
            plain,
            missing,
            room: Ok(()),
            grows: false,
        };
        evaluation.evaluation.look_at(&evaluation.request, held, now);
        evaluation.look_for_room(held, now, out_of_memory);
        evaluation
    }

    /// Looks whether there is room for what the call would add. What only limits in the shadow would add is left out if
    /// there is none: they never deny.
    #[inline(always)]
    fn look_for_room(&mut self, held: Held, now: Timestamp, out_of_memory: impl FnOnce() -> bool) {
        self.room = check_room(&self.evaluation, &self.request, held, now);
        self.grows = self.makes_a_plain_key() || grows(&self.evaluation, &self.request, held, now);
        let casts_shadow = self.request.specs.iter().any(|spec| spec.shadow);
        if casts_shadow && (self.room.is_err() || (self.grows && out_of_memory())) {
            self.evaluation.leave_shadows_out();
            self.room = check_room(&self.evaluation, &self.request, held, now);
            self.grows = self.makes_a_plain_key() || grows(&self.evaluation, &self.request, held, now);
        }
    }

    /// Whether going on would make a key of a usage that is alone in it.
    fn makes_a_plain_key(&self) -> bool {
        self.missing && self.plain.is_some() && self.evaluation.changes()
    }

    /// What is requested.
    pub fn request(&self) -> &CompositeRequest<'a> {
        &self.request
    }

    /// The answer of a call that changes nothing, at the key that it was evaluated at.
    pub fn answer(&self, key: &Contents, now: Timestamp) -> Option<Answer> {
        let Some(kind) = self.plain else { return Some(self.unchanged(Held::Composite(&*key.usage()?), now)) };
        with_usage_type!(kind, Plain => Some(self.unchanged(Held::plain::<Plain>(&*key.usage()?), now)), None)
    }

    /// Makes the change of a call that `changes_key`, and sees to a clock gone back in any case. Nothing can fail any more.
    pub fn commit<'r, 'c: 'r>(&self, target: impl Target<'r, 'c>, changes_key: bool, now: Timestamp) -> Answer {
        match self.plain {
            None => self.commit_composite(target, changes_key, now),
            Some(kind) => with_usage_type!(
                kind,
                Plain => self.commit_plain::<Plain>(target, changes_key, now),
                self.commit_composite(target, changes_key, now)
            ),
        }
    }

    fn commit_composite<'r, 'c: 'r>(&self, target: impl Target<'r, 'c>, changes_key: bool, now: Timestamp) -> Answer {
        let Some(mut key) = target.resume(now) else {
            return self.unchanged(Held::Composite(&CompositeUsage::default()), now);
        };
        let again;
        let evaluation = if changes_key && key.is_overtaken() {
            again = self.again(key.usage_mut(), now);
            &again
        } else {
            &self.evaluation
        };
        commit(key, &OfComposite { request: &self.request, evaluation }, changes_key, now)
    }

    fn commit_plain<'r, 'c: 'r, U: Single>(
        &self,
        target: impl Target<'r, 'c>,
        changes_key: bool,
        now: Timestamp,
    ) -> Answer {
        let (request, evaluation) = (&*self.request, &self.evaluation);
        if !changes_key || evaluation.stays_plain(request) {
            return commit_to(target, &OfPlain::<U> { request, evaluation, usage: PhantomData }, changes_key, now);
        }
        match target.open() {
            // Others have deleted it.
            Some(key) if key.contents().is_missing() => {
                let evaluation = &self.again(&CompositeUsage::default(), now);
                commit_to(key, &OfComposite { request, evaluation }, changes_key, now)
            }
            Some(key) => match key.typed::<U>() {
                Ok(key) => convert(key, &OfComposite { request, evaluation }, now),
                Err(_) => self.unchanged(Held::plain(&U::default()), now),
            },
            None => self.unchanged(Held::plain(&U::default()), now),
        }
    }

    /// What is to be done after others may have changed which components there are, and which ids are known.
    fn again(&self, usage: &CompositeUsage, now: Timestamp) -> CompositeEvaluation {
        self.evaluation.again(&self.request, Held::Composite(usage), now)
    }

    fn unchanged(&self, held: Held, now: Timestamp) -> Answer {
        self.evaluation.answer(&self.request, held, now, false)
    }
}

impl KeyEvaluation for SeveralLimits<'_, '_> {
    fn denies(&self) -> bool {
        self.evaluation.denies()
    }

    fn allows(&self) -> bool {
        self.evaluation.allows()
    }

    fn knows(&self) -> bool {
        self.evaluation.knows()
    }

    fn check_room(&self) -> Result<(), Error> {
        self.room.clone()
    }

    fn grows(&self) -> bool {
        self.grows
    }

    /// A strike is written though the call is denied, and so is the release of a lease by a settlement whose id no key
    /// knows any more.
    fn changes_key(&self, allowed: bool) -> bool {
        let changes_key = allowed || self.request.purpose == Purpose::Settle;
        (changes_key && self.evaluation.changes()) || self.evaluation.strikes()
    }

    fn count(&self, allowed: bool) {
        let makes = allowed && self.missing && self.evaluation.changes();
        count_limits(self.evaluation.limits(&self.request), self.denies(), allowed && self.allows(), makes);
    }
}

/// Several limits, and what they have shown at a key that is composite, or becomes so.
struct OfComposite<'e, 'a> {
    request: &'e CompositeRequest<'a>,
    evaluation: &'e CompositeEvaluation,
}

impl Apply for OfComposite<'_, '_> {
    type Usage = CompositeUsage;
    type Answer = Answer;

    fn apply(&self, usage: &mut CompositeUsage, now: Timestamp) -> Option<Applied<Answer>> {
        usage.charge(self.request, self.evaluation, now);
        let answer = self.evaluation.answer(self.request, Held::Composite(usage), now, true);
        Some(Applied { answer, reset: usage.reset(now) })
    }

    fn answer(&self, usage: &CompositeUsage, now: Timestamp) -> Answer {
        self.evaluation.answer(self.request, Held::Composite(usage), now, false)
    }

    fn reset(&self, usage: &CompositeUsage, now: Timestamp) -> Span {
        usage.reset(now)
    }
}

/// Several limits, and what they have shown at a plain key that stays one.
struct OfPlain<'e, 'a, U> {
    request: &'e CompositeRequest<'a>,
    evaluation: &'e CompositeEvaluation,
    usage: PhantomData<U>,
}

impl<U: Single> Apply for OfPlain<'_, '_, U> {
    type Usage = U;
    type Answer = Answer;

    fn apply(&self, usage: &mut U, now: Timestamp) -> Option<Applied<Answer>> {
        self.evaluation.charge_plain(self.request, usage, now);
        let answer = self.evaluation.answer(self.request, Held::plain(usage), now, true);
        Some(Applied { answer, reset: self.reset(usage, now) })
    }

    fn answer(&self, usage: &U, now: Timestamp) -> Answer {
        self.evaluation.answer(self.request, Held::plain(usage), now, false)
    }

    fn reset(&self, usage: &U, now: Timestamp) -> Span {
        self.request.reset_of_plain(usage, now)
    }
}

/// Refuses if going on would add an entry to a component that has as many as it may have, or one component too many.
fn check_room(
    evaluation: &CompositeEvaluation,
    request: &CompositeRequest,
    held: Held,
    now: Timestamp,
) -> Result<(), Error> {
    if evaluation.has_too_many_components(held, now) {
        return Err(Error::TooManyComponents { most: MAX_COMPONENTS });
    }
    evaluation.entries(request, held, now).try_for_each(|(kind, entries, _)| check_entries(kind, entries))
}

/// Whether going on would make a key, a component or an entry.
fn grows(evaluation: &CompositeEvaluation, request: &CompositeRequest, held: Held, now: Timestamp) -> bool {
    evaluation.makes_components() || evaluation.entries(request, held, now).any(|(_, _, grows)| grows)
}
