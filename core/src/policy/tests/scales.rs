//! Scales with a duration, and the effect of sets and deletions on a scale.

use super::*;

#[test]
fn scale_ends_after_its_duration() {
    let mut table = Table::of_node(1);
    let scaled = |table: &Table, second| {
        let facts = table.get(b"pro", at(second)).unwrap();
        let millis_left = facts.scale_left.map(Span::ceil_millis);
        (table.policy("pro", at(second)).unwrap(), facts.scale.to_string(), millis_left)
    };
    let (half, whole) = ("TOKENBUCKET 30 30 1m".to_owned(), MINUTE_LIMIT.to_owned());
    table.must_set("pro", MINUTE_LIMIT, at(0));
    table.must_scale("pro", "0.5", Some(60), at(10));
    assert_eq!(scaled(&table, 10), (half.clone(), "0.5".to_owned(), Some(60_000)));
    assert_eq!(scaled(&table, 69), (half.clone(), "0.5".to_owned(), Some(1000)));
    assert_eq!(scaled(&table, 70), (whole.clone(), "1".to_owned(), None));
    // The last scale applies, with a shorter duration or without an end.
    table.must_scale("pro", "0.5", None, at(80));
    assert_eq!(scaled(&table, 1_000_000), (half, "0.5".to_owned(), None));
    table.must_scale("pro", "2", Some(1), at(81));
    assert_eq!(scaled(&table, 81).0, "TOKENBUCKET 120 120 1m");
    assert_eq!(scaled(&table, 82).0, whole);
    table.must_scale("pro", "1", None, at(83));
    assert_eq!(scaled(&table, 83), (whole, "1".to_owned(), None));
}

#[test]
fn scale_is_exact_to_the_microsecond_and_may_end_after_the_last_timestamp() {
    let mut table = Table::of_node(1);
    let now = Timestamp::from_micros(1_700_000_000_123_456).unwrap();
    table.must_set("pro", MINUTE_LIMIT, now);
    let scaling = scaling_to("3", Period::parse(b"60s"));
    let facts = table.scale(b"pro", scaling, now).unwrap().facts;
    assert_eq!(facts.version, now.micros());
    assert_eq!((facts.scale, facts.scale_left), (factor("3"), Some(Span::SECOND.times(60))));
    let facts = table.scale(b"pro", Scaling { duration: Period::parse(b"3650d"), ..scaling }, Timestamp::MAX);
    // The scale ends after the last timestamp.
    assert_eq!(facts.unwrap().facts.scale_left, Some(Span::SECOND.times(86_400 * 3650)));
    let refused = table.scale(b"pro", scaling, Timestamp::MAX).unwrap_err();
    assert_eq!(refused.to_string(), "ERR the policy already has the highest possible version");
}

#[test]
fn set_keeps_the_scale_and_deletion_drops_it() {
    let mut table = Table::of_node(1);
    table.must_set("pro", MINUTE_LIMIT, at(0));
    table.must_scale("pro", "0.5", None, at(1));
    table.must_set("pro", HOUR_LIMIT, at(2));
    assert_eq!(table.policy("pro", at(3)), Ok("FIXED 500 1h".to_owned()));
    assert_eq!(
        &*table.get(b"pro", at(3)).unwrap().specs,
        HOUR_LIMIT.as_bytes(),
        "the description shows the unscaled limit"
    );
    table.delete(b"pro", at(4)).unwrap();
    table.must_set("pro", HOUR_LIMIT, at(5));
    assert_eq!(table.policy("pro", at(6)), Ok(HOUR_LIMIT.to_owned()));
    assert_eq!(table.get(b"pro", at(6)).unwrap().scale, Amount::ONE);
}

#[test]
fn scaling_a_missing_policy_is_rejected() {
    let mut table = Table::of_node(1);
    let scaling = scaling_to("0", None);
    assert_eq!(table.scale(b"pro", scaling, at(0)).unwrap_err().to_string(), "NOPOLICY no policy 'pro'");
    table.must_set("pro", MINUTE_LIMIT, at(0));
    table.delete(b"pro", at(1)).unwrap();
    assert_eq!(table.scale(b"pro", scaling, at(2)).unwrap_err().to_string(), "NOPOLICY no policy 'pro'");
}

#[test]
fn concurrent_set_and_scale_on_two_servers_are_merged() {
    let (mut here, mut there) = (Table::of_node(1), Table::of_node(2));
    here.must_set("pro", MINUTE_LIMIT, at(0));
    there.receive(&here.initial_record("pro").unwrap(), at(0));
    here.must_set("pro", HOUR_LIMIT, at(1));
    there.must_scale("pro", "0.5", None, at(1));
    let records = [&here, &there].map(|table| table.initial_record("pro").unwrap());
    assert_eq!(here.receive(&records[1], at(2)), MergeOutcome::Changed);
    assert_eq!(there.receive(&records[0], at(2)), MergeOutcome::Changed);
    for table in [here, there] {
        assert_eq!(table.policy("pro", at(3)), Ok("FIXED 500 1h".to_owned()));
    }
}
