//! What options come to: those before the first spec, which are for all, with those of one spec, which win.

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

/// What all specs of a call have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommonOptions<'a> {
    options: Options<'a>,
    /// What the call is for, by them alone.
    pub(super) purpose: Purpose,
    /// Whether anything was said at all.
    are_any: bool,
    /// Whether the cost is of one key's own: what it was charged, a settlement of all leaves alone.
    own_cost: bool,
}

impl<'a> CommonOptions<'a> {
    /// What the options before the first spec, or none, say of all specs.
    pub(super) fn of(options: Options<'a>) -> Result<CommonOptions<'a>, Error> {
        let purpose = match (options.idempotency, options.cost) {
            (Idempotency::Settle { .. }, _) => {
                options.refuse_beside_settle()?;
                Purpose::Settle
            }
            (_, Some(Cost::GiveBack(_))) => Purpose::GiveBack,
            (_, Some(Cost::Charge { cost: Amount::ZERO, .. })) => Purpose::Check,
            _ => Purpose::Charge,
        };
        // Wrong is wrong, even if no spec takes it.
        refuse_to_keep(options.keep, options.request(options.mode)?, purpose)?;
        let common = CommonOptions { options, purpose, are_any: true, own_cost: false };
        common.refuse_once_beside(&options)?;
        Ok(common)
    }

    /// Those of a call without options of its own.
    pub(super) const NONE: CommonOptions<'static> =
        CommonOptions { options: Options::NONE, purpose: Purpose::Charge, are_any: false, own_cost: false };

    /// Whether the call is charged each time, or once for its id.
    pub(super) fn idempotency(&self) -> Idempotency<'a> {
        self.options.idempotency
    }

    /// The mode with which an admitted call may have to wait, or is granted less than it asks for.
    pub(super) fn word_that_tells_more(&self) -> Option<&'static str> {
        let mode = self.options.mode.filter(|mode| matches!(mode, Mode::UpTo | Mode::MaxWait(_)));
        mode.map(|mode| mode.word().name())
    }

    /// These options with those after the only spec of a key, which win.
    pub(super) fn with(&self, own: &Options<'a>) -> Result<CommonOptions<'a>, Error> {
        let all = self.options;
        let idempotency = self.counting_as(own)?.map_or(all.idempotency, |common| common.idempotency());
        // Of a call that as a whole charges nothing, what has a cost of its own is looked at.
        let looks = own.cost.is_some() && self.purpose != Purpose::Charge;
        let cost = if looks { Some(Cost::Charge { cost: Amount::ZERO, whole: true }) } else { own.cost.or(all.cost) };
        let cost_said = if own.cost.is_some() { own.cost_said } else { all.cost_said };
        // What goes with the cost of all does not go with another; a share is kept of any.
        let (mode, keep) = match (own.cost, all.keep) {
            (Some(_), Some(Keep::Share(_))) => (own.mode, own.keep.or(all.keep)),
            (Some(_), _) => (own.mode, own.keep),
            (None, _) => (own.mode.or(all.mode), own.keep.or(all.keep)),
        };
        let (each, item) = (all.each || own.each, own.item.or(all.item));
        let options = Options { cost, cost_said, mode, keep, idempotency, each, item, ..Options::NONE };
        if looks {
            Ok(CommonOptions { options, purpose: self.purpose, are_any: true, own_cost: true })
        } else {
            CommonOptions::of(options)
        }
    }

    /// Whether each decision is to be told.
    pub(super) fn each(&self) -> bool {
        self.options.each
    }

    /// These options with the ONCE or SETTLE that stands after the only spec; `None` if there is none.
    pub(super) fn counting_as(&self, spec: &Options<'a>) -> Result<Option<CommonOptions<'a>>, Error> {
        let word = match spec.idempotency {
            Idempotency::Every => return Ok(None),
            Idempotency::Once { .. } => Word::Once,
            Idempotency::Settle { .. } => {
                spec.refuse_beside_settle()?;
                Word::Settle
            }
        };
        if self.options.idempotency != Idempotency::Every {
            return Err(out_of_place(word, Reason::HasId));
        }
        CommonOptions::of(Options { idempotency: spec.idempotency, ..self.options }).map(Some)
    }

    /// What is asked of one of several limits on one key.
    pub(super) fn spec_on_key(&self, parsed: &ParsedLimit<'a>, options: &SpecOptions<'a>) -> Result<Spec<'a>, Error> {
        options.options().refuse_give_back(&COST_OF_SEVERAL)?;
        self.spec_among_several(parsed, options)
    }

    /// What is asked of one of several limits.
    #[inline(always)]
    pub(super) fn spec_among_several(
        &self,
        parsed: &ParsedLimit<'a>,
        options: &SpecOptions<'a>,
    ) -> Result<Spec<'a>, Error> {
        // Most say no more than their numbers.
        if self.are_any || !options.has_no_options() {
            self.spec_by_options(parsed, options.options())
        } else {
            Ok(Spec::plain(*parsed))
        }
    }

    #[inline(never)]
    fn spec_by_options(&self, parsed: &ParsedLimit<'a>, own: &Options<'a>) -> Result<Spec<'a>, Error> {
        own.refuse_among_several()?;
        self.spec(parsed, own)
    }

    /// What is asked of one limit, by its own options and these.
    #[inline(always)]
    pub(super) fn spec(&self, parsed: &ParsedLimit<'a>, own: &Options<'a>) -> Result<Spec<'a>, Error> {
        let ParsedLimit { limit, holder } = *parsed;
        if matches!(limit, AnyLimit::Sketch(_)) {
            self.refuse_of_sketch(own)?;
        }
        let of_leases = matches!(limit, AnyLimit::Concurrency(_));
        let request = self.request(&limit, own)?;
        self.refuse_once_beside(own)?;
        let keep = own.keep.or(match self.options.keep {
            Some(Keep::Amount(_)) if own.cost.is_some() || of_leases => None,
            keep => keep,
        });
        refuse_to_keep(keep, request, self.purpose)?;
        let spec = Spec {
            limit,
            request,
            holder,
            kept: Amount::ZERO,
            name: own.name,
            own_cost: own.cost.is_some() || self.own_cost,
            nx: own.flagged && of_leases,
            fence: None,
            shadow: false,
            by_policy: false,
            slower: None,
        };
        Ok(match keep {
            Some(keep) => spec.keeping(keep.of(limit.limit())),
            None => spec,
        })
    }

    fn request(&self, limit: &AnyLimit, own: &Options) -> Result<Request, Error> {
        let apart = own.cost.is_some() || matches!(limit, AnyLimit::Concurrency(_));
        match (self.purpose, own.mode) {
            (Purpose::Settle, Some(mode)) if !apart => Err(out_of_place(mode.word(), Reason::SettleSaysTheCost)),
            (Purpose::Settle, _) => Ok(Request::Take(Amount::ZERO)),
            (Purpose::Check | Purpose::GiveBack, _) if apart => Ok(Request::Take(Amount::ZERO)),
            (_, mode) if apart => own.request(mode),
            (_, mode) => {
                let waits = matches!(limit, AnyLimit::Bucket(bucket) if bucket.discipline() == Discipline::Burst);
                let of_the_call = self.options.mode.filter(|mode| waits || !matches!(mode, Mode::MaxWait(_)));
                self.options.request(mode.or(of_the_call))
            }
        }
    }

    /// The item of the policy's sketch (ITEM).
    pub(super) fn item(&self) -> Option<&'a [u8]> {
        self.options.item
    }

    /// Refuses what would take something back of a sketch, or set something apart in it.
    fn refuse_of_sketch(&self, own: &Options) -> Result<(), Error> {
        for options in [own, &self.options] {
            match (options.idempotency, options.cost) {
                (Idempotency::Once { .. }, _) => return Err(out_of_place(Word::Once, Reason::MergedInSketch)),
                (Idempotency::Settle { .. }, _) => return Err(out_of_place(Word::Settle, Reason::MergedInSketch)),
                (Idempotency::Every, Some(Cost::GiveBack(_))) => {
                    return Err(Error::unexpected(options.cost_said, Reason::MergedInSketch));
                }
                (Idempotency::Every, _) => {}
            }
        }
        Ok(())
    }

    /// "Not with a negative cost."
    fn refuse_once_beside(&self, options: &Options) -> Result<(), Error> {
        match (self.options.idempotency, options.cost) {
            (Idempotency::Once { .. }, Some(Cost::GiveBack(_))) => {
                Err(Error::out_of_range("cost", &COST_WITH_ONCE, options.cost_said))
            }
            _ => Ok(()),
        }
    }
}

/// "Not with FORCE, SETTLE or a negative cost."
fn refuse_to_keep(keep: Option<Keep>, request: Request, purpose: Purpose) -> Result<(), Error> {
    let keeps_nothing = matches!(purpose, Purpose::Settle | Purpose::GiveBack);
    if keep.is_some() && (keeps_nothing || matches!(request, Request::Force(_) | Request::GiveBack(_))) {
        return Err(out_of_place(Word::Keep, Reason::KeepsNothing));
    }
    Ok(())
}
