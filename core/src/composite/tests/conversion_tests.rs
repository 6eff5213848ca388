//! Conversion of a plain key to a composite key: its effect, its cost, and effects that are rejected.

use super::composite_laws::call_of_text;
use super::script::words;
use super::sent_effects::after_conversion;
use super::{at, seconds};
use crate::PlainUsage;
use crate::algorithm::fixed_window::{FixedWindow, FixedWindowUsage};
use crate::algorithm::leases::{Concurrency, ConcurrencyUsage};
use crate::algorithm::log::{SlidingLog, SlidingLogUsage};
use crate::composite::component_head::TAGGED_CHANGE;
use crate::composite::{CompositeEvaluation, CompositeUsage, StoredUsage};
use crate::effect::{Effect, EncodedText};
use crate::limit::{Limit, Usage};
use crate::number::{Amount, Span};
use crate::testing::calls::{period, units};
use crate::testing::encoded_fields::{EncodedFields, encoded};
use crate::testing::step_counter;
use crate::wire::codec::Discard;
use crate::wire::codec::WHOLE;

/// Returns the expiry of a key one hour after its charge.
fn expiry() -> u64 {
    at(3600).floor_millis()
}

fn leases(count: u64) -> ConcurrencyUsage {
    let (mut usage, limit) = (ConcurrencyUsage::default(), Concurrency::new(units(1_000_000), period("1h")));
    for number in 0..count {
        limit.for_holder(format!("holder {number}").as_bytes()).charge(&mut usage, at(0), Amount::ONE);
        usage.encode_effect(&mut Discard);
    }
    usage
}

fn log(count: u64) -> SlidingLogUsage {
    let (mut usage, limit) = (SlidingLogUsage::default(), SlidingLog::new(units(1_000_000), period("1h")));
    for number in 0..count {
        let now = at(0).plus(Span::from_micros(number));
        limit.charge(&mut usage, now, Amount::ONE);
        usage.encode_effect(&mut Discard);
    }
    usage
}

fn window() -> FixedWindowUsage {
    let mut usage = FixedWindowUsage::default();
    FixedWindow::new(units(9), period("1h")).charge(&mut usage, at(0), Amount::ONE);
    usage
}

/// Converts a plain key by a call, and returns the effect. Asserts that neither the primary nor the replica visits the
/// entries of the key.
fn conversion_effect<U: PlainUsage>(plain: &U, text: &str) -> EncodedText {
    let words = words(text);
    let call = call_of_text(&words);
    let [mut primary, mut replica] = [plain.clone(), plain.clone()];
    let mut results = None;
    let visited = step_counter::count(|| {
        let evaluation = CompositeEvaluation::at(&call, StoredUsage::plain(&primary), at(10));
        let (mut components, ()) = CompositeUsage::convert(&mut primary, Some(expiry()), at(10), |components| {
            components.charge(&call, &evaluation, at(10));
        });
        let text = EncodedText::of_conversion::<U, _>(Some(expiry()), &mut components, 1);
        let Some(Effect::Conversion { version, plain_expiry, mut fields, .. }) = Effect::decode::<U>(text.as_bytes())
        else {
            unreachable!()
        };
        assert_eq!(plain_expiry, Some(expiry()));
        assert!(CompositeUsage::accepts_conversion(&replica, plain_expiry, &mut fields.clone(), version));
        let replicated = CompositeUsage::apply_conversion(&mut replica, plain_expiry, &mut fields);
        results = Some((text, components, replicated));
    });
    let (text, components, replicated) = results.unwrap();
    assert_eq!((visited, primary.is_unused(), replica.is_unused()), (0, true, true));
    assert_eq!(encoded(&replicated), encoded(&components));
    text
}

#[test]
fn conversion_effect_is_independent_of_the_size_of_the_key() {
    fn length<U: PlainUsage>(plain: &U, text: &str) -> usize {
        conversion_effect(plain, text).as_bytes().len()
    }
    for text in ["CONCURRENCY 1000000 1h me FIXED 9 1h", "CONCURRENCY 1000000 1h me AS name"] {
        assert_eq!(length(&leases(2000), text), length(&leases(1), text), "{text}");
    }
    for text in ["SLIDINGLOG 1000000 1h FIXED 9 1h", "ONCE id 1h SLIDINGLOG 1000000 1h", "FIXED 9 1h AS name"] {
        assert_eq!(length(&log(2000), text), length(&log(1), text), "{text}");
    }
}

#[test]
fn impossible_conversion_is_rejected() {
    // The time, no move back, a full change: no id, no component, and a ban without strikes.
    let ban = EncodedFields::integers([TAGGED_CHANGE, at(10).micros(), 0, 1, 0, 0, 1, at(70).micros(), 0]);
    let components = after_conversion(&window(), Some(expiry()), &ban).unwrap();
    assert_eq!(
        (components.components.len(), components.components[0].recovers_at, components.remaining_ban(at(10))),
        (1, at(3600), seconds(60))
    );
    for (case, rejected) in [
        ("whole state", ban.with(0, WHOLE)),
        ("moved back again", ban.with(2, 1)),
        ("no change", EncodedFields::integers([TAGGED_CHANGE, at(10).micros(), 0, 0])),
        ("fields of a ban without a ban", ban.with(6, 0)),
        ("duration of the ban out of range", ban.with(7, at(10).plus(Span::MAX_ARGUMENT).micros() + 1)),
    ] {
        assert!(after_conversion(&window(), Some(expiry()), &rejected).is_none(), "{case}");
    }
    // A fixed window rejects the effect of a conversion of leases.
    let text = conversion_effect(&leases(2), "CONCURRENCY 9 1h me AS name");
    let Some(Effect::Conversion { version, fields, .. }) = Effect::decode::<ConcurrencyUsage>(text.as_bytes()) else {
        unreachable!()
    };
    let leases = leases(2);
    assert!(CompositeUsage::accepts_conversion(&leases, Some(expiry()), &mut fields.clone(), version));
    assert!(!CompositeUsage::accepts_conversion(&window(), Some(expiry()), &mut fields.clone(), version));
    assert!(!CompositeUsage::accepts_conversion(&leases, Some(expiry()), &mut fields.clone(), version + 1));
    // The effect names its kind, so it cannot be decoded for another kind.
    assert!(Effect::decode::<FixedWindowUsage>(text.as_bytes()).is_none());
}
