//! Policy of the last denial of a key.

use super::*;

#[test]
fn policy_name_is_shared_by_the_keys_that_it_denied() {
    let (mut top, policy) = (SpaceSaving::new(2), Rc::from(&b"gold"[..]));
    for (name, holders) in [("a", 2), ("b", 3), ("a", 3), ("c", 3), ("d", 3)] {
        top.record(name.as_bytes(), None, Some(&policy), us(1));
        assert_eq!(Rc::strong_count(&policy), holders, "{name}");
    }
    top.clear();
    assert_eq!(Rc::strong_count(&policy), 1);
}

#[test]
fn policy_of_the_last_denial_is_reported_until_the_key_is_replaced() {
    let mut top = SpaceSaving::new(2);
    let policies = |top: &SpaceSaving| {
        let rows =
            top.heaviest(9).iter().map(|heavy| (heavy.name.to_vec(), heavy.policy.map(<[u8]>::to_vec))).collect();
        let rows: BTreeMap<Vec<u8>, Option<Vec<u8>>> = rows;
        rows
    };
    let expect = |of: &[(&str, Option<&str>)]| {
        let bytes = |text: &str| text.as_bytes().to_vec();
        of.iter().map(|(name, policy)| (bytes(name), policy.map(bytes))).collect::<BTreeMap<_, _>>()
    };
    let deny = |top: &mut SpaceSaving, name: &str, policy: Option<&str>| {
        let policy = policy.map(|policy| Rc::from(policy.as_bytes()));
        top.record(name.as_bytes(), None, policy.as_ref(), Timestamp::EPOCH);
    };
    deny(&mut top, "a", Some("plan:pro"));
    deny(&mut top, "b", None);
    assert_eq!(policies(&top), expect(&[("a", Some("plan:pro")), ("b", None)]));
    deny(&mut top, "a", Some("gold"));
    deny(&mut top, "a", None);
    assert_eq!(
        policies(&top),
        expect(&[("a", Some("gold")), ("b", None)]),
        "a denial without a policy keeps the last policy"
    );
    top.resize(3);
    assert_eq!(policies(&top), expect(&[("a", Some("gold")), ("b", None)]));
    top.resize(1);
    deny(&mut top, "c", None);
    assert_eq!(policies(&top), expect(&[("c", None)]), "a key that takes over the entry has no policy");
    top.resize(0);
    deny(&mut top, "c", Some("gold"));
    assert_eq!(policies(&top), expect(&[]));
}
