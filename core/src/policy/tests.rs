mod aimd;
mod cluster;
mod duration;
mod stamps;

use super::entry::StepTimes;
use super::entry::{Definition, End, PolicyEntry, Scale};
use super::slot::{Slot, Standing};
use super::slots::{Deletion, MOST_DELETIONS};
use super::*;
use crate::number::{Amount, Period, Span, Timestamp};
use crate::syntax::Policy;
use crate::wire::args::Args;
use crate::wire::error::Error;
use proptest::prelude::*;
use std::rc::Rc;

/// The policy that those words say.
pub(super) fn policy(text: &str) -> Policy {
    slot::read(text.as_bytes()).unwrap()
}

/// An instant some seconds after one at which clocks show something.
pub(super) fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000).unwrap().plus(Span::SECOND.times(seconds))
}

/// The version of what is set so many seconds after that instant.
fn version_of(seconds: u64) -> u64 {
    at(seconds).micros()
}

pub(super) const MOST: usize = 4096;

const MINUTE: &str = "TOKENBUCKET 60 60 1m";
const HOUR: &str = "FIXED 1000 1h";

const CALL: CountedOutcome =
    CountedOutcome { charges: true, admitted: true, near: false, shadow_denied: false, banned: false, repeated: false };

fn factor(text: &str) -> Amount {
    Amount::parse_down(text.as_bytes()).unwrap()
}

fn scaling_to(by: &str, duration: Option<Period>) -> Scaling {
    Scaling { step: ScaleStep::Set(factor(by)), every: None, duration }
}

impl Table {
    fn must_set(&mut self, name: &str, text: &str, now: Timestamp) -> u64 {
        let set = self.set(name.as_bytes(), Condition::Always, &policy(text), now, MOST).unwrap();
        assert!(set.changed);
        set.version
    }

    fn must_scale(&mut self, name: &str, by: &str, seconds: Option<u64>, now: Timestamp) {
        let duration = seconds.map(|seconds| Period::new(Span::SECOND.times(seconds)).unwrap());
        self.scale(name.as_bytes(), scaling_to(by, duration), now).unwrap();
    }

    /// The limits that a call by that name finds, or why it finds none.
    fn ruling(&self, name: &str, now: Timestamp) -> Result<String, &'static str> {
        match self.find(name.as_bytes(), now) {
            PolicyLookup::Ruling(ruling) => {
                assert_eq!(&*ruling.name, name.as_bytes());
                Ok(ruling.policy.to_string())
            }
            PolicyLookup::Unreadable => Err("unreadable"),
            PolicyLookup::Missing => Err("missing"),
        }
    }

    /// What is known by a name, as it is told at once.
    pub(super) fn told(&self, name: &str) -> Option<Vec<u8>> {
        self.record(name.as_bytes(), at(0))
    }

    /// What is known by the names of a group.
    pub(super) fn records_of_group(&self, group: usize, now: Timestamp) -> Vec<Vec<u8>> {
        let mut walk = Walk::default();
        walk.include(1 << group);
        self.piece(&mut walk, usize::MAX, usize::MAX, now)
    }

    /// Takes the place of itself, with what these records say.
    fn replace(&mut self, records: &[Vec<u8>], origin: Origin, now: Timestamp) {
        let mut successor = self.successor();
        for record in records {
            assert_ne!(successor.take_beside(self, record, origin, now), Merged::Invalid);
        }
        let mut discarded = std::mem::replace(self, successor).discard();
        while discarded.free(1) {}
    }

    /// Takes over what a peer says.
    pub(super) fn hear(&mut self, record: &[u8], now: Timestamp) -> Merged {
        self.merge(record, Origin::Peer, now)
    }

    fn version(&self, name: &str) -> Option<u64> {
        self.get(name.as_bytes(), at(0)).map(|facts| facts.version)
    }

    /// Of every live record what all servers know, in order.
    pub(super) fn live_records(&self) -> Vec<Vec<u8>> {
        let mut live: Vec<_> = self.slots.iter_live().map(|slot| slot.entry.identity().as_bytes().to_vec()).collect();
        live.sort_unstable();
        live
    }

    /// Panics unless what is counted and summed along the way is what there is.
    pub(super) fn assert_consistent(&self) {
        let (mut live, mut digests) = (0, [0_u64; GROUPS]);
        for (hash, slot) in &self.slots.by_hash {
            let Slot { entry, digest, standing, .. } = &**slot;
            assert_eq!(*hash, record_hash::of(&entry.name));
            assert!(self.slots.hashes.contains(hash));
            assert_eq!(entry.is_deleted(), matches!(standing, Standing::Deleted));
            if entry.is_deleted() {
                assert_eq!(*digest, 0);
                let remembered =
                    |deletion: &Deletion| deletion.name == entry.name && deletion.stamp == entry.definition.stamp;
                assert!(self.slots.deletions.iter().any(remembered), "else it would never be forgotten");
                continue;
            }
            live += 1;
            let group = &mut digests[walk::group_of(*hash)];
            *group = group.wrapping_add(record_hash::of(entry.identity().as_bytes()));
            assert_eq!(matches!(standing, Standing::Unreadable), slot::read(&entry.definition.text).is_none());
        }
        assert_eq!((self.len(), self.is_empty(), self.digests()), (live, live == 0, &digests));
        assert_eq!((self.known(), self.slots.hashes.len()), (self.slots.by_hash.len(), self.slots.by_hash.len()));
    }
}

// Words

fn words(text: &str) -> Vec<&[u8]> {
    std::iter::once(&b"RL.POLICYSET"[..]).chain(text.split(' ').map(str::as_bytes)).collect()
}

#[test]
fn a_condition_is_read_from_what_stands_before_the_specs() {
    let read = |text| {
        let words = words(text);
        let mut args = Args::new(&words);
        Condition::read(&mut args).map(|condition| (condition, args.peek().is_some()))
    };
    for (text, condition) in [
        ("FIXED 5 1m", (Condition::Always, true)),
        ("NX FIXED 5 1m", (Condition::IfMissing, true)),
        ("nx", (Condition::IfMissing, false)),
        ("VERSION 3 FIXED", (Condition::OverVersion(3), true)),
        ("version 18446744073709551615", (Condition::OverVersion(u64::MAX), false)),
    ] {
        assert_eq!(read(text), Ok(condition), "{text}");
    }
    for word in ["0", "-1", "1.0", "18446744073709551616"] {
        let refused = read(format!("VERSION {word}").leak()).unwrap_err().to_string();
        assert_eq!(
            refused,
            format!("ERR version must be a whole number above 0, such as 1700000000000000, not '{word}'")
        );
    }
    let told = |text| read(text).unwrap_err().to_string();
    assert_eq!(told("VERSION x"), "ERR version must be a whole number such as 1700000000000000, not 'x'");
    assert_eq!(told("VERSION"), "ERR version is missing: VERSION version");
}

#[test]
fn a_deletion_is_of_one_version_or_of_names() {
    let read = |text: &'static str| {
        DeletionRequest::read(&mut Args::new(Box::leak(Box::new(words(text))))).map_err(|error| error.to_string())
    };
    assert_eq!(read("pro"), Ok(DeletionRequest::OfNames(vec![b"pro"])));
    assert_eq!(read("pro free pro"), Ok(DeletionRequest::OfNames(vec![b"pro", b"free", b"pro"])));
    assert_eq!(read("version"), Ok(DeletionRequest::OfNames(vec![b"version"])));
    assert_eq!(read("version free"), Ok(DeletionRequest::OfNames(vec![b"version", b"free"])));
    assert_eq!(read("pro version 3"), Ok(DeletionRequest::OfVersion(b"pro", 3)));
    assert_eq!(read("VERSION VERSION 3"), Ok(DeletionRequest::OfVersion(b"VERSION", 3)));
    for wrong in ["pro VERSION", "pro VERSION 0", "pro VERSION x", "pro VERSION 3 free", "pro free version 3"] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_scaling_is_a_factor_and_perhaps_for_how_long() {
    let read = |text| Scaling::read(&mut Args::new(&words(text)));
    let minute = Period::parse(b"1m");
    for (text, by, duration) in [
        ("0.5", "0.5", None),
        ("0", "0", None),
        ("1000", "1000", None),
        ("1e3 for 60", "1000", minute),
        ("0.3333339 FOR 1m", "0.333333", minute),
    ] {
        assert_eq!(read(text), Ok(scaling_to(by, duration)), "{text}");
    }
    for (text, error) in [
        ("1000.0000001", "ERR factor must be a number from 0 to 1000, such as 0.5, not '1000.0000001'"),
        ("1000.000001", "ERR factor must be a number from 0 to 1000, such as 0.5, not '1000.000001'"),
        ("-1", "ERR factor must be a number from 0 to 1000, such as 0.5, not '-1'"),
        ("50%", "ERR factor must be a number such as 0.5, not '50%' (numbers are written as 1000, 0.5 or 1e6)"),
        ("1 FOR 0", "ERR duration must be a duration from 1us to 3650d, such as 10m, not '0'"),
        ("1 FOR 1w", "ERR duration must be a duration such as 10m, not '1w' (units: us ms s m h d)"),
        ("1 FOR", "ERR duration is missing: FOR duration"),
        ("1 NX", "ERR syntax error, unexpected 'NX', where only FOR duration can follow"),
        ("1 FOR 1m FOR 1m", "ERR syntax error, unexpected 'FOR', which is given twice"),
        (
            "0.5 10m",
            "ERR syntax error, unexpected '10m', before which FOR is missing: RL.POLICYSCALE name factor [FOR duration]",
        ),
        ("0.5 FOR 10m 5", "ERR syntax error, unexpected '5', where only FOR duration can follow"),
    ] {
        assert_eq!(read(text).unwrap_err().to_string(), error, "{text}");
    }
    assert_eq!(Scaling::read(&mut Args::new(&[&b"RL.POLICYSCALE"[..]])), Err(Error::WrongArity));
}

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

// Scale

#[test]
fn a_scale_for_a_time_ends_by_itself() {
    let mut table = Table::of_node(1);
    let scaled = |table: &Table, second| {
        let facts = table.get(b"pro", at(second)).unwrap();
        let left = facts.scale_left.map(Span::ceil_millis);
        (table.ruling("pro", at(second)).unwrap(), facts.scale.to_string(), left)
    };
    let (half, whole) = ("TOKENBUCKET 30 30 1m".to_owned(), MINUTE.to_owned());
    table.must_set("pro", MINUTE, at(0));
    table.must_scale("pro", "0.5", Some(60), at(10));
    assert_eq!(scaled(&table, 10), (half.clone(), "0.5".to_owned(), Some(60_000)));
    assert_eq!(scaled(&table, 69), (half.clone(), "0.5".to_owned(), Some(1000)));
    assert_eq!(scaled(&table, 70), (whole.clone(), "1".to_owned(), None));
    // The last one counts, shorter or for good.
    table.must_scale("pro", "0.5", None, at(80));
    assert_eq!(scaled(&table, 1_000_000), (half, "0.5".to_owned(), None));
    table.must_scale("pro", "2", Some(1), at(81));
    assert_eq!(scaled(&table, 81).0, "TOKENBUCKET 120 120 1m");
    assert_eq!(scaled(&table, 82).0, whole);
    table.must_scale("pro", "1", None, at(83));
    assert_eq!(scaled(&table, 83), (whole, "1".to_owned(), None));
}

#[test]
fn a_scale_is_told_to_the_millisecond_and_ends_with_time() {
    let mut table = Table::of_node(1);
    let now = Timestamp::from_micros(1_700_000_000_123_456).unwrap();
    table.must_set("pro", MINUTE, now);
    let scaling = scaling_to("3", Period::parse(b"60s"));
    let facts = table.scale(b"pro", scaling, now).unwrap().facts;
    assert_eq!(facts.version, now.micros());
    assert_eq!((facts.scale, facts.scale_left), (factor("3"), Some(Span::SECOND.times(60))));
    let facts = table.scale(b"pro", Scaling { duration: Period::parse(b"3650d"), ..scaling }, Timestamp::MAX);
    // It ends later than any clock can show, and after that time all the same.
    assert_eq!(facts.unwrap().facts.scale_left, Some(Span::SECOND.times(86_400 * 3650)));
    let refused = table.scale(b"pro", scaling, Timestamp::MAX).unwrap_err();
    assert_eq!(refused.to_string(), "ERR the policy already has the highest possible version");
}

#[test]
fn a_set_leaves_the_scale_and_a_deletion_does_not() {
    let mut table = Table::of_node(1);
    table.must_set("pro", MINUTE, at(0));
    table.must_scale("pro", "0.5", None, at(1));
    table.must_set("pro", HOUR, at(2));
    assert_eq!(table.ruling("pro", at(3)), Ok("FIXED 500 1h".to_owned()));
    assert_eq!(&*table.get(b"pro", at(3)).unwrap().specs, HOUR.as_bytes(), "told as it was set");
    table.delete(b"pro", at(4)).unwrap();
    table.must_set("pro", HOUR, at(5));
    assert_eq!(table.ruling("pro", at(6)), Ok(HOUR.to_owned()));
    assert_eq!(table.get(b"pro", at(6)).unwrap().scale, Amount::ONE);
}

#[test]
fn only_a_policy_that_is_there_is_scaled() {
    let mut table = Table::of_node(1);
    let scaling = scaling_to("0", None);
    assert_eq!(table.scale(b"pro", scaling, at(0)).unwrap_err().to_string(), "NOPOLICY no policy 'pro'");
    table.must_set("pro", MINUTE, at(0));
    table.delete(b"pro", at(1)).unwrap();
    assert_eq!(table.scale(b"pro", scaling, at(2)).unwrap_err().to_string(), "NOPOLICY no policy 'pro'");
}

#[test]
fn a_set_and_a_scale_on_two_servers_at_once_both_stand() {
    let (mut here, mut there) = (Table::of_node(1), Table::of_node(2));
    here.must_set("pro", MINUTE, at(0));
    there.hear(&here.told("pro").unwrap(), at(0));
    here.must_set("pro", HOUR, at(1));
    there.must_scale("pro", "0.5", None, at(1));
    let records = [&here, &there].map(|table| table.told("pro").unwrap());
    assert_eq!(here.hear(&records[1], at(2)), Merged::Changed);
    assert_eq!(there.hear(&records[0], at(2)), Merged::Changed);
    for table in [here, there] {
        assert_eq!(table.ruling("pro", at(3)), Ok("FIXED 500 1h".to_owned()));
    }
}

// What goes to other servers

#[test]
fn what_was_set_stands_wherever_it_is_merged() {
    let (mut here, mut there) = (Table::of_node(1), Table::of_node(2));
    assert_eq!(here.told("pro"), None);
    here.must_set("pro", MINUTE, at(0));
    here.must_scale("pro", "0.5", Some(60), at(1));
    let record = here.told("pro").unwrap();
    assert_eq!(there.check(&record, at(9)), Ok(()));
    assert_eq!(there.hear(&record, at(9)), Merged::Changed);
    assert_eq!(there.hear(&record, at(9)), Merged::Unchanged);
    assert_eq!(there.told("pro"), Some(record));
    let told = |table: &Table| {
        let facts = table.get(b"pro", at(10)).unwrap();
        (facts.version, facts.set_at, facts.scale, facts.scale_left, facts.specs)
    };
    assert_eq!(told(&here), told(&there));
    assert_eq!((here.digests(), here.digest()), (there.digests(), there.digest()));
    // A deletion too.
    there.delete(b"pro", at(20)).unwrap();
    assert_eq!(here.hear(&there.told("pro").unwrap(), at(21)), Merged::Changed);
    assert_eq!((here.ruling("pro", at(22)), here.len(), here.digest()), (Err("missing"), 0, 0));
}

#[test]
fn a_table_that_is_replaced_has_what_the_records_say_and_nothing_else() {
    let (mut here, mut there) = (Table::of_node(1), Table::of_node(2));
    for name in ["kept", "changed", "gone", "deleted"] {
        here.must_set(name, MINUTE, at(100));
        let PolicyLookup::Ruling(ruling) = here.find(name.as_bytes(), at(100)) else { unreachable!() };
        ruling.counts.count(&CALL);
    }
    // Whatever is later here.
    there.hear(&here.told("kept").unwrap(), at(0));
    there.must_set("changed", HOUR, at(1));
    there.must_scale("changed", "0.5", None, at(2));
    there.must_set("deleted", MINUTE, at(3));
    there.delete(b"deleted", at(4)).unwrap();
    there.must_set("new", MINUTE, at(5));
    let mut records: Vec<_> = there.records(at(0)).collect();
    here.replace(&records, Origin::Disk, at(200));
    here.assert_consistent();
    assert_eq!((here.live_records(), here.digests()), (there.live_records(), there.digests()));
    let calls = |table: &Table, name: &str| match table.find(name.as_bytes(), at(200)) {
        PolicyLookup::Ruling(ruling) => {
            let told = table.get(name.as_bytes(), at(200)).unwrap().counts.all();
            assert_eq!(told, ruling.counts.all());
            Some((ruling.policy.to_string(), told[0].1))
        }
        _ => None,
    };
    assert_eq!(calls(&here, "kept"), Some((MINUTE.to_owned(), 1)));
    assert_eq!(calls(&here, "changed"), Some(("FIXED 500 1h".to_owned(), 1)));
    assert_eq!(calls(&here, "new"), Some((MINUTE.to_owned(), 0)));
    assert_eq!((calls(&here, "gone"), here.told("gone"), calls(&here, "deleted")), (None, None, None));
    // The deletion is remembered from now on, and is nobody's count.
    here.forget(at(200 + 86_399));
    assert!(here.told("deleted").is_some());
    here.forget(at(200 + 86_400));
    assert!(here.told("deleted").is_none());
    // It stamps as itself, and later than all that it had seen.
    here.must_set("kept", HOUR, at(0));
    let stamp = here.slots.get(b"kept").unwrap().entry.definition.stamp;
    assert_eq!(stamp, Stamp { at: there.latest.max(at(100).micros() + 3) + 1, node: 1 });
    records.clear();
    here.replace(&records, Origin::Disk, at(200));
    assert_eq!((here.records(at(0)).count(), here.digest(), here.len()), (0, 0, 0));
}

#[test]
fn a_record_that_no_server_wrote_changes_nothing() {
    let mut table = Table::of_node(1);
    for record in [&b""[..], b"gold", b"rl-policy 1", b"rl-policy 1 4:gold 1 1 1 1 1 1 0: 0 0 1000000 0 "] {
        assert_eq!(table.check(record, at(0)), Err(Error::InvalidEffect));
        assert_eq!(table.hear(record, at(0)), Merged::Invalid);
    }
    assert_eq!(table.records(at(0)).count(), 0);
    assert_eq!(table.latest, 0);
}

#[test]
fn who_has_heard_of_a_later_stamp_writes_one_that_is_later_still() {
    let (mut ahead, mut behind) = (Table::of_node(9), Table::of_node(1));
    ahead.must_set("pro", MINUTE, at(3600));
    behind.hear(&ahead.told("pro").unwrap(), at(0));
    behind.must_set("pro", HOUR, at(0));
    assert_eq!(ahead.hear(&behind.told("pro").unwrap(), at(3600)), Merged::Changed);
    assert_eq!(ahead.ruling("pro", at(3600)), Ok(HOUR.to_owned()));
    // Of whatever name.
    behind.must_set("free", HOUR, at(0));
    assert!(
        behind.slots.get(b"free").unwrap().entry.definition.stamp
            > ahead.slots.get(b"pro").unwrap().entry.definition.stamp
    );
    assert_eq!(behind.get(b"free", at(0)).unwrap().set_at, 1_700_000_000_000, "by the clock it was set when it was");
}

#[test]
fn a_stamp_is_of_the_server_that_writes() {
    let mut table = Table::default();
    table.must_set("a", MINUTE, at(0));
    table.stamp_as(7);
    table.must_set("b", MINUTE, at(0));
    let stamp = |name: &[u8]| table.slots.get(name).unwrap().entry.definition.stamp;
    let micros = at(0).micros();
    assert_eq!(stamp(b"a"), Stamp { at: micros, node: 0 });
    assert_eq!(stamp(b"b"), Stamp { at: micros + 1, node: 7 });
}

const LATER: &str = "rl-policy 1 4:gold 1700000000000000 7 1700000000000000 7 2 1700000000000 \
                     12:QUOTA 60 PER 0 0 1000000 0";

#[test]
fn what_a_later_version_has_set_is_kept_and_passed_on() {
    let mut table = Table::of_node(1);
    assert_eq!(table.hear(LATER.as_bytes(), at(0)), Merged::Changed);
    assert_eq!((table.ruling("gold", at(0)), table.len()), (Err("unreadable"), 1));
    assert_ne!(table.digest(), 0);
    assert_eq!(table.told("gold").unwrap(), LATER.as_bytes());
    let facts = table.get(b"gold", at(0)).unwrap();
    assert_eq!((facts.version, &*facts.specs), (version_of(0), &b"QUOTA 60 PER"[..]));
    // It is there: NX leaves it, its scale can be set and it can be deleted, or replaced.
    let nx = table.set(b"gold", Condition::IfMissing, &policy(HOUR), at(1), MOST).unwrap();
    assert_eq!(nx, Set { version: version_of(0), changed: false });
    table.must_scale("gold", "0.5", None, at(1));
    assert_eq!(table.ruling("gold", at(1)), Err("unreadable"));
    table.must_set("gold", HOUR, at(2));
    assert_eq!(table.ruling("gold", at(2)), Ok("FIXED 500 1h".to_owned()));
    // And the other way round.
    let record = LATER.replacen("1700000000000000", "1700000009000000", 1);
    assert_eq!(table.hear(record.as_bytes(), at(9)), Merged::Changed);
    assert_eq!(table.ruling("gold", at(9)), Err("unreadable"));
    assert!(table.delete(b"gold", at(10)).unwrap());
    assert_eq!(table.ruling("gold", at(10)), Err("missing"));
    table.assert_consistent();
}

#[test]
fn of_two_that_were_written_at_the_same_time_one_stands_everywhere() {
    let one = LATER.to_owned();
    let other = LATER.replace("12:QUOTA 60 PER", "10:FIXED 5 1m");
    let by_higher = LATER.replacen("000000 7", "000000 8", 1).replace("12:QUOTA 60 PER", "10:FIXED 6 1m");
    for (first, second, stands) in
        [(&one, &other, &one), (&other, &one, &one), (&one, &by_higher, &by_higher), (&by_higher, &one, &by_higher)]
    {
        let mut table = Table::of_node(1);
        table.hear(first.as_bytes(), at(0));
        table.hear(second.as_bytes(), at(0));
        assert_eq!(table.told("gold").unwrap(), stands.as_bytes());
        let readable = slot::read(&table.slots.get(b"gold").unwrap().entry.definition.text).is_some();
        assert_eq!(table.ruling("gold", at(0)).is_ok(), readable);
        table.assert_consistent();
    }
}

// Digests

#[test]
fn the_groups_of_records_are_all_records() {
    let mut table = Table::of_node(1);
    for n in 0..200 {
        table.must_set(&format!("plan:{n}"), MINUTE, at(0));
    }
    for n in 0..50 {
        table.delete(format!("plan:{n}").as_bytes(), at(1)).unwrap();
    }
    let mut all: Vec<_> = table.records(at(0)).collect();
    let mut grouped: Vec<_> = (0..GROUPS).flat_map(|group| table.records_of_group(group, at(1))).collect();
    all.sort_unstable();
    grouped.sort_unstable();
    assert_eq!((all.len(), &all), (200, &grouped));
    table.assert_consistent();
    // Only what is in a group makes its digest.
    for group in 0..GROUPS {
        let mut part = Table::of_node(2);
        for record in table.records_of_group(group, at(1)) {
            assert_eq!(part.hear(&record, at(2)), Merged::Changed);
        }
        let digests: Vec<u64> =
            (0..GROUPS).map(|other| if other == group { table.digests()[group] } else { 0 }).collect();
        assert_eq!(part.digests()[..], digests);
        assert_eq!(part.digest(), table.digests()[group]);
    }
}

#[test]
fn a_digest_tells_any_change_from_what_was_before() {
    let mut table = Table::of_node(1);
    let mut seen = vec![table.digest()];
    let mut see = |table: &Table| {
        assert!(!seen.contains(&table.digest()));
        seen.push(table.digest());
    };
    table.must_set("pro", MINUTE, at(0));
    see(&table);
    table.must_set("pro", MINUTE, at(0));
    see(&table);
    table.must_scale("pro", "1", None, at(0));
    see(&table);
    table.must_set("free", MINUTE, at(0));
    see(&table);
    table.delete(b"pro", at(0)).unwrap();
    see(&table);
}

#[test]
fn records_are_gone_through_in_pieces_while_the_table_changes() {
    let mut table = Table::of_node(1);
    let name = |n: usize| format!("plan:{n}");
    for n in 0..300 {
        table.must_set(&name(n), MINUTE, at(0));
    }
    let (mut walk, mut told, mut pieces) = (Walk::ALL, Table::of_node(2), 0);
    while !walk.is_over() {
        let piece = table.piece(&mut walk, 10, usize::MAX, at(1));
        assert!(piece.len() <= 10);
        for record in piece {
            assert_ne!(told.hear(&record, at(1)), Merged::Invalid);
        }
        // One is added and one is deleted, before or behind the place.
        table.must_set(&name(300 + pieces), MINUTE, at(2));
        table.delete(name(pieces).as_bytes(), at(2)).unwrap();
        pieces += 1;
    }
    assert!((30..45).contains(&pieces), "{pieces}");
    for n in pieces..300 {
        assert!(told.told(&name(n)).is_some(), "{n}");
    }
    // A piece ends with the record that has too many bytes.
    let (mut walk, bytes) = (Walk::ALL, table.told(&name(299)).unwrap().len());
    assert_eq!([1, bytes / 2].map(|bytes| table.piece(&mut walk, usize::MAX, bytes, at(1)).len()), [1, 1]);
    assert_eq!(table.piece(&mut walk, usize::MAX, 2 * bytes, at(1)).len(), 3);
    assert_eq!(table.piece(&mut Walk::default(), 10, 1000, at(1)), Vec::<Vec<u8>>::new());
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

// Deletions

#[test]
fn a_deletion_is_remembered_for_a_day_and_in_no_digest() {
    let (mut here, mut there) = (Table::of_node(1), Table::of_node(2));
    here.must_set("pro", MINUTE, at(0));
    let before = here.told("pro").unwrap();
    here.delete(b"pro", at(10)).unwrap();
    assert_eq!((here.digest(), here.records(at(0)).count()), (0, 1));
    // An older set comes late.
    assert_eq!(here.hear(&before, at(20)), Merged::Unchanged);
    // It is a day from when it was learned: there that was later.
    there.hear(&here.told("pro").unwrap(), at(5000));
    for (second, [here_remembers, there_remembers]) in [
        (10 + 86_399, [true, true]),
        (10 + 86_400, [false, true]),
        (5000 + 86_399, [false, true]),
        (5000 + 86_400, [false; 2]),
    ] {
        for (table, remembers) in [(&mut here, here_remembers), (&mut there, there_remembers)] {
            table.forget(at(second));
            assert_eq!(table.told("pro").is_some(), remembers, "{second}");
            assert_eq!(table.slots.deletions.len(), usize::from(remembers));
        }
    }
    assert_eq!(here.hear(&before, at(100_000)), Merged::Changed, "nobody knows any more");
}

#[test]
fn a_name_that_was_set_again_is_not_forgotten() {
    let mut table = Table::of_node(1);
    table.must_set("pro", MINUTE, at(0));
    table.delete(b"pro", at(1)).unwrap();
    table.must_set("pro", MINUTE, at(2));
    table.forget(at(1 + 86_400));
    assert_eq!(table.version("pro"), Some(version_of(2)));
    // Nor is a deletion forgotten for an older one's sake.
    table.delete(b"pro", at(90_000)).unwrap();
    table.must_set("pro", MINUTE, at(90_001));
    table.delete(b"pro", at(90_002)).unwrap();
    table.forget(at(90_001 + 86_400));
    assert!(table.told("pro").is_some());
    table.forget(at(90_002 + 86_400));
    assert!(table.told("pro").is_none());
    assert!(table.slots.deletions.is_empty());
}

#[test]
fn a_clock_gone_back_keeps_a_deletion_for_no_longer_than_a_day() {
    let mut table = Table::of_node(1);
    table.must_set("pro", MINUTE, at(0));
    table.delete(b"pro", at(1_000_000)).unwrap();
    table.forget(at(1000));
    table.forget(at(1000 + 86_399));
    assert!(table.told("pro").is_some());
    table.forget(at(1000 + 86_400));
    assert!(table.told("pro").is_none());
}

#[test]
fn thousands_of_deletions_are_forgotten_in_pieces() {
    let mut table = Table::of_node(1);
    for n in 0..1000 {
        table.must_set(&format!("plan:{n}"), MINUTE, at(0));
        table.delete(format!("plan:{n}").as_bytes(), at(0)).unwrap();
    }
    let left: Vec<usize> = (0..5)
        .map(|_| {
            table.forget(at(90_000));
            table.known()
        })
        .collect();
    assert_eq!(left, [744, 488, 232, 0, 0]);
    table.assert_consistent();
}

#[test]
fn so_many_deletions_are_remembered_and_no_more() {
    let mut table = Table::of_node(1);
    let name = |n: usize| format!("{n:05}");
    for n in 0..=MOST_DELETIONS {
        let record = format!("rl-policy 1 5:{} 1 0 1 0 1 1 0: 0 0 1000000 0", name(n));
        assert_eq!(table.hear(record.as_bytes(), at(0)), Merged::Changed);
    }
    assert_eq!(table.records(at(0)).count(), MOST_DELETIONS);
    assert!(table.told(&name(0)).is_none() && table.told(&name(1)).is_some());
}

// Laws

/// A record as some server may have written it. Stamps are near each other, so that there are ties.
fn records() -> impl Strategy<Value = Vec<u8>> {
    let stamp = || (0_u64..4, 0_u64..3).prop_map(|(at, node)| Stamp { at, node });
    let text = proptest::sample::select(vec!["", MINUTE, HOUR, "QUOTA 60 PER"]);
    let (name, by) = (proptest::sample::select(vec!["a", "b", "c"]), proptest::sample::select(vec!["0", "0.5", "1"]));
    let (duration, until) = (Period::parse(b"1s").unwrap(), Timestamp::EPOCH.plus(Span::SECOND));
    let end = proptest::sample::select(vec![End::Never, End::At(until), End::For { duration, until }]);
    let added = proptest::sample::select(vec![Timestamp::EPOCH, until]);
    (name, stamp(), stamp(), stamp(), 1_u64..3, text, by, (end, added)).prop_map(
        |(name, one, other, scaled, counted, text, by, (end, added))| {
            let definition = Definition {
                stamp: one.max(other),
                born: one.min(other),
                counted,
                set_at: 0,
                text: text.as_bytes().into(),
            };
            let scale =
                Scale { stamp: scaled, factor: factor(by), end, times: StepTimes { added, ..StepTimes::NEVER } };
            PolicyEntry { name: name.as_bytes().into(), definition, scale }.record(Span::ZERO).as_bytes().to_vec()
        },
    )
}

fn table_of<'a>(records: impl IntoIterator<Item = &'a Vec<u8>>) -> Table {
    let mut table = Table::of_node(1);
    for record in records {
        assert_ne!(table.hear(record, at(0)), Merged::Invalid);
        table.assert_consistent();
    }
    table
}

/// What a call by each name finds, and what is known by it.
fn shown(table: &Table) -> [String; 3] {
    ["a", "b", "c"].map(|name| {
        let record = table.told(name).map(|record| record.escape_ascii().to_string());
        format!("{record:?} {:?}", table.ruling(name, at(0)))
    })
}

proptest! {
    #[test]
    fn the_order_in_which_records_come_is_nothing_to_the_table(
        (records, shuffled) in proptest::collection::vec(records(), 0..12)
            .prop_flat_map(|records| (Just(records.clone()), Just(records).prop_shuffle())),
        again in proptest::collection::vec(any::<proptest::sample::Index>(), 0..6),
    ) {
        let one = table_of(&records);
        let doubled = again.iter().filter(|_| !records.is_empty()).map(|index| index.get(&records));
        let other = table_of(shuffled.iter().chain(doubled));
        prop_assert_eq!(shown(&one), shown(&other));
        prop_assert_eq!(one.digests(), other.digests());
        // Merged twice, or by way of a table between.
        let by_way = table_of(&one.records(at(0)).collect::<Vec<_>>());
        prop_assert_eq!(shown(&one), shown(&by_way));
    }

    #[test]
    fn tables_of_one_digest_have_the_same_policies(
        one in proptest::collection::vec(records(), 0..4),
        other in proptest::collection::vec(records(), 0..4),
    ) {
        let (one, other) = (table_of(&one), table_of(&other));
        prop_assert_eq!(one.digests() == other.digests(), one.live_records() == other.live_records());
    }
}
