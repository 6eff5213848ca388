//! Calls by a policy: limits in shadow mode, leases by the id of the call, changed definitions and scales.

mod scaled_policies;

use super::script::{ALL, CallText, PLAIN, histories, limits, policy};
use super::server::{CallError, Server, Value};
use super::{at, composite_laws, remaining_units, seconds};
use crate::algorithm::any::with_usage;
use crate::composite::Answer;
use crate::evaluate::Request;
use crate::limit::{Decision, Usage, Verdict};
use crate::number::{Amount, Span, Timestamp};
use crate::wire::error::Error;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Granted without a hold.
const GRANTED: Verdict = Verdict::Allowed(Span::ZERO);

impl Server {
    /// Runs RL.LIMIT with a policy of these words.
    fn limit(&mut self, options: &str, policy: &str, second: u64) -> Answer {
        self.limit_scaled(options, policy, "1", second)
    }

    /// Runs RL.LIMIT with a policy of these words, scaled by a factor.
    fn limit_scaled(&mut self, options: &str, policy: &str, factor: &'static str, second: u64) -> Answer {
        composite_laws::run_call(self, &CallText::by_policy(options, policy, factor), at(second), false).unwrap().answer
    }

    /// Runs RL.LIMIT and asserts that it writes nothing.
    fn limit_without_write(&mut self, options: &str, policy: &str, second: u64) -> Answer {
        let before = self.key_as_stored();
        let answer = self.limit(options, policy, second);
        assert_eq!(self.key_as_stored(), before, "{options} {policy}");
        answer
    }

    fn lease_count(&self) -> usize {
        let components = self.components().into_iter().flat_map(|components| &components.components);
        let leases = components.filter(|component| component.usage.kind() == crate::usage_kind::UsageKind::Concurrency);
        leases.map(|component| with_usage!(&component.usage, usage => usage.entries())).sum()
    }
}

fn granted_units(answer: &Answer) -> Vec<Option<u64>> {
    answer.each.iter().map(|decision| decision.granted.map(Amount::whole_units)).collect()
}

fn is_unlimited(answer: &Answer) -> bool {
    let Decision { limit, remaining, reset, .. } = answer.decision;
    (limit, remaining, reset) == (Amount::MAX_ARGUMENT, Amount::MAX_ARGUMENT, Span::ZERO)
}

#[test]
fn shadow_limit_is_charged_with_the_others_and_never_denies_or_governs() {
    let mut server = Server::default();
    let policy = "FIXED 3 1h SLIDINGLOG 2 1h SHADOW";
    for (enforced, shadow, denied) in [(2, 1, false), (1, 0, false), (0, 0, true)] {
        let answer = server.limit("", policy, 0);
        assert_eq!((answer.decision.verdict, answer.decision.limit.whole_units()), (GRANTED, 3));
        assert_eq!((remaining_units(&answer), answer.shadow_denied), (vec![enforced, shadow], denied));
    }
    assert_eq!(server.limit("EACH", policy, 0).each[1].verdict, Verdict::After(seconds(3600)));
    // A call denied by the other limits is not charged, and is no denial by the limit in shadow mode.
    let denied = server.limit_without_write("", "FIXED 3 1h SLIDINGLOG 9 1h SHADOW", 0);
    assert_eq!((denied.decision.verdict, denied.each[1].verdict), (Verdict::After(seconds(3600)), GRANTED));
    assert!(!denied.shadow_denied);
}

#[test]
fn policy_in_shadow_mode_is_unlimited() {
    let policy = "FIXED 2 1h SHADOW LEAKYBUCKET 9 1 1h SHADOW";
    let mut server = Server::default();
    for text in ["", "", "", "COST 5 FORCE", "COST 3 MAXWAIT 1s", "COST 0", "COST -1", "KEEP 1"] {
        let answer = server.limit(text, policy, 0);
        assert!(answer.decision.verdict == GRANTED && is_unlimited(&answer), "{text}");
    }
    let upto = server.limit("COST 7 UPTO", policy, 0);
    assert_eq!((upto.decision.granted.unwrap().whole_units(), granted_units(&upto)), (7, vec![Some(0), Some(0)]));
    // An unknown id cannot be settled by a policy in shadow mode either.
    assert_eq!(server.limit("SETTLE r9 1", policy, 0).decision.verdict, Verdict::Never);
    server.ban(seconds(60), at(0));
    assert_eq!(server.limit_without_write("", policy, 0).decision.verdict, Verdict::After(seconds(60)));
    let empty = &mut Server::default();
    assert_eq!(granted_units(&empty.limit("COST 2 UPTO ONCE r1 1h", policy, 0)), [Some(2), Some(2)]);
    let repetition = empty.limit_without_write("COST 2 UPTO ONCE r1 1h", policy, 0);
    assert_eq!((repetition.repeated, granted_units(&repetition)), (true, vec![Some(2), Some(2)]));
    assert_eq!(repetition.decision.granted.unwrap().whole_units(), 2);
}

#[test]
fn shadow_limit_has_to_grant_the_upto_of_the_others() {
    let policy = "FIXED 5 1h SLIDING 3 1h SHADOW SLIDINGLOG 9 1h SHADOW";
    let mut server = Server::default();
    let answer = server.limit("COST 8 UPTO", policy, 0);
    assert_eq!((granted_units(&answer), remaining_units(&answer)), (vec![Some(5), Some(0), Some(5)], vec![0, 3, 4]));
    assert!(answer.shadow_denied);
    assert_eq!(answer.decision.granted.unwrap().whole_units(), 5);
    // A limit in shadow mode adds no grant to a call whose enforced limits have costs of their own.
    let answer = server.limit("COST 8 UPTO", "FIXED 9 1h AS own COST 1 SLIDING 3 1h SHADOW", 0);
    assert_eq!(
        (answer.decision.verdict, answer.decision.granted, remaining_units(&answer)),
        (GRANTED, None, vec![8, 3])
    );
}

#[test]
fn shadow_limit_delays_no_call() {
    let policy = "TOKENBUCKET 9 9 1h LEAKYBUCKET 9 1 1m AS queue SHADOW";
    let mut server = Server::default();
    server.limit("", policy, 0);
    let first = server.limit("ONCE r1 1h", policy, 0);
    assert_eq!((first.decision.verdict, first.each[1].verdict), (GRANTED, Verdict::Allowed(seconds(60))));
    assert_eq!(server.limit("ONCE r1 1h", policy, 0).decision.verdict, GRANTED);
    // A limit in shadow mode accepts a wait within MAXWAIT as well.
    let policy = "FIXED 99 1h TOKENBUCKET 1 1 1m SHADOW";
    assert_eq!(server.limit("", policy, 0).each[1].verdict, GRANTED);
    let waited = server.limit("MAXWAIT 2m", policy, 0);
    assert_eq!((waited.decision.verdict, waited.each[1].verdict), (GRANTED, Verdict::Allowed(seconds(60))));
    assert!(!waited.shadow_denied);
    assert!(server.limit("", policy, 0).shadow_denied);
}

#[test]
fn force_charges_the_shadow_limit_past_its_limit() {
    let mut server = Server::default();
    let policy = "FIXED 9 1h SLIDINGLOG 2 1h SHADOW";
    let forced = server.limit("COST 3 FORCE", policy, 0);
    assert_eq!((forced.decision.verdict, remaining_units(&forced)), (GRANTED, vec![6, 0]));
    assert!(forced.shadow_denied && !forced.each[1].verdict.allowed());
    // Under a ban, only an enforced limit can be forced.
    server.ban(seconds(60), at(0));
    let fixed = "FIXED 9 1h COST 1 SLIDINGLOG 9 1h SHADOW";
    assert_eq!(server.limit_without_write("COST 3 FORCE", fixed, 0).decision.verdict, Verdict::After(seconds(60)));
    assert_eq!(remaining_units(&server.limit("COST 3 FORCE", policy, 0)), [3, 0]);
}

#[test]
fn shadow_charge_is_refunded_and_settled() {
    let mut server = Server::default();
    let policy = "FIXED 99 1h SLIDINGLOG 5 1h SHADOW";
    server.limit("COST 4 ONCE r1 1h", policy, 0);
    // The limit in shadow mode would have denied this call, so it has no charge to settle.
    assert!(server.limit("COST 3 ONCE r2 1h", policy, 0).shadow_denied);
    assert!(!server.limit_without_write("COST 3 ONCE r2 1h", policy, 0).shadow_denied);
    assert_eq!(remaining_units(&server.limit("SETTLE r2 1", policy, 0)), [94, 1]);
    assert_eq!(remaining_units(&server.limit("SETTLE r1 1", policy, 0)), [97, 4]);
    assert_eq!(remaining_units(&server.limit("COST -1", policy, 0)), [98, 5]);
    // A higher cost is charged as by FORCE.
    server.limit("COST 1 ONCE r3 1h", policy, 0);
    assert_eq!(remaining_units(&server.limit("SETTLE r3 9", policy, 0)), [89, 0]);
}

#[test]
fn repeated_id_renews_its_lease() {
    let policy = "FIXED 9 1h CONCURRENCY 1 1m";
    let mut server = Server::default();
    server.limit("ONCE r1 1h", policy, 0);
    assert_eq!(server.limit("ONCE r2 1h", policy, 30).decision.verdict, Verdict::After(seconds(30)));
    let repetition = server.limit("ONCE r1 1h", policy, 50);
    assert_eq!(
        (repetition.decision.verdict, remaining_units(&repetition), repetition.repeated),
        (GRANTED, vec![8, 0], true)
    );
    assert_eq!(server.limit_without_write("ONCE r2 1h", policy, 100).decision.verdict, Verdict::After(seconds(10)));
    // The lease of r1 has expired, and r2 acquires a lease.
    assert!(server.limit("ONCE r2 1h", policy, 110).decision.verdict.allowed());
    let lost = server.limit_without_write("ONCE r1 1h", policy, 120);
    assert_eq!((lost.decision.verdict, remaining_units(&lost)), (Verdict::After(seconds(50)), vec![7, 0]));
    assert_eq!((lost.decision.limit.whole_units(), lost.repeated), (1, false));
    assert_eq!(lost.each[0].verdict, GRANTED);
    // The charge of r1 stays, and r1 acquires a lease again after the reported wait.
    assert_eq!(server.limit("ONCE r1 1h", policy, 170).decision.verdict, GRANTED);
    assert_eq!(server.lease_count(), 1);
}

#[test]
fn settlement_releases_the_lease_of_its_id() {
    let policy = "FIXED 9 1h CONCURRENCY 2 1m";
    let mut server = Server::default();
    server.limit("COST 3 ONCE r1 1h", policy, 0);
    let settled = server.limit("SETTLE r1 1", policy, 0);
    assert_eq!((settled.decision.verdict, remaining_units(&settled), server.lease_count()), (GRANTED, vec![8, 2], 0));
    let late = server.limit_without_write("COST 3 ONCE r1 1h", policy, 0);
    assert_eq!((late.decision.verdict, late.repeated), (GRANTED, true));
    // Expired ids: r2 has a lease, and the lease of r3 has been released.
    for id in ["r2", "r3"] {
        let _ = (server.limit(&format!("ONCE {id} 1s"), policy, 0), server.release(b"r3", at(0)));
        assert_eq!(server.lease_count(), usize::from(id == "r2"));
        let unknown = server.limit(&format!("SETTLE {id} 1"), policy, 2 + u64::from(id == "r3"));
        assert_eq!((unknown.decision.verdict, server.lease_count()), (Verdict::Never, 0), "{id}");
    }
    // A lease whose holder has the name of the id is released as well.
    let mut plain = Server::default();
    plain.take("CONCURRENCY 2 1m r1", 0);
    assert_eq!(plain.limit("SETTLE r1 1", policy, 0).decision.verdict, Verdict::Never);
    assert!(plain.key.is_none());
    // The key stays a plain key.
    for holder in ["r1", "another"] {
        plain.take(&format!("CONCURRENCY 2 1m {holder}"), 0);
    }
    plain.limit("SETTLE r1 1", policy, 0);
    let Some((Value::Plain(usage), _)) = &plain.key else { unreachable!("the key is a composite key") };
    assert_eq!(with_usage!(usage, usage => usage.entries()), 1);
}

#[test]
fn lease_without_an_id_is_rejected_except_for_peeks_and_refunds() {
    let policy = "FIXED 9 1h CONCURRENCY 2 1m";
    let mut server = Server::default();
    server.limit("COST 2 ONCE r1 1h", policy, 0);
    for (options, peeks, is_rejected) in [
        ("", false, true),
        ("COST 2 FORCE", false, true),
        ("COST 2 UPTO", false, true),
        ("COST 0", false, false),
        ("COST -1", false, false),
        ("COST 2", true, false),
    ] {
        let result = CallText::by_policy(options, policy, "1")
            .with_request(peeks, |request| server.call(request, at(0), peeks).is_ok());
        assert_eq!(result, if is_rejected { Err(Error::NoHolder) } else { Ok(true) }, "{options}");
    }
}

#[test]
fn ban_grants_the_lease_of_a_granted_id() {
    let policy = "CONCURRENCY 2 1m FIXED 9 1h SHADOW";
    let mut server = Server::default();
    server.limit("ONCE r1 1s", policy, 0);
    server.ban(seconds(600), at(0));
    assert_eq!(server.limit("ONCE r1 1s", policy, 0).decision.verdict, GRANTED);
    // The id has expired, but its lease has not. The limit in shadow mode does not matter.
    let renewed = server.limit("ONCE r1 1s", policy, 30);
    assert_eq!((renewed.decision.verdict, remaining_units(&renewed), renewed.repeated), (GRANTED, vec![1, 7], false));
    let denied = server.limit_without_write("ONCE r2 1s", policy, 30);
    assert_eq!((denied.decision.verdict, denied.banned), (Verdict::After(seconds(570)), true));
    // A lost lease waits for room, not for the end of the ban.
    server.limit("ONCE r1 1h", policy, 31);
    let full = "CONCURRENCY 0 1m FIXED 9 1h SHADOW";
    assert_eq!(server.limit_without_write("ONCE r1 1h", full, 92).decision.verdict, Verdict::Never);
    assert_eq!(server.limit("ONCE r1 1h", policy, 92).decision.verdict, GRANTED);
}

#[test]
fn shadow_lease_is_acquired_if_it_fits_and_never_denies() {
    let policy = "FIXED 9 1h CONCURRENCY 1 1m SHADOW";
    let mut server = Server::default();
    server.limit("ONCE r1 1h", policy, 0);
    let denied = server.limit("ONCE r2 1h", policy, 0);
    assert_eq!((denied.decision.verdict, denied.shadow_denied, server.lease_count()), (GRANTED, true, 1));
    // The repetition has no lease and would have been denied again.
    let repetition = server.limit_without_write("ONCE r2 1h", policy, 0);
    assert_eq!((repetition.decision.verdict, repetition.repeated, repetition.shadow_denied), (GRANTED, true, true));
    server.limit("SETTLE r1 1", policy, 0);
    assert_eq!(server.lease_count(), 0);
    server.limit("ONCE r2 1h", policy, 1);
    assert_eq!(server.lease_count(), 1);
}

#[test]
fn repetition_that_acquires_a_lease_adds_an_entry() {
    use crate::composite::{CompositeEvaluation, StoredUsage};
    let policy = "FIXED 9 1h CONCURRENCY 1 1m";
    let mut server = Server::default();
    server.limit("ONCE r1 1h", policy, 0);
    for (second, adds) in [(30, false), (60, true)] {
        let call_text = CallText::by_policy("ONCE r1 1h", policy, "1");
        let entries = call_text.with_request(false, |request| {
            let (call, stored) =
                (super::server::call_of(request), StoredUsage::Composite(server.components().unwrap()));
            CompositeEvaluation::at(&call, stored, at(second)).entries(&call, stored, at(second)).collect::<Vec<_>>()
        });
        let expected = if adds { vec![(crate::usage_kind::UsageKind::Concurrency, 1, false)] } else { Vec::new() };
        assert_eq!(entries.unwrap(), expected);
    }
}

#[test]
fn options_apply_to_a_policy_as_to_an_inline_spec() {
    // Options after a spec take precedence over those of the call.
    for (call_options, spec_options) in [
        ("COST 3 FORCE", ""),
        ("COST 3 FORCE", "COST 1"),
        ("COST 3 FORCE", "COST 1 FORCE"),
        ("COST 3 UPTO", "COST 2"),
        ("COST 3 MAXWAIT 3650d", "COST 1"),
        ("COST 3 KEEP 100%", "COST 0"),
        ("COST 3 KEEP 2", "COST 0"),
        ("COST 3 KEEP 2", "COST 0 KEEP 1"),
        ("COST 3 KEEP 2", ""),
        ("COST -3", "COST 1"),
        ("COST 0", "COST 1"),
        ("SETTLE r1 0", "COST 1"),
        ("COST 1", "COST 3 MAXWAIT 3650d"),
    ] {
        // With a remaining unit, and in debt.
        for bucket in ["TOKENBUCKET 4 4 1h", "TOKENBUCKET 2 2 1h"] {
            let [inline, by_policy] = [bucket, "POLICY p"].map(|limit| {
                let text = format!("{call_options} {limit} {spec_options}").trim_end().to_owned();
                let (mut server, policy) = (Server::default(), Some((bucket.to_owned(), "1")));
                server.limit("COST 3 ONCE r1 1h", "TOKENBUCKET 4 4 1h", 0);
                let result = composite_laws::run_call(&mut server, &CallText { text, policy }, at(0), false).unwrap();
                (result.answer, server.key_as_stored())
            });
            assert_eq!(by_policy, inline, "{call_options} {bucket} {spec_options}");
        }
    }
}
