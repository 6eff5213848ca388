//! Policy of the last denial of a key.

use super::*;

#[test]
fn policy_name_is_shared_by_the_keys_that_it_denied() {
    let (mut sketch, policy) = (SpaceSaving::new(2), Rc::from(&b"gold"[..]));
    for (name, holders) in [("a", 2), ("b", 3), ("a", 3), ("c", 3), ("d", 3)] {
        sketch.record(name.as_bytes(), None, Some(&policy), us(1));
        assert_eq!(Rc::strong_count(&policy), holders, "{name}");
    }
    sketch.clear();
    assert_eq!(Rc::strong_count(&policy), 1);
}

#[test]
fn policy_of_the_last_denial_is_reported_until_the_key_is_replaced() {
    let mut sketch = SpaceSaving::new(2);
    let policies = |sketch: &SpaceSaving| {
        let rows =
            sketch.heaviest(9).iter().map(|heavy| (heavy.name.to_vec(), heavy.policy.map(<[u8]>::to_vec))).collect();
        let rows: BTreeMap<Vec<u8>, Option<Vec<u8>>> = rows;
        rows
    };
    let expected = |rows: &[(&str, Option<&str>)]| {
        let bytes = |text: &str| text.as_bytes().to_vec();
        rows.iter().map(|(name, policy)| (bytes(name), policy.map(bytes))).collect::<BTreeMap<_, _>>()
    };
    let deny = |sketch: &mut SpaceSaving, name: &str, policy: Option<&str>| {
        let policy = policy.map(|policy| Rc::from(policy.as_bytes()));
        sketch.record(name.as_bytes(), None, policy.as_ref(), Timestamp::EPOCH);
    };
    deny(&mut sketch, "a", Some("plan:pro"));
    deny(&mut sketch, "b", None);
    assert_eq!(policies(&sketch), expected(&[("a", Some("plan:pro")), ("b", None)]));
    deny(&mut sketch, "a", Some("gold"));
    deny(&mut sketch, "a", None);
    assert_eq!(
        policies(&sketch),
        expected(&[("a", Some("gold")), ("b", None)]),
        "a denial without a policy keeps the last policy"
    );
    sketch.resize(3);
    assert_eq!(policies(&sketch), expected(&[("a", Some("gold")), ("b", None)]));
    sketch.resize(1);
    deny(&mut sketch, "c", None);
    assert_eq!(policies(&sketch), expected(&[("c", None)]), "a key that takes over the entry has no policy");
    sketch.resize(0);
    deny(&mut sketch, "c", Some("gold"));
    assert_eq!(policies(&sketch), expected(&[]));
}
