//! Merging of the options before the first spec, which apply to all specs, with the options of one spec. The options of
//! the spec take precedence.

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
    /// `true` if the cost stands after the only spec of the key. A settlement of the call does not correct such a cost.
    has_own_cost: bool,
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
        // Checked even if each spec overrides these options.
        reject_keep(options.keep, options.request(options.mode)?, purpose)?;
        let common = CommonOptions { options, purpose, has_any: true, has_own_cost: false };
        common.reject_once_conflict(&options)?;
        Ok(common)
    }

    /// Empty options, for a call without options before the first spec.
    pub(super) const NONE: CommonOptions<'static> =
        CommonOptions { options: Options::NONE, purpose: Purpose::Charge, has_any: false, has_own_cost: false };

    /// Returns the word of a mode that makes the reply of an admitted call longer: UPTO grants less, MAXWAIT may delay.
    pub(super) fn mode_with_longer_reply(&self) -> Option<&'static str> {
        let mode = self.options.mode.filter(|mode| matches!(mode, Mode::UpTo | Mode::MaxWait(_)));
        mode.map(|mode| mode.word().name())
    }

    /// Merges the common options with those after the only spec of a key, which take precedence.
    pub(super) fn merged_with(&self, own: &Options<'a>) -> Result<CommonOptions<'a>, Error> {
        let common = self.options;
        let idempotency =
            self.with_idempotency_of(own)?.map_or(common.idempotency, |merged| merged.options.idempotency);
        // If the call as a whole does not charge, a spec with a cost of its own is evaluated with a cost of 0.
        let is_peek = own.cost.is_some() && self.purpose != Purpose::Charge;
        let cost =
            if is_peek { Some(Cost::Charge { cost: Amount::ZERO, is_whole: true }) } else { own.cost.or(common.cost) };
        let cost_text = if own.cost.is_some() { own.cost_text } else { common.cost_text };
        // A mode or an amount to keep applies to the cost at the same place. A percentage to keep applies to any cost.
        let (mode, keep) = match (own.cost, common.keep) {
            (Some(_), Some(Keep::Share(_))) => (own.mode, own.keep.or(common.keep)),
            (Some(_), _) => (own.mode, own.keep),
            (None, _) => (own.mode.or(common.mode), own.keep.or(common.keep)),
        };
        let (each, item) = (common.each || own.each, own.item.or(common.item));
        let options = Options { cost, cost_text, mode, keep, idempotency, each, item, ..Options::NONE };
        if is_peek {
            Ok(CommonOptions { options, purpose: self.purpose, has_any: true, has_own_cost: true })
        } else {
            CommonOptions::of(options)
        }
    }

    /// Returns the common options with the ONCE or SETTLE of the only spec. Returns `None` if the spec has neither.
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
        self.spec_with_options(parsed, options).unwrap_or_else(|| Ok(Spec::plain(*parsed)))
    }

    /// Builds the spec of one of several limits from the common options and its own. Returns `None` if there are no
    /// options, as for most specs.
    #[inline(always)]
    pub(super) fn spec_with_options(
        &self,
        parsed: &ParsedLimit<'a>,
        options: &SpecOptions<'a>,
    ) -> Option<Result<Spec<'a>, Error>> {
        (self.has_any || options.has_any()).then(|| self.spec_among_several(parsed, options.options()))
    }

    #[inline(never)]
    fn spec_among_several(&self, parsed: &ParsedLimit<'a>, own: &Options<'a>) -> Result<Spec<'a>, Error> {
        own.reject_single_spec_options()?;
        self.spec(parsed, own)
    }

    /// Builds the spec of a limit from the common options and its own.
    #[inline(always)]
    pub(super) fn spec(&self, parsed: &ParsedLimit<'a>, own: &Options<'a>) -> Result<Spec<'a>, Error> {
        let limit = parsed.limit;
        if matches!(limit, AnyLimit::Sketch(_)) {
            self.reject_sketch_options(own)?;
        }
        let is_of_leases = matches!(limit, AnyLimit::Concurrency(_));
        let request = self.request(&limit, own)?;
        self.reject_once_conflict(own)?;
        let keep = own.keep.or(match self.options.keep {
            Some(Keep::Amount(_)) if own.cost.is_some() || is_of_leases => None,
            keep => keep,
        });
        reject_keep(keep, request, self.purpose)?;
        let has_own_cost = own.cost.is_some() || self.has_own_cost;
        let nx = own.has_flag && is_of_leases;
        let spec = Spec { request, name: own.name, has_own_cost, nx, ..Spec::plain(*parsed) };
        Ok(match keep {
            Some(keep) => spec.with_keep(keep.of(limit.limit())),
            None => spec,
        })
    }

    /// Returns the request to a limit from the common options and its own.
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
    let charges_nothing = matches!(purpose, Purpose::Settle | Purpose::Refund);
    if keep.is_some() && (charges_nothing || matches!(request, Request::Force(_) | Request::Refund(_))) {
        return Err(out_of_place(Word::Keep, Reason::KeepConflict));
    }
    Ok(())
}
