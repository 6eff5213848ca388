use super::{Asked, Question, identified};
use crate::ask::{Call, Rule, Verb};
use ratelimit_core::Amount;

fn asked(key: &str, verb: Verb, id: Option<&str>) -> Asked {
    let call = Call {
        key: key.as_bytes().to_vec(),
        rule: Rule::Policies(vec!["p".into()]),
        verb,
        id: id.map(|id| id.as_bytes().to_vec()),
        remembered: "5m".into(),
    };
    Asked::Server(Question { call, shadow: false, quota: false, metric: None })
}

#[test]
fn one_call_that_charges_needs_no_id() {
    let one =
        identified(&[asked("a", Verb::Take(Amount::ONE), None), asked("b", Verb::Take(Amount::ZERO), None)], true);
    assert!(one.iter().all(|call| call.id.is_none()));
}

#[test]
fn several_calls_have_ids_to_undo_them_by() {
    let parts = [asked("a", Verb::Take(Amount::ONE), None), asked("b", Verb::Take(Amount::ONE), Some("x"))];
    let several = identified(&parts, true);
    assert_eq!((several[0].id.as_ref().map(Vec::len), several[0].remembered.as_str()), (Some(16), "2s"));
    assert_eq!((several[1].id.as_deref(), several[1].remembered.as_str()), (Some(&b"x"[..]), "5m"));
    assert!(identified(&parts, false)[0].id.is_none());
}

#[test]
fn the_same_key_again_is_another_call() {
    let part = || asked("a", Verb::Take(Amount::ONE), Some("x"));
    let ids: Vec<_> = identified(&[part(), part(), part()], true).iter().map(|call| call.id.clone()).collect();
    assert_eq!(ids, [Some(b"x".to_vec()), Some(b"x#2".to_vec()), Some(b"x#3".to_vec())]);
}
