//! Evaluation of several limits at a composite key, or at a plain or missing key that may have to become composite.

use super::commit::{Applied, Apply, KeyEvaluation, Target, check_entries, commit, commit_to, convert, count_limits};
use crate::redis::guard;
use crate::redis::key::{Contents, Writable};
use ratelimit_core::composite::{Answer, CompositeEvaluation, CompositeUsage, MAX_COMPONENTS, StoredUsage};
use ratelimit_core::syntax::{CompositeRequest, Purpose};
use ratelimit_core::wire::error::Error;
use ratelimit_core::{PlainUsage, Span, Timestamp, UsageKind, with_usage_type};
use std::borrow::Cow;
use std::marker::PhantomData;

/// Evaluation of several limits, or of one that needs a composite key because of a name, an idempotency key or a ban. A
/// plain key is evaluated as the component of the first limit of its kind.
pub struct SeveralLimits<'s, 'a> {
    request: Cow<'s, CompositeRequest<'a>>,
    evaluation: CompositeEvaluation,
    /// Kind of the usage if the key is plain, or is to be created as a plain one.
    plain: Option<UsageKind>,
    /// `true` if the key was missing.
    missing: bool,
    /// Error if the call would exceed the maximum number of entries, idempotency keys or components.
    room: Result<(), Error>,
    grows: bool,
}

impl<'s, 'a> SeveralLimits<'s, 'a> {
    /// Evaluates a call at the usage of a key. Inlined, so that the large result is built in place.
    #[inline(always)]
    pub fn evaluate(
        request: Cow<'s, CompositeRequest<'a>>,
        stored: StoredUsage,
        missing: bool,
        now: Timestamp,
        out_of_memory: impl FnOnce() -> bool,
    ) -> SeveralLimits<'s, 'a> {
        guard::panic_test_point();
        let plain = if let StoredUsage::Plain(_, kind) = stored { Some(kind) } else { None };
        let mut limits = SeveralLimits {
            evaluation: CompositeEvaluation::default(),
            request,
            plain,
            missing,
            room: Ok(()),
            grows: false,
        };
        limits.evaluation.evaluate(&limits.request, stored, now);
        limits.check_growth(stored, now, out_of_memory);
        limits
    }

    /// Checks that there is room for the entries and components that the call would add. If there is no room or no
    /// memory for them, leaves out the additions of limits in shadow mode, because a limit in shadow mode must not make
    /// the call fail.
    #[inline(always)]
    fn check_growth(&mut self, stored: StoredUsage, now: Timestamp, out_of_memory: impl FnOnce() -> bool) {
        (self.room, self.grows) = self.growth(stored, now);
        let has_shadow_limits = self.request.specs.iter().any(|spec| spec.shadow);
        if has_shadow_limits && (self.room.is_err() || (self.grows && out_of_memory())) {
            self.evaluation.exclude_shadow_limits();
            (self.room, self.grows) = self.growth(stored, now);
        }
    }

    /// Returns two things: an error if the charge would exceed the maximum number of entries or components, and `true`
    /// if it would create a key, a component or an entry.
    fn growth(&self, stored: StoredUsage, now: Timestamp) -> (Result<(), Error>, bool) {
        let mut grows = self.creates_plain_key() || self.evaluation.creates_components();
        if self.evaluation.has_too_many_components(stored, now) {
            return (Err(Error::TooManyComponents { max: MAX_COMPONENTS }), grows);
        }
        let mut entries = self.evaluation.entries(&self.request, stored, now);
        let room = entries.try_for_each(|(kind, count, adds)| {
            grows |= adds;
            check_entries(kind, count)
        });
        (room, grows)
    }

    /// Returns `true` if charging the call would create a plain key.
    fn creates_plain_key(&self) -> bool {
        self.missing && self.plain.is_some() && self.evaluation.changes()
    }

    /// Returns the request.
    pub fn request(&self) -> &CompositeRequest<'a> {
        &self.request
    }

    /// Returns the answer of a call that changes nothing, at the key at which the call was evaluated; `None` if the key
    /// now holds another type.
    pub fn answer(&self, key: &Contents, now: Timestamp) -> Option<Answer> {
        let Some(kind) = self.plain else {
            return Some(self.answer_unchanged(StoredUsage::Composite(&*key.usage()?), now));
        };
        with_usage_type!(kind, Plain => {
            Some(self.answer_unchanged(StoredUsage::plain::<Plain>(&*key.usage()?), now))
        }, None)
    }

    /// Applies the change of the call if `changes_key` is `true`. In either case, moves timestamps back if the clock
    /// has moved backwards.
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
            // Other modules have stored another type in the key since. The call is answered as at an empty key.
            return self.answer_unchanged(StoredUsage::Composite(&CompositeUsage::default()), now);
        };
        let new_evaluation;
        let evaluation = if changes_key && key.may_have_changed() {
            new_evaluation = self.evaluate_again(key.usage_mut(), now);
            &new_evaluation
        } else {
            &self.evaluation
        };
        commit(key, &CompositeCharge { request: &self.request, evaluation }, changes_key, now)
    }

    fn commit_plain<'r, 'c: 'r, U: PlainUsage>(
        &self,
        target: impl Target<'r, 'c>,
        changes_key: bool,
        now: Timestamp,
    ) -> Answer {
        let (request, evaluation) = (&*self.request, &self.evaluation);
        if !changes_key || evaluation.stays_plain(request) {
            return commit_to(target, &PlainCharge::<U> { request, evaluation, usage: PhantomData }, changes_key, now);
        }
        match target.open() {
            // Other modules have deleted the key.
            Some(key) if key.contents().is_missing() => {
                let evaluation = &self.evaluate_again(&CompositeUsage::default(), now);
                commit_to(key, &CompositeCharge { request, evaluation }, changes_key, now)
            }
            Some(key) => match key.typed::<U>() {
                Ok(key) => convert(key, &CompositeCharge { request, evaluation }, now),
                Err(_) => self.answer_unchanged(StoredUsage::plain(&U::default()), now),
            },
            None => self.answer_unchanged(StoredUsage::plain(&U::default()), now),
        }
    }

    /// Evaluates the call again, after other modules may have changed the components and the recorded idempotency keys.
    fn evaluate_again(&self, usage: &CompositeUsage, now: Timestamp) -> CompositeEvaluation {
        self.evaluation.evaluate_again(&self.request, StoredUsage::Composite(usage), now)
    }

    /// Returns the answer of a call that changes nothing, at the usage of its key.
    fn answer_unchanged(&self, stored: StoredUsage, now: Timestamp) -> Answer {
        self.evaluation.answer(&self.request, stored, now, false)
    }
}

impl KeyEvaluation for SeveralLimits<'_, '_> {
    fn denies(&self) -> bool {
        self.evaluation.denies()
    }

    fn allows(&self) -> bool {
        self.evaluation.allows()
    }

    fn has_record(&self) -> bool {
        self.evaluation.has_record()
    }

    fn check_room(&self) -> Result<(), Error> {
        self.room.clone()
    }

    fn grows(&self) -> bool {
        self.grows
    }

    /// Returns `true` if the call changes the key. A strike is written although the call is denied, and so is the
    /// release of a lease by a settlement whose idempotency key is no longer recorded.
    fn changes_key(&self, allowed: bool) -> bool {
        let may_charge = allowed || self.request.purpose == Purpose::Settle;
        (may_charge && self.evaluation.changes()) || self.evaluation.is_strike()
    }

    fn count(&self, allowed: bool) {
        let creates = allowed && self.missing && self.evaluation.changes();
        count_limits(self.evaluation.limits(&self.request), self.denies(), allowed && self.allows(), creates);
    }
}

/// Charge of a key that is composite or becomes composite.
struct CompositeCharge<'e, 'a> {
    request: &'e CompositeRequest<'a>,
    evaluation: &'e CompositeEvaluation,
}

impl Apply for CompositeCharge<'_, '_> {
    type Usage = CompositeUsage;
    type Answer = Answer;

    fn apply(&self, usage: &mut CompositeUsage, now: Timestamp) -> Option<Applied<Answer>> {
        usage.charge(self.request, self.evaluation, now);
        let answer = self.evaluation.answer(self.request, StoredUsage::Composite(usage), now, true);
        Some(Applied { answer, reset: usage.reset(now) })
    }

    fn answer(&self, usage: &CompositeUsage, now: Timestamp) -> Answer {
        self.evaluation.answer(self.request, StoredUsage::Composite(usage), now, false)
    }

    fn reset(&self, usage: &CompositeUsage, now: Timestamp) -> Span {
        usage.reset(now)
    }
}

/// Charge of a plain key that stays plain.
struct PlainCharge<'e, 'a, U> {
    request: &'e CompositeRequest<'a>,
    evaluation: &'e CompositeEvaluation,
    usage: PhantomData<U>,
}

impl<U: PlainUsage> Apply for PlainCharge<'_, '_, U> {
    type Usage = U;
    type Answer = Answer;

    fn apply(&self, usage: &mut U, now: Timestamp) -> Option<Applied<Answer>> {
        self.evaluation.charge_plain(self.request, usage, now);
        let answer = self.evaluation.answer(self.request, StoredUsage::plain(usage), now, true);
        Some(Applied { answer, reset: self.reset(usage, now) })
    }

    fn answer(&self, usage: &U, now: Timestamp) -> Answer {
        self.evaluation.answer(self.request, StoredUsage::plain(usage), now, false)
    }

    fn reset(&self, usage: &U, now: Timestamp) -> Span {
        self.request.reset_of_plain(usage, now)
    }
}
