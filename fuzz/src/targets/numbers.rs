//! Amounts, durations and whole numbers from any bytes: rejected, or rounded by less than a unit and in range.

use ratelimit_core::wire::args::whole;
use ratelimit_core::{Amount, Period, Span};

pub fn run(text: &[u8]) {
    let (down, up) = (Amount::parse_down(text), Amount::parse_up(text));
    assert_eq!(down.is_some(), up.is_some());
    if let (Some(down), Some(up)) = (down, up) {
        assert!(text.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'+' | b'-')));
        assert!(up <= Amount::MAX_ARGUMENT);
        assert!(matches!(up.millionths() - down.millionths(), 0 | 1));
        // The same number in plain digits is parsed to the same amount.
        let plain = format!("{}.{:06}", down.whole_units(), down.minus(down.floor()).millionths());
        assert_eq!(Amount::parse_down(plain.as_bytes()), Some(down));
        assert_eq!(Amount::parse_up(plain.as_bytes()), Some(down));
    }
    if let Some(span) = Span::parse(text) {
        assert_eq!(Period::parse(text).is_some(), span != Span::ZERO);
        let plain = format!("{}us", span.micros());
        assert_eq!(Span::parse(plain.as_bytes()), Some(span));
    }
    // Numbers of RL.THROTTLE, numkeys, and fields of effects.
    if let Some(count) = whole(text, u64::MAX) {
        assert!(text.iter().all(u8::is_ascii_digit));
        assert_eq!(whole(count.to_string().as_bytes(), count), Some(count));
        assert_eq!(whole(text, count), Some(count));
        assert_eq!(count.checked_sub(1).and_then(|max| whole(text, max)), None);
        // The same text as an amount is the same number.
        let amount = Amount::parse_down(text).map(Amount::whole_units);
        assert_eq!(amount, (count <= Amount::MAX_ARGUMENT.whole_units()).then_some(count));
    }
}
