//! Settlement of a charge after its actual cost is known.

use super::low_water_marks::LowWaterMarks;
use crate::evaluate::Change;
use crate::limit::{Limit, Usage};
use crate::number::{Amount, Timestamp};
use crate::wire::codec::{Decoder, Encoder};

/// Charge that can be settled, recorded with the id of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Serial number of the charged component.
    pub component: u8,
    /// Charged amount.
    pub cost: Amount,
    /// Number among the charges of the component.
    pub(super) number: u64,
    /// Place of the charge in the usage, if it has one.
    pub(super) place: Option<Timestamp>,
    /// Sum of refunds before the charge.
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
        let place = match from.integer()? {
            0 => None,
            1 => Some(Timestamp::from_micros(from.integer()?)?),
            _ => return None,
        };
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
/// The steps of a call, in this order, if they apply: `forget` each swept charge, `settle`, `before` a change, the
/// change, `charge`. A replica, which has no limits, calls `apply_effect` instead of `settle` and `before`.
///
/// ```
/// use ratelimit_core::composite::idempotency::Settlement;
/// use ratelimit_core::algorithm::fixed_window::{FixedWindow, FixedWindowUsage};
/// use ratelimit_core::{Amount, Change, Limit, Period, Timestamp};
///
/// let units = |text| Amount::parse_down(text).unwrap();
/// let limit = FixedWindow::new(units(b"10000"), Period::parse(b"1m").unwrap(), false);
/// let (mut usage, mut settlement, now) = (FixedWindowUsage::default(), Settlement::default(), Timestamp::EPOCH);
/// // A call that may cost 4000 turns out to have cost 1200.
/// limit.charge(&mut usage, now, units(b"4000"));
/// let charge = settlement.charge(&usage, 7, units(b"4000")).unwrap();
/// let change = Change::Charge(units(b"500"));
/// settlement.before(&limit, &usage, now, change);
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
    /// Upper bound of the usage before a change.
    low: Low,
    /// Refunded amount.
    refunded: Amount,
}

impl Settlement {
    /// Returns `true` if no charge can be settled. The settlement is then equal to a new one and need not be kept.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.low_water_marks.is_idle()
    }

    /// Records the effect of `change` on later settlements. Must be called before every change, with or without an id.
    /// The usage must not be later than `now`.
    pub fn before<L: Limit>(&mut self, limit: &L, usage: &L::Usage, now: Timestamp, change: Change) {
        let refunded = match change {
            Change::Nothing => return,
            Change::Charge(_) => Amount::ZERO,
            Change::Refund(amount) => amount,
        };
        if self.is_idle() {
            return;
        }
        let low = if usage.is_unused() { Some(Amount::ZERO) } else { limit.low(usage, now) };
        // A settlement to a higher cost takes nothing back.
        self.delta = match low {
            // A refund lowers the usage as well.
            Some(low) => SettlementDelta { low: Low::of(low.minus(refunded)), ..SettlementDelta::default() },
            None => SettlementDelta { refunded, ..SettlementDelta::default() },
        };
        self.record(self.delta);
    }

    fn record(&mut self, SettlementDelta { low, refunded, .. }: SettlementDelta) {
        if let Some(low) = low.get() {
            self.low_water_marks.low(low);
        }
        self.refunded = self.refunded.plus(refunded);
    }

    /// Creates the record of a charge of `cost` by a call with an id. Must be called after the charge. `None` if the
    /// numbers are exhausted, which no calls can lead to; then the charge cannot be settled.
    pub fn charge<U: Usage>(&mut self, usage: &U, component: u8, cost: Amount) -> Option<Charge> {
        debug_assert!(is_cost(cost), "{cost:?} cannot be read");
        let number = self.low_water_marks.charge()?;
        Some(Charge { component, cost, number, place: usage.place(), refunded: self.refunded })
    }

    /// Takes up to `less` of a charge back, forgets the charge, and returns the reduction of the usage.
    pub fn settle<U: Usage>(&mut self, usage: &mut U, charge: &Charge, less: Amount) -> Amount {
        let taken = usage.take_back(charge.place, less.min(self.most(charge)));
        self.settled(charge, taken);
        self.delta.taken = taken;
        taken
    }

    /// Returns the upper bound of the amount of a charge that can be taken back.
    fn most(&self, charge: &Charge) -> Amount {
        let low_water_marks = self.low_water_marks.least(charge.number).unwrap_or(Amount::MAX);
        if charge.place.is_none() {
            return low_water_marks;
        }
        // Once the sum of refunds has saturated, the refunds since the charge are unknown.
        let saturated = self.refunded == Amount::MAX;
        let since = if saturated { charge.cost } else { self.refunded.minus(charge.refunded) };
        low_water_marks.min(charge.cost.minus(since))
    }

    fn settled(&mut self, charge: &Charge, taken: Amount) {
        self.low_water_marks.lower(charge.number, taken);
        self.forget(charge);
    }

    /// Forgets a charge whose id was swept before its settlement.
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

    /// Forgets what [`encode_effect`](Settlement::encode_effect) would write.
    pub(super) fn discard_effect(&mut self) {
        self.delta = SettlementDelta::default();
    }

    /// Returns `true` if the current call has changed the settlement.
    pub(super) fn has_changed(&self) -> bool {
        self.delta != SettlementDelta::default()
    }

    /// Returns `true` if a call can have had the effect. `settled` is the charge that it settled, if any.
    pub fn accepts_effect(&self, from: &mut impl Decoder, settled: Option<&Charge>) -> bool {
        SettlementDelta::decode(from).is_some_and(|delta| {
            let left = self.low_water_marks.live() > usize::from(settled.is_some());
            let changes = delta.low.get().is_some() || delta.refunded != Amount::ZERO;
            let most = settled.map_or(Amount::ZERO, |charge| self.most(charge).min(charge.cost));
            delta.taken <= most && (left || !changes)
        })
    }

    /// Applies an accepted effect.
    pub fn apply_effect(&mut self, from: &mut impl Decoder, settled: Option<&Charge>) {
        let delta = SettlementDelta::decode(from).unwrap_or_default();
        if let Some(charge) = settled {
            self.settled(charge, delta.taken);
        }
        self.record(delta);
    }

    /// Encodes the settlement with the number of charges at each low-water mark.
    pub(super) fn pack(&self, to: &mut impl Encoder) {
        to.integer(self.refunded.millionths());
        self.low_water_marks.pack(to);
    }

    /// Decodes what [`pack`](Settlement::pack) wrote.
    pub(super) fn unpack(from: &mut impl Decoder) -> Option<Settlement> {
        let refunded = Amount::from_millionths(from.integer()?)?;
        let low_water_marks = LowWaterMarks::unpack(from)?;
        Some(Settlement { low_water_marks, refunded, delta: SettlementDelta::default() })
    }

    /// Decodes what [`encode`](Settlement::encode) wrote. Every recorded charge of the component must then be passed to
    /// [`count`](Settlement::count), before [`is_sound`](Settlement::is_sound) is checked.
    pub fn decode(from: &mut impl Decoder) -> Option<Settlement> {
        let refunded = Amount::from_millionths(from.integer()?)?;
        Some(Settlement { refunded, low_water_marks: LowWaterMarks::decode(from)?, delta: SettlementDelta::default() })
    }

    /// Counts a charge of a decoded settlement; returns `true` if such a charge is possible.
    pub fn count(&mut self, charge: &Charge) -> bool {
        self.low_water_marks.count(charge.number) && charge.refunded <= self.refunded
    }

    /// Returns `true` if the decoded settlement and the counted charges are possible.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.low_water_marks.is_sound() && (!self.is_idle() || self.refunded == Amount::ZERO)
    }
}

/// Low-water mark, or none, in one word. An `Option` has padding, and copying it takes 600 more instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Low(u64);

impl Default for Low {
    fn default() -> Low {
        Low(u64::MAX)
    }
}

impl Low {
    fn of(low: Amount) -> Low {
        Low(low.millionths())
    }

    fn get(self) -> Option<Amount> {
        Amount::from_millionths(self.0)
    }
}

impl SettlementDelta {
    const TAKEN: u64 = 1;
    const LOW: u64 = 2;
    const REFUNDED: u64 = 4;
    const ALL: u64 = 7;

    /// Encodes the change.
    pub(super) fn encode(self, to: &mut impl Encoder) {
        let taken = Some(self.taken).filter(|taken| *taken != Amount::ZERO);
        let refunded = Some(self.refunded).filter(|refunded| *refunded != Amount::ZERO);
        let fields = [
            (SettlementDelta::TAKEN, taken),
            (SettlementDelta::LOW, self.low.get()),
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
        let (taken, low, refunded) =
            (field(SettlementDelta::TAKEN)?, field(SettlementDelta::LOW)?, field(SettlementDelta::REFUNDED)?);
        let some = |amount: Option<Amount>| amount != Some(Amount::ZERO);
        // A usage has either low-water marks or refunds.
        let one = low.is_none() || refunded.is_none();
        let sound = tags <= SettlementDelta::ALL && some(taken) && some(refunded) && one;
        sound.then(|| SettlementDelta {
            taken: taken.unwrap_or_default(),
            low: low.map_or_else(Low::default, Low::of),
            refunded: refunded.unwrap_or_default(),
        })
    }
}
