//! Merging of the options before the first spec, which apply to all specs, with those of one spec, which take
//! precedence.

use super::options::{COST_OF_SEVERAL, COST_WITH_ONCE, Cost, Keep, Mode, Options};
use super::purpose::{Idempotency, Purpose};
use super::spec::{ParsedLimit, Spec};
use super::spec_options::SpecOptions;
use super::words::{Word, out_of_place};
use crate::algorithm::any::AnyLimit;
use crate::algorithm::bucket::Discipline;
use crate::evaluate::Request;
use crate::number::Amount;
use crate::wire::error::{Error, Reason};

/// Options shared by all specs of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommonOptions<'a> {
    pub(super) options: Options<'a>,
    /// Purpose of the call according to these options alone.
    pub(super) purpose: Purpose,
    /// `true` if the call has any options before the first spec.
    has_any: bool,
    /// `true` if the cost is the key's own COST. A settlement of the call does not change what such a cost charged.
    own_cost: bool,
}

impl<'a> CommonOptions<'a> {
    /// Validates the options before the first spec and derives the purpose of the call.
    pub(super) fn of(options: Options<'a>) -> Result<CommonOptions<'a>, Error> {
        let purpose = match (options.idempotency, options.cost) {
            (Idempotency::Settle { .. }, _) => {
                options.reject_settle_conflict()?;
                Purpose::Settle
            }
            (_, Some(Cost::Refund(_))) => Purpose::Refund,
            (_, Some(Cost::Charge { cost: Amount::ZERO, .. })) => Purpose::Peek,
            _ => Purpose::Charge,
        };
        // Validated even if each spec overrides these options.
        reject_keep(options.keep, options.request(options.mode)?, purpose)?;
        let common = CommonOptions { options, purpose, has_any: true, own_cost: false };
        common.reject_once_conflict(&options)?;
        Ok(common)
    }

    /// Empty options, for a call without options before the first spec.
    pub(super) const NONE: CommonOptions<'static> =
        CommonOptions { options: Options::NONE, purpose: Purpose::Charge, has_any: false, own_cost: false };

    /// Returns the word of a mode that makes the reply of an admitted call longer: UPTO grants less, MAXWAIT may delay.
    pub(super) fn mode_with_longer_reply(&self) -> Option<&'static str> {
        let mode = self.options.mode.filter(|mode| matches!(mode, Mode::UpTo | Mode::MaxWait(_)));
        mode.map(|mode| mode.word().name())
    }

    /// Merges these options with those after the only spec of a key, which take precedence.
    pub(super) fn merged_with(&self, own: &Options<'a>) -> Result<CommonOptions<'a>, Error> {
        let common = self.options;
        let idempotency =
            self.with_idempotency_of(own)?.map_or(common.idempotency, |merged| merged.options.idempotency);
        // If the call as a whole charges nothing, a cost of the spec itself is evaluated but not charged.
        let peeks = own.cost.is_some() && self.purpose != Purpose::Charge;
        let cost =
            if peeks { Some(Cost::Charge { cost: Amount::ZERO, whole: true }) } else { own.cost.or(common.cost) };
        let cost_text = if own.cost.is_some() { own.cost_text } else { common.cost_text };
        // A mode or an amount to keep belongs to the cost beside which it stands. A percentage to keep applies to any
        // cost.
        let (mode, keep) = match (own.cost, common.keep) {
            (Some(_), Some(Keep::Share(_))) => (own.mode, own.keep.or(common.keep)),
            (Some(_), _) => (own.mode, own.keep),
            (None, _) => (own.mode.or(common.mode), own.keep.or(common.keep)),
        };
        let (each, item) = (common.each || own.each, own.item.or(common.item));
        let options = Options { cost, cost_text, mode, keep, idempotency, each, item, ..Options::NONE };
        if peeks {
            Ok(CommonOptions { options, purpose: self.purpose, has_any: true, own_cost: true })
        } else {
            CommonOptions::of(options)
        }
    }

    /// Returns these options with the ONCE or SETTLE after the only spec, or `None` if the spec has neither.
    pub(super) fn with_idempotency_of(&self, spec: &Options<'a>) -> Result<Option<CommonOptions<'a>>, Error> {
        let word = match spec.idempotency {
            Idempotency::Every => return Ok(None),
            Idempotency::Once { .. } => Word::Once,
            Idempotency::Settle { .. } => {
                spec.reject_settle_conflict()?;
                Word::Settle
            }
        };
        if self.options.idempotency != Idempotency::Every {
            return Err(out_of_place(word, Reason::HasId));
        }
        CommonOptions::of(Options { idempotency: spec.idempotency, ..self.options }).map(Some)
    }

    /// Builds the spec of one of several limits of a key. Rejects a negative cost.
    pub(super) fn spec_on_key(&self, parsed: &ParsedLimit<'a>, options: &SpecOptions<'a>) -> Result<Spec<'a>, Error> {
        options.options().reject_refund(&COST_OF_SEVERAL)?;
        self.spec_by_options(parsed, options).unwrap_or_else(|| Ok(Spec::plain(*parsed)))
    }

    /// Builds the spec of one of several limits from its own options and these; `None` if there are none, as for most
    /// specs.
    #[inline(always)]
    pub(super) fn spec_by_options(
        &self,
        parsed: &ParsedLimit<'a>,
        options: &SpecOptions<'a>,
    ) -> Option<Result<Spec<'a>, Error>> {
        (self.has_any || !options.has_no_options()).then(|| self.spec_among_several(parsed, options.options()))
    }

    #[inline(never)]
    fn spec_among_several(&self, parsed: &ParsedLimit<'a>, own: &Options<'a>) -> Result<Spec<'a>, Error> {
        own.reject_single_spec_options()?;
        self.spec(parsed, own)
    }

    /// Builds the spec of a limit from its own options and these.
    #[inline(always)]
    pub(super) fn spec(&self, parsed: &ParsedLimit<'a>, own: &Options<'a>) -> Result<Spec<'a>, Error> {
        let limit = parsed.limit;
        if matches!(limit, AnyLimit::Sketch(_)) {
            self.reject_sketch_options(own)?;
        }
        let of_leases = matches!(limit, AnyLimit::Concurrency(_));
        let request = self.request(&limit, own)?;
        self.reject_once_conflict(own)?;
        let keep = own.keep.or(match self.options.keep {
            Some(Keep::Amount(_)) if own.cost.is_some() || of_leases => None,
            keep => keep,
        });
        reject_keep(keep, request, self.purpose)?;
        let (own_cost, nx) = (own.cost.is_some() || self.own_cost, own.flagged && of_leases);
        let spec = Spec { request, name: own.name, own_cost, nx, ..Spec::plain(*parsed) };
        Ok(match keep {
            Some(keep) => spec.with_keep(keep.of(limit.limit())),
            None => spec,
        })
    }

    /// Returns the request to a limit from its own options and these.
    fn request(&self, limit: &AnyLimit, own: &Options) -> Result<Request, Error> {
        let has_own_cost = own.cost.is_some() || matches!(limit, AnyLimit::Concurrency(_));
        match (self.purpose, own.mode) {
            (Purpose::Settle, Some(mode)) if !has_own_cost => Err(out_of_place(mode.word(), Reason::SettleSetsCost)),
            (Purpose::Settle, _) => Ok(Request::Take(Amount::ZERO)),
            (Purpose::Peek | Purpose::Refund, _) if has_own_cost => Ok(Request::Take(Amount::ZERO)),
            (_, mode) if has_own_cost => own.request(mode),
            (_, mode) => {
                let can_wait = matches!(limit, AnyLimit::Bucket(bucket) if bucket.discipline() == Discipline::Burst);
                let call_mode = self.options.mode.filter(|mode| can_wait || !matches!(mode, Mode::MaxWait(_)));
                self.options.request(mode.or(call_mode))
            }
        }
    }

    /// Rejects refunds, ONCE and SETTLE for a sketch, which cannot undo a charge.
    fn reject_sketch_options(&self, own: &Options) -> Result<(), Error> {
        for options in [own, &self.options] {
            match (options.idempotency, options.cost) {
                (Idempotency::Once { .. }, _) => return Err(out_of_place(Word::Once, Reason::MergedInSketch)),
                (Idempotency::Settle { .. }, _) => return Err(out_of_place(Word::Settle, Reason::MergedInSketch)),
                (Idempotency::Every, Some(Cost::Refund(_))) => {
                    return Err(Error::unexpected(options.cost_text, Reason::MergedInSketch));
                }
                (Idempotency::Every, _) => {}
            }
        }
        Ok(())
    }

    /// Rejects ONCE together with a negative cost.
    fn reject_once_conflict(&self, options: &Options) -> Result<(), Error> {
        match self.options.idempotency {
            Idempotency::Once { .. } => options.reject_refund(&COST_WITH_ONCE),
            _ => Ok(()),
        }
    }
}

/// Rejects KEEP together with FORCE, SETTLE or a negative cost.
fn reject_keep(keep: Option<Keep>, request: Request, purpose: Purpose) -> Result<(), Error> {
    let keeps_nothing = matches!(purpose, Purpose::Settle | Purpose::Refund);
    if keep.is_some() && (keeps_nothing || matches!(request, Request::Force(_) | Request::Refund(_))) {
        return Err(out_of_place(Word::Keep, Reason::KeepConflict));
    }
    Ok(())
}
