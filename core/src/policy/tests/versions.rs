//! Setting and deleting by version, and listing policies.

use super::*;

#[test]
fn set_policy_is_found_and_described() {
    let mut table = Table::of_node(1);
    assert_eq!(table.policy("pro", at(0)), Err("missing"));
    assert!(table.get(b"pro", at(0)).is_none());
    assert_eq!(table.must_set("pro", MINUTE_LIMIT, at(1)), version_of(1));
    assert_eq!(table.must_set("pro", HOUR_LIMIT, at(2)), version_of(2));
    assert_eq!(table.policy("pro", at(0)), Ok(HOUR_LIMIT.to_owned()));
    for other in ["", "pr", "prO", "pro ", "free"] {
        assert_eq!(table.policy(other, at(0)), Err("missing"), "{other:?}");
    }
    let facts = table.get(b"pro", at(3)).unwrap();
    assert_eq!((&*facts.name, &*facts.specs), (&b"pro"[..], HOUR_LIMIT.as_bytes()));
    assert_eq!((facts.version, facts.set_at), (version_of(2), 1_700_000_002_000));
    assert_eq!((facts.scale, facts.scale_left), (Amount::ONE, None));
    assert_eq!(table.len(), 1);
}

#[test]
fn nx_does_not_replace_a_policy() {
    let mut table = Table::of_node(1);
    let nx = |table: &mut Table| {
        table.set(b"pro", Condition::IfMissing, &policy(MINUTE_LIMIT), at(1), MAX_POLICIES).unwrap()
    };
    assert_eq!(nx(&mut table), SetOutcome { version: version_of(1), changed: true });
    table.must_set("pro", HOUR_LIMIT, at(2));
    let before = table.initial_record("pro");
    assert_eq!(nx(&mut table), SetOutcome { version: version_of(2), changed: false });
    assert_eq!(table.initial_record("pro"), before);
    assert!(table.delete(b"pro", at(3)).unwrap());
    assert_eq!(nx(&mut table), SetOutcome { version: version_of(3) + 1, changed: true });
}

#[test]
fn set_with_another_version_is_rejected() {
    let mut table = Table::of_node(1);
    let over = |table: &mut Table, version| {
        let set = table.set(b"a'b", Condition::OverVersion(version), &policy(MINUTE_LIMIT), at(1), MAX_POLICIES);
        set.map_err(|refused| refused.to_string())
    };
    let missing = Err(r"NOPOLICY no policy 'a\'b'".to_owned());
    assert_eq!(over(&mut table, 1), missing);
    let first = table.must_set("a'b", HOUR_LIMIT, at(0));
    let other_version = |current, expected| Err(format!(r"ERR policy 'a\'b' has version {current}, not {expected}"));
    for expected in [1, first - 1, first + 1] {
        assert_eq!(over(&mut table, expected), other_version(first, expected));
    }
    assert_eq!(table.policy("a'b", at(0)), Ok(HOUR_LIMIT.to_owned()));
    let second = version_of(1);
    assert_eq!(over(&mut table, first), Ok(SetOutcome { version: second, changed: true }));
    assert_eq!(over(&mut table, first), other_version(second, first));
    table.delete(b"a'b", at(2)).unwrap();
    assert_eq!(over(&mut table, second), missing);
}

#[test]
fn deletion_of_another_version_is_rejected() {
    let mut table = Table::of_node(1);
    let delete = |table: &mut Table, version| {
        table.delete_version(b"pro", version, at(1)).map_err(|refused| refused.to_string())
    };
    assert_eq!(delete(&mut table, 1), Err("NOPOLICY no policy 'pro'".to_owned()));
    let version = table.must_set("pro", HOUR_LIMIT, at(0));
    for expected in [1, version - 1, version + 1] {
        let error = format!("ERR policy 'pro' has version {version}, not {expected}");
        assert_eq!(delete(&mut table, expected), Err(error));
    }
    assert_eq!(table.policy("pro", at(0)), Ok(HOUR_LIMIT.to_owned()));
    // Scaling does not change the version.
    table.scale(b"pro", Scaling::parse(&mut Args::new(&words("0.5"))).unwrap(), at(0)).unwrap();
    assert_eq!(delete(&mut table, version), Ok(()));
    assert_eq!(delete(&mut table, version), Err("NOPOLICY no policy 'pro'".to_owned()));
}

#[test]
fn number_of_policies_is_bounded() {
    let mut table = Table::of_node(1);
    let mut set = |name: &str, max| table.set(name.as_bytes(), Condition::Always, &policy(MINUTE_LIMIT), at(1), max);
    set("a", 2).unwrap();
    set("b", 2).unwrap();
    let refused = set("c", 2).unwrap_err();
    assert_eq!(refused.to_string(), "ERR there are 2 policies, as many as ratelimit.max-policies allows");
    // Existing policies can be changed even if there are more than the maximum.
    assert!(set("a", 1).unwrap().changed);
    assert_eq!(table.len(), 2);
    assert!(table.delete(b"a", at(2)).unwrap());
    assert!(table.set(b"c", Condition::Always, &policy(MINUTE_LIMIT), at(1), 2).is_ok());
    // A deleted policy counts as new.
    assert!(table.set(b"a", Condition::Always, &policy(MINUTE_LIMIT), at(1), 2).is_err());
}

#[test]
fn versions_increase_after_deletion_and_with_a_stopped_clock() {
    let mut table = Table::of_node(1);
    let first = table.must_set("pro", MINUTE_LIMIT, at(0));
    assert!(table.delete(b"pro", at(0)).unwrap());
    assert!(!table.delete(b"pro", at(1)).unwrap());
    assert!(!table.delete(b"free", at(1)).unwrap());
    assert_eq!((table.policy("pro", at(1)), table.version("pro"), table.len()), (Err("missing"), None, 0));
    assert_eq!(table.slots.get(b"pro").unwrap().entry.definition.set_at, 1_700_000_000_000, "time of the deletion");
    let second = table.must_set("pro", MINUTE_LIMIT, at(0));
    assert_eq!((first, second), (version_of(0), version_of(0) + 2));
    // The version also increases after the deletion has been dropped, even if the clock was set back.
    assert!(table.delete(b"pro", at(3)).unwrap());
    table.drop_old_deletions(at(3 + 86_400));
    assert!(table.initial_record("pro").is_none());
    assert_eq!(table.must_set("pro", MINUTE_LIMIT, at(2)), version_of(3) + 1);
    // No two names have the same version.
    assert_eq!(table.must_set("free", MINUTE_LIMIT, at(2)), version_of(3) + 2);
}

#[test]
fn sides_of_a_partition_set_different_versions() {
    let (mut here, mut there) = (Table::of_node(1), Table::of_node(2));
    let first = here.must_set("pro", MINUTE_LIMIT, at(0));
    there.receive(&here.initial_record("pro").unwrap(), at(0));
    let over = |table: &mut Table, version, now| {
        table
            .set(b"pro", Condition::OverVersion(version), &policy(HOUR_LIMIT), now, MAX_POLICIES)
            .map(|set| set.version)
    };
    let first_side = over(&mut here, first, at(1)).unwrap();
    let second_side = over(&mut there, first, at(2)).unwrap();
    assert_ne!(first_side, second_side);
    here.receive(&there.initial_record("pro").unwrap(), at(3));
    // The version set here was replaced, and its writer gets an error.
    assert!(over(&mut here, first_side, at(4)).is_err());
    assert!(over(&mut here, second_side, at(4)).is_ok());
}

#[test]
fn list_is_sorted_and_filtered_by_pattern() {
    let mut table = Table::of_node(1);
    for name in ["plan:pro", "plan:free", "default", "plan:x"] {
        table.must_set(name, MINUTE_LIMIT, at(0));
    }
    table.delete(b"plan:x", at(1)).unwrap();
    let listed = |pattern: Option<&str>| {
        let pattern = pattern.map(|pattern| Pattern::compile(pattern.as_bytes()).unwrap());
        let facts = table.list(pattern.as_ref(), at(1));
        facts.into_iter().map(|facts| String::from_utf8(facts.name.into()).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(listed(None), ["default", "plan:free", "plan:pro"]);
    assert_eq!(listed(Some("*")), ["default", "plan:free", "plan:pro"]);
    assert_eq!(listed(Some("plan:*")), ["plan:free", "plan:pro"]);
    assert_eq!(listed(Some("plan:p[a-z]o")), ["plan:pro"]);
    assert_eq!(listed(Some("PLAN:*")), [""; 0]);
}

#[test]
fn counters_survive_a_change_but_not_a_deletion() {
    let mut table = Table::of_node(1);
    let calls = |table: &Table, is_counted: bool| match table.find(b"pro", at(10)) {
        PolicyLookup::Found(policy) => {
            if is_counted {
                policy.counts.count(&ADMITTED_CALL);
            }
            let counts = table.get(b"pro", at(10)).unwrap().counts.all();
            assert_eq!(counts, policy.counts.all());
            counts[0].1
        }
        found => unreachable!("{found:?}"),
    };
    table.must_set("pro", MINUTE_LIMIT, at(0));
    assert_eq!(calls(&table, true), 1);
    table.must_set("pro", HOUR_LIMIT, at(1));
    assert_eq!(calls(&table, true), 2);
    table.must_scale("pro", "0.5", None, at(2));
    assert_eq!(calls(&table, true), 3);
    table.must_set("pro", MINUTE_LIMIT, at(3));
    assert_eq!(calls(&table, false), 3);
    table.delete(b"pro", at(4)).unwrap();
    table.must_set("pro", MINUTE_LIMIT, at(5));
    assert_eq!(calls(&table, false), 0);
}

#[test]
fn policy_in_use_survives_its_deletion() {
    let mut table = Table::of_node(1);
    table.must_set("pro", MINUTE_LIMIT, at(0));
    let PolicyLookup::Found(policy) = table.find(b"pro", at(0)) else { unreachable!() };
    let policy = Rc::clone(policy);
    table.delete(b"pro", at(1)).unwrap();
    assert_eq!(policy.limits.to_string(), MINUTE_LIMIT);
}

#[test]
fn busiest_policies_are_sorted_by_name() {
    let mut table = Table::of_node(1);
    for (name, calls) in [("a", 0), ("b", 3), ("c", 1), ("d", 0), ("e", 2), ("gone", 9)] {
        table.must_set(name, MINUTE_LIMIT, at(0));
        let PolicyLookup::Found(policy) = table.find(name.as_bytes(), at(0)) else { unreachable!() };
        (0..calls).for_each(|_| policy.counts.count(&ADMITTED_CALL));
    }
    table.delete(b"gone", at(1)).unwrap();
    let busiest = |max| {
        let facts = table.busiest(max, at(1));
        facts.iter().map(|facts| String::from_utf8_lossy(&facts.name).into_owned()).collect::<String>()
    };
    assert_eq!([0, 1, 2, 3, 5, 6].map(busiest), ["", "b", "be", "bce", "abcde", "abcde"]);
    // Two policies have the same number of calls.
    assert!(["abce", "bcde"].contains(&&*busiest(4)));
}
