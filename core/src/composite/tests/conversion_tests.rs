//! A plain key that becomes one with components: what is told of it, what that takes, and what is refused.

use super::composite_laws::call_of_text;
use super::script::words;
use super::sent_effects::converted;
use super::{at, seconds};
use crate::Single;
use crate::algorithm::fixed_window::{FixedWindow, FixedWindowUsage};
use crate::algorithm::leases::{Concurrency, ConcurrencyUsage};
use crate::algorithm::log::{SlidingLog, SlidingLogUsage};
use crate::composite::{CompositeEvaluation, CompositeUsage, Held};
use crate::effect::{Effect, Text};
use crate::limit::{Limit, Usage};
use crate::number::{Amount, Span};
use crate::testing::calls::{period, units};
use crate::testing::effort;
use crate::testing::encoded_fields::{EncodedFields, encoded};
use crate::wire::codec::Discard;
use crate::wire::codec::{CHANGE, WHOLE};

/// A key that expires an hour after it was charged.
fn expiry() -> u64 {
    at(3600).floor_millis()
}

fn leases(count: u64) -> ConcurrencyUsage {
    let (mut usage, limit) = (ConcurrencyUsage::default(), Concurrency::new(units(1_000_000), period("1h")));
    for number in 0..count {
        limit.asked_by(format!("holder {number}").as_bytes()).charge(&mut usage, at(0), Amount::ONE);
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
    FixedWindow::new(units(9), period("1h"), false).charge(&mut usage, at(0), Amount::ONE);
    usage
}

/// The text of a conversion by that call, which here and there walks over nothing of what the key remembers.
fn told<U: Single>(plain: &U, text: &str) -> Text {
    let words = words(text);
    let call = call_of_text(&words);
    let [mut here, mut there] = [plain.clone(), plain.clone()];
    let mut told = None;
    let walked = effort::of(|| {
        let seen = CompositeEvaluation::at(&call, Held::plain(&here), at(10));
        let (mut components, ()) = CompositeUsage::convert(&mut here, Some(expiry()), at(10), |components| {
            components.charge(&call, &seen, at(10));
        });
        let text = Text::of_conversion::<U, _>(Some(expiry()), &mut components, 1);
        let Some(Effect::Conversion { version, plain_expiry, mut fields, .. }) = Effect::read::<U>(text.as_bytes())
        else {
            unreachable!()
        };
        assert_eq!(plain_expiry, Some(expiry()));
        assert!(CompositeUsage::accepts_conversion(&there, plain_expiry, &mut fields.clone(), version));
        let followed = CompositeUsage::apply_conversion(&mut there, plain_expiry, &mut fields);
        told = Some((text, components, followed));
    });
    let (text, components, followed) = told.unwrap();
    assert_eq!((walked, here.is_unused(), there.is_unused()), (0, true, true));
    assert_eq!(encoded(&followed), encoded(&components));
    text
}

#[test]
fn a_conversion_tells_and_walks_as_little_of_a_large_key_as_of_a_small_one() {
    fn length<U: Single>(plain: &U, text: &str) -> usize {
        told(plain, text).as_bytes().len()
    }
    for text in ["CONCURRENCY 1000000 1h me FIXED 9 1h", "CONCURRENCY 1000000 1h me AS name"] {
        assert_eq!(length(&leases(2000), text), length(&leases(1), text), "{text}");
    }
    for text in ["SLIDINGLOG 1000000 1h FIXED 9 1h", "ONCE id 1h SLIDINGLOG 1000000 1h", "FIXED 9 1h AS name"] {
        assert_eq!(length(&log(2000), text), length(&log(1), text), "{text}");
    }
}

#[test]
fn a_conversion_is_refused_unless_it_is_a_change_of_what_is_there() {
    // When, nothing moved back, more is told: no id, no component, and a ban without strikes.
    let ban = EncodedFields::integers([CHANGE, at(10).micros(), 0, 1, 0, 0, 1, at(70).micros(), 0]);
    let components = converted(&window(), Some(expiry()), &ban).unwrap();
    assert_eq!(
        (components.components.len(), components.components[0].recovers_at, components.banned(at(10))),
        (1, at(3600), seconds(60))
    );
    for (why, refused) in [
        ("the whole", ban.with(0, WHOLE)),
        ("moved back once more", ban.with(2, 1)),
        ("nothing is changed", EncodedFields::integers([CHANGE, at(10).micros(), 0, 0])),
        ("no ban, and then one is left over", ban.with(6, 0)),
        ("a ban for too long", ban.with(7, at(10).plus(Span::MAX_ARGUMENT).micros() + 1)),
    ] {
        assert!(converted(&window(), Some(expiry()), &refused).is_none(), "{why}");
    }
    // What is told of leases fits no window.
    let text = told(&leases(2), "CONCURRENCY 9 1h me AS name");
    let Some(Effect::Conversion { version, fields, .. }) = Effect::read::<ConcurrencyUsage>(text.as_bytes()) else {
        unreachable!()
    };
    let leases = leases(2);
    assert!(CompositeUsage::accepts_conversion(&leases, Some(expiry()), &mut fields.clone(), version));
    assert!(!CompositeUsage::accepts_conversion(&window(), Some(expiry()), &mut fields.clone(), version));
    assert!(!CompositeUsage::accepts_conversion(&leases, Some(expiry()), &mut fields.clone(), version + 1));
    // Nor does a plain key of any kind read it as one of its own.
    assert!(Effect::read::<FixedWindowUsage>(text.as_bytes()).is_none());
}
