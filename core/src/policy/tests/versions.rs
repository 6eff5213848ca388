//! Setting and deleting by version, and what a list shows.

use super::*;

// Set, get, list, delete

#[test]
fn what_is_set_is_found_and_told() {
    let mut table = Table::of_node(1);
    assert_eq!(table.ruling("pro", at(0)), Err("missing"));
    assert!(table.get(b"pro", at(0)).is_none());
    assert_eq!(table.must_set("pro", MINUTE, at(1)), version_of(1));
    assert_eq!(table.must_set("pro", HOUR, at(2)), version_of(2));
    assert_eq!(table.ruling("pro", at(0)), Ok(HOUR.to_owned()));
    for other in ["", "pr", "prO", "pro ", "free"] {
        assert_eq!(table.ruling(other, at(0)), Err("missing"), "{other:?}");
    }
    let facts = table.get(b"pro", at(3)).unwrap();
    assert_eq!((&*facts.name, &*facts.specs), (&b"pro"[..], HOUR.as_bytes()));
    assert_eq!((facts.version, facts.set_at), (version_of(2), 1_700_000_002_000));
    assert_eq!((facts.scale, facts.scale_left), (Amount::ONE, None));
    assert_eq!(table.len(), 1);
}

#[test]
fn nx_leaves_what_there_is() {
    let mut table = Table::of_node(1);
    let nx = |table: &mut Table| table.set(b"pro", Condition::IfMissing, &policy(MINUTE), at(1), MOST).unwrap();
    assert_eq!(nx(&mut table), Set { version: version_of(1), changed: true });
    table.must_set("pro", HOUR, at(2));
    let before = table.told("pro");
    assert_eq!(nx(&mut table), Set { version: version_of(2), changed: false });
    assert_eq!(table.told("pro"), before);
    assert!(table.delete(b"pro", at(3)).unwrap());
    assert_eq!(nx(&mut table), Set { version: version_of(3) + 1, changed: true });
}

#[test]
fn a_set_over_a_version_is_refused_over_another() {
    let mut table = Table::of_node(1);
    let over = |table: &mut Table, version| {
        let set = table.set(b"a'b", Condition::OverVersion(version), &policy(MINUTE), at(1), MOST);
        set.map_err(|refused| refused.to_string())
    };
    let missing = Err(r"NOPOLICY no policy 'a\'b'".to_owned());
    assert_eq!(over(&mut table, 1), missing);
    let first = table.must_set("a'b", HOUR, at(0));
    let other = |stands, not| Err(format!(r"ERR policy 'a\'b' has version {stands}, not {not}"));
    for not in [1, first - 1, first + 1] {
        assert_eq!(over(&mut table, not), other(first, not));
    }
    assert_eq!(table.ruling("a'b", at(0)), Ok(HOUR.to_owned()));
    let second = version_of(1);
    assert_eq!(over(&mut table, first), Ok(Set { version: second, changed: true }));
    assert_eq!(over(&mut table, first), other(second, first));
    table.delete(b"a'b", at(2)).unwrap();
    assert_eq!(over(&mut table, second), missing);
}

#[test]
fn a_deletion_of_a_version_is_refused_over_another() {
    let mut table = Table::of_node(1);
    let delete = |table: &mut Table, version| {
        table.delete_version(b"pro", version, at(1)).map_err(|refused| refused.to_string())
    };
    assert_eq!(delete(&mut table, 1), Err("NOPOLICY no policy 'pro'".to_owned()));
    let version = table.must_set("pro", HOUR, at(0));
    for not in [1, version - 1, version + 1] {
        assert_eq!(delete(&mut table, not), Err(format!("ERR policy 'pro' has version {version}, not {not}")));
    }
    assert_eq!(table.ruling("pro", at(0)), Ok(HOUR.to_owned()));
    // A scale is no change of the definition.
    table.scale(b"pro", Scaling::read(&mut Args::new(&words("0.5"))).unwrap(), at(0)).unwrap();
    assert_eq!(delete(&mut table, version), Ok(()));
    assert_eq!(delete(&mut table, version), Err("NOPOLICY no policy 'pro'".to_owned()));
}

#[test]
fn there_may_be_so_many_policies_and_no_more() {
    let mut table = Table::of_node(1);
    let mut set = |name: &str, most| table.set(name.as_bytes(), Condition::Always, &policy(MINUTE), at(1), most);
    set("a", 2).unwrap();
    set("b", 2).unwrap();
    let refused = set("c", 2).unwrap_err();
    assert_eq!(refused.to_string(), "ERR there are 2 policies, as many as ratelimit.max-policies allows");
    // What there is can be changed, even if there are more than may be now.
    assert!(set("a", 1).unwrap().changed);
    assert_eq!(table.len(), 2);
    assert!(table.delete(b"a", at(2)).unwrap());
    assert!(table.set(b"c", Condition::Always, &policy(MINUTE), at(1), 2).is_ok());
    // One that was deleted is a new one.
    assert!(table.set(b"a", Condition::Always, &policy(MINUTE), at(1), 2).is_err());
}

#[test]
fn versions_grow_over_a_deletion_and_with_a_clock_that_stands_still() {
    let mut table = Table::of_node(1);
    let first = table.must_set("pro", MINUTE, at(0));
    assert!(table.delete(b"pro", at(0)).unwrap());
    assert!(!table.delete(b"pro", at(1)).unwrap());
    assert!(!table.delete(b"free", at(1)).unwrap());
    assert_eq!((table.ruling("pro", at(1)), table.version("pro"), table.len()), (Err("missing"), None, 0));
    assert_eq!(table.slots.get(b"pro").unwrap().entry.definition.set_at, 1_700_000_000_000, "when it was deleted");
    let second = table.must_set("pro", MINUTE, at(0));
    assert_eq!((first, second), (version_of(0), version_of(0) + 2));
    // Once the deletion is forgotten too, and with a clock that has gone back.
    assert!(table.delete(b"pro", at(3)).unwrap());
    table.forget(at(3 + 86_400));
    assert!(table.told("pro").is_none());
    assert_eq!(table.must_set("pro", MINUTE, at(2)), version_of(3) + 1);
    // No two names have the same.
    assert_eq!(table.must_set("free", MINUTE, at(2)), version_of(3) + 2);
}

#[test]
fn no_two_sides_of_a_partition_set_the_same_version() {
    let (mut here, mut there) = (Table::of_node(1), Table::of_node(2));
    let read = here.must_set("pro", MINUTE, at(0));
    there.hear(&here.told("pro").unwrap(), at(0));
    let over = |table: &mut Table, version, now| {
        table.set(b"pro", Condition::OverVersion(version), &policy(HOUR), now, MOST).map(|set| set.version)
    };
    let mine = over(&mut here, read, at(1)).unwrap();
    let theirs = over(&mut there, read, at(2)).unwrap();
    assert_ne!(mine, theirs);
    here.hear(&there.told("pro").unwrap(), at(3));
    // What was set here is not what stands, and who set it hears so.
    assert!(over(&mut here, mine, at(4)).is_err());
    assert!(over(&mut here, theirs, at(4)).is_ok());
}

#[test]
fn policies_are_listed_by_name_if_it_is_what_the_pattern_says() {
    let mut table = Table::of_node(1);
    for name in ["plan:pro", "plan:free", "default", "plan:x"] {
        table.must_set(name, MINUTE, at(0));
    }
    table.delete(b"plan:x", at(1)).unwrap();
    let listed = |pattern: Option<&str>| {
        let pattern = pattern.map(|pattern| Pattern::read(pattern.as_bytes()).unwrap());
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
fn counts_outlast_a_change_and_not_a_deletion() {
    let mut table = Table::of_node(1);
    let calls = |table: &Table, count: bool| match table.find(b"pro", at(10)) {
        PolicyLookup::Ruling(ruling) => {
            if count {
                ruling.counts.count(&CALL);
            }
            let told = table.get(b"pro", at(10)).unwrap().counts.all();
            assert_eq!(told, ruling.counts.all());
            told[0].1
        }
        found => unreachable!("{found:?}"),
    };
    table.must_set("pro", MINUTE, at(0));
    assert_eq!(calls(&table, true), 1);
    table.must_set("pro", HOUR, at(1));
    assert_eq!(calls(&table, true), 2);
    table.must_scale("pro", "0.5", None, at(2));
    assert_eq!(calls(&table, true), 3);
    table.must_set("pro", MINUTE, at(3));
    assert_eq!(calls(&table, false), 3);
    table.delete(b"pro", at(4)).unwrap();
    table.must_set("pro", MINUTE, at(5));
    assert_eq!(calls(&table, false), 0);
}

#[test]
fn a_ruling_in_use_stays_what_it_was() {
    let mut table = Table::of_node(1);
    table.must_set("pro", MINUTE, at(0));
    let PolicyLookup::Ruling(ruling) = table.find(b"pro", at(0)) else { unreachable!() };
    let ruling = Rc::clone(ruling);
    table.delete(b"pro", at(1)).unwrap();
    assert_eq!(ruling.policy.to_string(), MINUTE);
}

#[test]
fn the_busiest_are_those_with_most_calls_told_by_name() {
    let mut table = Table::of_node(1);
    for (name, calls) in [("a", 0), ("b", 3), ("c", 1), ("d", 0), ("e", 2), ("gone", 9)] {
        table.must_set(name, MINUTE, at(0));
        let PolicyLookup::Ruling(ruling) = table.find(name.as_bytes(), at(0)) else { unreachable!() };
        (0..calls).for_each(|_| ruling.counts.count(&CALL));
    }
    table.delete(b"gone", at(1)).unwrap();
    let busiest = |most| {
        let facts = table.busiest(most, at(1));
        facts.iter().map(|facts| String::from_utf8_lossy(&facts.name).into_owned()).collect::<String>()
    };
    assert_eq!([0, 1, 2, 3, 5, 6].map(busiest), ["", "b", "be", "bce", "abcde", "abcde"]);
    // Two have as many calls.
    assert!(["abce", "bcde"].contains(&&*busiest(4)));
}
