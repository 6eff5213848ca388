use super::*;
use crate::algorithm::bucket::{Bucket, BucketUsage, Discipline};
use crate::limit::sealed::Sealed;
use crate::limit::{InfoField, Limit};
use crate::number::{Amount, Period, Span, Timestamp};
use crate::usage_kind::UsageKind;
use crate::wire::codec::{Decoder, Encoder};

/// Usage of one number, with a faulty decoder: it rejects 7 and decodes 8 as 9.
#[derive(Clone, Debug, Default)]
struct Number(u64);

impl Sealed for Number {}

impl Usage for Number {
    const KIND: UsageKind = UsageKind::Bucket;

    fn is_unused(&self) -> bool {
        self.0 == 0
    }

    fn ahead(&self, _now: Timestamp) -> Span {
        Span::ZERO
    }

    fn move_back(&mut self, _now: Timestamp) {}

    fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.0);
    }

    fn decode(from: &mut impl Decoder, _version: u32) -> Option<Number> {
        match from.integer()? {
            7 => None,
            8 => Some(Number(9)),
            number => Some(Number(number)),
        }
    }

    fn describe(&self, _now: Timestamp, _recovers_at: Option<Timestamp>) -> Vec<(&'static str, InfoField)> {
        Vec::new()
    }
}

fn effect_of(number: u64) -> EncodedText {
    EncodedText::of_change(&mut Number(number), 1)
}

#[test]
fn usage_that_is_decoded_to_the_same_state_passes() {
    assert_eq!(check_stored(&Number(3)), Ok(()));
    assert_eq!(check_effect(&Number(1), &effect_of(3), &Number(3)), Ok(()));
}

#[test]
fn usage_that_is_rejected_or_decoded_differently_fails() {
    let message = |result: Result<(), RoundTripError>| result.unwrap_err().to_string();
    assert_eq!(message(check_stored(&Number(7))), "the stored usage is rejected:  7");
    assert_eq!(message(check_stored(&Number(8))), "the stored usage is decoded to another state:  8");
    assert_eq!(message(check_effect(&Number(1), &effect_of(7), &Number(7))), "the effect is rejected: rl-bucket 1 1 7");
    assert_eq!(
        message(check_effect(&Number(1), &effect_of(3), &Number(4))),
        "the effect gives another state: rl-bucket 1 1 3"
    );
    let deletion = EncodedText::deletion::<Number>();
    assert_eq!(message(check_effect(&Number(1), &deletion, &Number(0))), "the effect is rejected: rl-bucket del");
}

#[test]
fn unused_usage_passes() {
    assert_eq!(check_stored(&Number(0)), Ok(()));
}

#[test]
fn effect_with_trailing_fields_fails() {
    let (mut usage, second) = (BucketUsage::default(), Period::new(Span::SECOND).unwrap());
    let bucket = Bucket::new(Amount::ONE, Amount::ONE, second, Discipline::Burst).unwrap();
    bucket.charge(&mut usage, Timestamp::EPOCH, Amount::ONE);
    let mut text = EncodedText::of_change(&mut usage, 1);
    assert_eq!(check_effect(&BucketUsage::default(), &text, &usage), Ok(()));
    text.integer(0);
    assert!(check_effect(&BucketUsage::default(), &text, &usage).is_err());
}
