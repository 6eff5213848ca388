//! Settlement of a charge after its actual cost is known.

use super::low_water_marks::LowWaterMarks;
use crate::evaluate::Change;
use crate::limit::{Limit, Usage};
use crate::number::{Amount, Timestamp};
use crate::wire::codec::{Decoder, Encoder};

/// Charge that can be settled, recorded with the id of the call that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Serial number of the charged component.
    pub component: u8,
    /// Charged amount.
    pub cost: Amount,
    /// Number of the charge among those of the component, in the order of creation.
    pub(super) number: u64,
    /// Place of the charge in the usage, if it has one.
    pub(super) place: Option<Timestamp>,
    /// [Sum of refunds](Settlement::refunded) at the time of the charge.
    pub(super) refunded: Amount,
}

impl Charge {
    /// Shifts the place back with `usage`, which is about to be moved back to `now`.
    pub(crate) fn move_back<U: Usage>(&mut self, usage: &U, now: Timestamp) {
        self.place = self.place.and_then(|place| usage.place_after_move_back(place, now));
    }

    /// Encodes the charge.
    pub(super) fn encode(&self, to: &mut impl Encoder) {
        to.integer(u64::from(self.component));
        to.integer(self.cost.millionths());
        to.integer(self.number);
        to.integer(u64::from(self.place.is_some()));
        if let Some(place) = self.place {
            to.integer(place.micros());
        }
        to.integer(self.refunded.millionths());
    }

    /// Decodes a charge.
    pub(super) fn decode(from: &mut impl Decoder) -> Option<Charge> {
        let component = u8::try_from(from.integer()?).ok()?;
        let cost = Amount::from_millionths(from.integer()?)?;
        let number = from.integer()?;
        let place = if from.flag()? { Some(Timestamp::from_micros(from.integer()?)?) } else { None };
        let refunded = Amount::from_millionths(from.integer()?)?;
        is_cost(cost).then_some(Charge { component, cost, number, place, refunded })
    }
}

/// Returns `true` if a recorded charge can have this cost. Charges of zero are not recorded.
pub(super) fn is_cost(cost: Amount) -> bool {
    cost != Amount::ZERO && cost <= Amount::MAX_ARGUMENT
}

/// State for the settlement of a component's charges, kept beside the usage while any of them can be settled.
///
/// The steps of a call, in this order, if they apply: `forget` for each swept charge, `settle`, `before_change`, the
/// change, `charge`. A replica, which has no limits, calls `apply_effect` instead of `settle` and `before_change`.
///
/// ```
/// use ratelimit_core::composite::idempotency::Settlement;
/// use ratelimit_core::algorithm::fixed_window::{FixedWindow, FixedWindowUsage};
/// use ratelimit_core::{Amount, Change, Limit, Period, Timestamp};
///
/// let units = |text| Amount::parse_down(text).unwrap();
/// let limit = FixedWindow::new(units(b"10000"), Period::parse(b"1m").unwrap());
/// let (mut usage, mut settlement, now) = (FixedWindowUsage::default(), Settlement::default(), Timestamp::EPOCH);
/// // A call that may cost 4000 turns out to have cost 1200.
/// limit.charge(&mut usage, now, units(b"4000"));
/// let charge = settlement.charge(&usage, 7, units(b"4000")).unwrap();
/// let change = Change::Charge(units(b"500"));
/// settlement.before_change(&limit, &usage, now, change);
/// change.apply(&limit, &mut usage, now);
/// assert_eq!(settlement.settle(&mut usage, &charge, units(b"2800")), units(b"2800"));
/// assert_eq!(limit.remaining(&usage, now), units(b"8300"));
/// assert!(settlement.is_idle());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Settlement {
    /// Lowest usage since each charge.
    pub(super) low_water_marks: LowWaterMarks,
    /// Sum of refunds, for a usage in which charges have places.
    pub(super) refunded: Amount,
    /// Change by the current call.
    pub(super) delta: SettlementDelta,
}

/// Change of a settlement by one call, apart from the charges that it records or settles. The fields are applied in
/// this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettlementDelta {
    /// Reduction of the usage by a settlement.
    taken: Amount,
    /// Upper bound of all low-water marks from now on; see [`Limit::low_water_mark`].
    low_water_mark: OptionalMark,
    /// Refunded amount, for a usage in which charges have places.
    refunded: Amount,
}

impl Settlement {
    /// Returns `true` if no charge can be settled. The settlement is then equal to a new one and need not be kept.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.low_water_marks.charge_count == 0
    }

    /// Records how `change` restricts later settlements. Must be called before every change, with or without an id. The
    /// usage must not be later than `now`.
    pub fn before_change<L: Limit>(&mut self, limit: &L, usage: &L::Usage, now: Timestamp, change: Change) {
        let refunded = match change {
            Change::Nothing => return,
            Change::Charge(_) => Amount::ZERO,
            Change::Refund(amount) => amount,
        };
        if self.is_idle() {
            return;
        }
        let mark = if usage.is_unused() { Some(Amount::ZERO) } else { limit.low_water_mark(usage, now) };
        // Nothing is lost: if a settlement came before, it was to a higher cost and took nothing back.
        self.delta = SettlementDelta::default();
        match mark {
            // A refund lowers the usage as well.
            Some(mark) => self.delta.low_water_mark = OptionalMark::of(mark.minus(refunded)),
            None => self.delta.refunded = refunded,
        }
        self.apply(self.delta);
    }

    fn apply(&mut self, SettlementDelta { low_water_mark, refunded, .. }: SettlementDelta) {
        if let Some(mark) = low_water_mark.get() {
            self.low_water_marks.lower_all(mark);
        }
        self.refunded = self.refunded.plus(refunded);
    }

    /// Creates the record of a charge of `cost` by a call with an id. Must be called after the charge. Returns `None`
    /// if the numbers of charges are exhausted, which only a crafted payload can cause; the charge cannot be settled
    /// then.
    pub fn charge<U: Usage>(&mut self, usage: &U, component: u8, cost: Amount) -> Option<Charge> {
        debug_assert!(is_cost(cost), "{cost:?} cannot be read");
        let number = self.low_water_marks.charge()?;
        Some(Charge { component, cost, number, place: usage.place(), refunded: self.refunded })
    }

    /// Takes up to `amount` of a charge back, removes the charge, and returns the reduction of the usage.
    pub fn settle<U: Usage>(&mut self, usage: &mut U, charge: &Charge, amount: Amount) -> Amount {
        let taken = usage.take_back(charge.place, amount.min(self.max_taken(charge)));
        self.remove_settled(charge, taken);
        self.delta.taken = taken;
        taken
    }

    /// Returns the upper bound of the amount of a charge that can be taken back.
    fn max_taken(&self, charge: &Charge) -> Amount {
        let mark = self.low_water_marks.mark_of(charge.number).unwrap_or(Amount::MAX);
        if charge.place.is_none() {
            return mark;
        }
        // Once the sum of refunds has saturated, the refunds since the charge are unknown.
        let saturated = self.refunded == Amount::MAX;
        let refunds_since = if saturated { charge.cost } else { self.refunded.minus(charge.refunded) };
        mark.min(charge.cost.minus(refunds_since))
    }

    fn remove_settled(&mut self, charge: &Charge, taken: Amount) {
        self.low_water_marks.settle(charge.number, taken);
        self.forget(charge);
    }

    /// Removes a charge that can no longer be settled.
    pub fn forget(&mut self, charge: &Charge) {
        self.low_water_marks.forget(charge.number);
        if self.is_idle() {
            self.refunded = Amount::ZERO;
        }
    }

    /// Returns the approximate heap memory in bytes.
    #[must_use]
    pub fn heap_size(&self) -> usize {
        self.low_water_marks.heap_size()
    }

    /// Encodes the settlement without the charges, which are recorded with their ids.
    pub fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.refunded.millionths());
        self.low_water_marks.encode(to);
    }

    /// Encodes the change since the last call of this method. Must be called after every change, even if nothing is
    /// propagated.
    pub fn encode_effect(&mut self, to: &mut impl Encoder) {
        std::mem::take(&mut self.delta).encode(to);
    }

    /// Discards the change that [`encode_effect`](Settlement::encode_effect) would encode.
    pub(super) fn discard_effect(&mut self) {
        self.delta = SettlementDelta::default();
    }

    /// Returns `true` if the current call has changed the settlement.
    pub(super) fn has_changed(&self) -> bool {
        self.delta != SettlementDelta::default()
    }

    /// Returns `true` if a call can have had the effect. `settled` is the charge that the call settled, if it
    /// settled one.
    pub fn accepts_effect(&self, from: &mut impl Decoder, settled: Option<&Charge>) -> bool {
        SettlementDelta::decode(from).is_some_and(|delta| {
            let has_other_charges = self.low_water_marks.charge_count > usize::from(settled.is_some());
            let changes = delta.low_water_mark.get().is_some() || delta.refunded != Amount::ZERO;
            let max_taken = settled.map_or(Amount::ZERO, |charge| self.max_taken(charge).min(charge.cost));
            delta.taken <= max_taken && (has_other_charges || !changes)
        })
    }

    /// Applies an accepted effect.
    pub fn apply_effect(&mut self, from: &mut impl Decoder, settled: Option<&Charge>) {
        let delta = SettlementDelta::decode(from).unwrap_or_default();
        if let Some(charge) = settled {
            self.remove_settled(charge, delta.taken);
        }
        self.apply(delta);
    }

    /// Encodes the settlement with the number of charges at each low-water mark.
    pub(super) fn pack(&self, to: &mut impl Encoder) {
        self.encode(to);
        self.low_water_marks.encode_counts(to);
    }

    /// Decodes a settlement encoded by [`pack`](Settlement::pack).
    pub(super) fn unpack(from: &mut impl Decoder) -> Option<Settlement> {
        let mut settlement = Settlement::decode(from)?;
        settlement.low_water_marks.decode_counts(from)?;
        Some(settlement)
    }

    /// Decodes a settlement encoded by [`encode`](Settlement::encode). Every recorded charge of the component must then
    /// be passed to [`count_charge`](Settlement::count_charge), before [`is_sound`](Settlement::is_sound) is checked.
    pub fn decode(from: &mut impl Decoder) -> Option<Settlement> {
        let refunded = Amount::from_millionths(from.integer()?)?;
        Some(Settlement { refunded, low_water_marks: LowWaterMarks::decode(from)?, delta: SettlementDelta::default() })
    }

    /// Counts a recorded charge in a decoded settlement. Returns `true` if the charge is possible.
    pub fn count_charge(&mut self, charge: &Charge) -> bool {
        self.low_water_marks.count_charge(charge.number) && charge.refunded <= self.refunded
    }

    /// Returns `true` if the decoded settlement and the counted charges are possible.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.low_water_marks.is_sound() && (!self.is_idle() || self.refunded == Amount::ZERO)
    }
}

/// Optional low-water mark in one word. An `Option` has padding, and copying it takes 600 more instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OptionalMark(u64);

impl Default for OptionalMark {
    fn default() -> OptionalMark {
        OptionalMark(u64::MAX)
    }
}

impl OptionalMark {
    fn of(mark: Amount) -> OptionalMark {
        OptionalMark(mark.millionths())
    }

    fn get(self) -> Option<Amount> {
        Amount::from_millionths(self.0)
    }
}

impl SettlementDelta {
    const TAKEN: u64 = 1;
    const LOW_WATER_MARK: u64 = 2;
    const REFUNDED: u64 = 4;
    const ALL: u64 = 7;

    /// Encodes the change: the sum of the flags, and then the field of each flag.
    fn encode(self, to: &mut impl Encoder) {
        let taken = Some(self.taken).filter(|taken| *taken != Amount::ZERO);
        let refunded = Some(self.refunded).filter(|refunded| *refunded != Amount::ZERO);
        let fields = [
            (SettlementDelta::TAKEN, taken),
            (SettlementDelta::LOW_WATER_MARK, self.low_water_mark.get()),
            (SettlementDelta::REFUNDED, refunded),
        ];
        to.integer(fields.iter().filter(|(_, field)| field.is_some()).map(|(tag, _)| tag).sum());
        for amount in fields.iter().filter_map(|(_, field)| *field) {
            to.integer(amount.millionths());
        }
    }

    fn decode(from: &mut impl Decoder) -> Option<SettlementDelta> {
        let tags = from.integer()?;
        let mut field =
            |tag| if tags & tag == 0 { Some(None) } else { from.integer().and_then(Amount::from_millionths).map(Some) };
        let taken = field(SettlementDelta::TAKEN)?;
        let mark = field(SettlementDelta::LOW_WATER_MARK)?;
        let refunded = field(SettlementDelta::REFUNDED)?;
        let is_not_zero = |amount: Option<Amount>| amount != Some(Amount::ZERO);
        // A usage has either low-water marks or refunds.
        let has_one_kind = mark.is_none() || refunded.is_none();
        let is_sound = tags <= SettlementDelta::ALL && is_not_zero(taken) && is_not_zero(refunded) && has_one_kind;
        is_sound.then(|| SettlementDelta {
            taken: taken.unwrap_or_default(),
            low_water_mark: mark.map_or_else(OptionalMark::default, OptionalMark::of),
            refunded: refunded.unwrap_or_default(),
        })
    }
}
