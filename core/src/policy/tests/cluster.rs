//! Cluster of tables with different clocks, whose messages are lost, duplicated, reordered and delayed. Once all nodes
//! can communicate, their tables converge.

use super::*;
use proptest::sample::{Index, select};

const NODES: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    /// A client writes to a node, which broadcasts the record.
    Write {
        node: usize,
        name: &'static str,
        write: Write,
    },
    /// A message arrives.
    Deliver(Index),
    /// A message arrives, and will arrive once more.
    Duplicate(Index),
    /// A message is lost.
    Lose(Index),
    /// Time passes, in seconds.
    Wait(u64),
    /// The clock of a node is set to an offset from the true time, in seconds.
    SetClock {
        node: usize,
        skew: i64,
    },
    /// The network is partitioned: the nodes with `true` are cut off from the others.
    Partition([bool; NODES]),
    /// Two nodes compare digests, and the first requests the records that differ.
    Gossip {
        requester: usize,
        responder: usize,
    },
    /// A node restarts from its last snapshot, or empty.
    Restart(usize),
    Save(usize),
    /// A node drops expired deletions.
    DropDeletions(usize),
}

#[derive(Clone, Debug)]
enum Write {
    Set(&'static str),
    SetIfMissing(&'static str),
    /// Sets the policy over the version on this node, which another node may have replaced long ago.
    SetOver(&'static str),
    Scale(&'static str, Option<u64>),
    /// Applies MUL or ADD, with the seconds of EVERY.
    Step(ScaleStep, Option<u64>),
    Delete,
    /// Sets a definition that only a later version of the module can parse.
    SetLater,
}

#[derive(Debug)]
struct Message {
    from: usize,
    to: usize,
    record: Vec<u8>,
}

struct Cluster {
    tables: Vec<Table>,
    /// Records in the last snapshot of each node.
    saved: Vec<Vec<Vec<u8>>>,
    skews: [i64; NODES],
    now: u64,
    /// Side of each node in a partition of the network.
    sides: [bool; NODES],
    messages: Vec<Message>,
}

impl Cluster {
    fn new() -> Cluster {
        let tables = (1..).take(NODES).map(Table::of_node).collect();
        let saved = vec![Vec::new(); NODES];
        Cluster { tables, saved, skews: [0; NODES], now: 10_000_000, sides: [false; NODES], messages: Vec::new() }
    }

    fn clock(&self, node: usize) -> Timestamp {
        at(self.now.checked_add_signed(self.skews[node]).unwrap())
    }

    fn is_cut(&self, one: usize, other: usize) -> bool {
        self.sides[one] != self.sides[other]
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Write { node, name, write } => self.write(*node, name, write),
            Step::Deliver(index) => self.deliver(*index, true),
            Step::Duplicate(index) => self.deliver(*index, false),
            Step::Lose(index) if !self.messages.is_empty() => {
                self.messages.swap_remove(index.index(self.messages.len()));
            }
            Step::Lose(_) => {}
            Step::Wait(seconds) => self.now += seconds,
            Step::SetClock { node, skew } => self.skews[*node] = *skew,
            Step::Partition(sides) => self.sides = *sides,
            Step::Gossip { requester, responder } => {
                self.gossip(*requester, *responder);
            }
            Step::Save(node) => {
                let now = self.clock(*node);
                self.saved[*node] = self.tables[*node].records(now).collect();
            }
            Step::Restart(node) => {
                let now = self.clock(*node);
                let mut table = Table::of_node(self.tables[*node].node);
                self.saved[*node]
                    .iter()
                    .for_each(|record| assert_eq!(table.merge(record, Origin::Disk, now), MergeOutcome::Changed));
                self.tables[*node] = table;
            }
            Step::DropDeletions(node) => {
                let now = self.clock(*node);
                self.tables[*node].drop_old_deletions(now);
            }
        }
    }

    /// Writes to a node, asserts the effect there, and sends the record to all others.
    fn write(&mut self, node: usize, name: &str, write: &Write) {
        let now = self.clock(node);
        let table = &mut self.tables[node];
        let before = table.get(name.as_bytes(), now);
        let current = before.as_ref().map(|facts| facts.version);
        let latest_stamp = table.slots.get(name.as_bytes()).map_or(0, |slot| slot.entry.latest(Horizon::of(now)));
        let is_new = |version| version > latest_stamp;
        let mut set = |text, condition| table.set(name.as_bytes(), condition, &policy(text), now, MAX_POLICIES);
        let changed = match write {
            Write::Set(text) => {
                let set = set(text, Condition::Always).unwrap();
                assert!(set.changed && is_new(set.version));
                true
            }
            Write::SetIfMissing(text) => {
                let set = set(text, Condition::IfMissing).unwrap();
                assert_eq!(set.changed, current.is_none());
                assert!(current.is_none_or(|current| current == set.version));
                set.changed
            }
            Write::SetOver(text) => match current {
                Some(current) => {
                    assert!(set(text, Condition::OverVersion(current + 1)).is_err());
                    is_new(set(text, Condition::OverVersion(current)).unwrap().version)
                }
                None => set(text, Condition::OverVersion(1)).is_ok(),
            },
            Write::Scale(text, seconds) if current.is_some() => {
                table.must_scale(name, text, *seconds, now);
                let facts = table.get(name.as_bytes(), now).unwrap();
                assert_eq!((facts.scale, facts.scale_left), (factor(text), seconds.map(|s| Span::SECOND.times(s))));
                true
            }
            Write::Step(step, every) if current.is_some() => {
                let every = every.map(|seconds| Period::new(Span::SECOND.times(seconds)).unwrap());
                let scaling = Scaling { step: *step, every, duration: None };
                let before = before.as_ref().unwrap().scale;
                let ScaleOutcome { facts, changed } = table.scale(name.as_bytes(), scaling, now).unwrap();
                let Scale { factor: after, .. } =
                    Scale { factor: before, ..Scale::NONE }.followed_by(scaling, Stamp::OLDEST, now);
                assert_eq!(facts.scale, if changed { after } else { before });
                assert!(changed || every.is_some());
                changed
            }
            Write::Scale(..) | Write::Step(..) => false,
            Write::Delete => {
                let deleted = table.delete(name.as_bytes(), now).unwrap();
                assert_eq!(deleted, current.is_some());
                assert!(matches!(table.find(name.as_bytes(), now), PolicyLookup::Missing));
                deleted
            }
            Write::SetLater => {
                set(MINUTE_LIMIT, Condition::Always).unwrap();
                let mut entry = table.slots.get(name.as_bytes()).unwrap().entry.clone();
                entry.definition.stamp.at += 1;
                entry.definition.text = b"QUOTA 60 PER"[..].into();
                let record = entry.record(ScaleTiming::default());
                assert_eq!(table.merge(record.as_bytes(), Origin::Disk, now), MergeOutcome::Changed);
                assert!(matches!(table.find(name.as_bytes(), now), PolicyLookup::Unreadable));
                true
            }
        };
        if let (Write::Set(text) | Write::SetOver(text), true) = (write, changed) {
            assert_eq!(&*table.get(name.as_bytes(), now).unwrap().specs, text.as_bytes());
        }
        table.assert_consistent();
        if changed {
            let record = table.record(name.as_bytes(), now).unwrap();
            for to in (0..NODES).filter(|to| *to != node) {
                self.messages.push(Message { from: node, to, record: record.clone() });
            }
        }
    }

    /// Delivers a message, and removes it if `is_last` is `true`.
    fn deliver(&mut self, index: Index, is_last: bool) {
        if self.messages.is_empty() {
            return;
        }
        let index = index.index(self.messages.len());
        let Message { from, to, .. } = self.messages[index];
        let record =
            if is_last { self.messages.swap_remove(index).record } else { self.messages[index].record.clone() };
        if !self.is_cut(from, to) {
            self.receive(to, &record);
        }
    }

    fn receive(&mut self, node: usize, record: &[u8]) {
        let now = self.clock(node);
        assert_ne!(self.tables[node].receive(record, now), MergeOutcome::Malformed);
        self.tables[node].assert_consistent();
    }

    /// Exchanges records of groups with different digests. Returns `true` if there were any.
    fn gossip(&mut self, requester: usize, responder: usize) -> bool {
        if self.is_cut(requester, responder) {
            return false;
        }
        let [own, theirs] = [requester, responder].map(|node| *self.tables[node].digests());
        let differing: Vec<usize> = (0..GROUPS).filter(|group| own[*group] != theirs[*group]).collect();
        for group in &differing {
            let records = self.tables[responder].records_of_group(*group, self.clock(responder));
            for record in records {
                self.receive(requester, &record);
            }
        }
        !differing.is_empty()
    }

    /// Waits until no stamp is ahead, all scales have ended and all deletions are dropped. Corrects all clocks.
    fn wait_for_days(&mut self) {
        self.now += 1_000_000;
        self.skews = [0; NODES];
        for node in 0..NODES {
            let now = self.clock(node);
            self.tables[node].drop_old_deletions(now);
            assert!(self.tables[node].slots.deletions.is_empty());
        }
    }

    /// Lets all nodes exchange records until none detects a difference.
    fn heal(&mut self) {
        self.sides = [false; NODES];
        self.messages.clear();
        for _ in 0..3 {
            let mut any_differs = false;
            for requester in 0..NODES {
                for responder in (0..NODES).filter(|responder| *responder != requester) {
                    any_differs |= self.gossip(requester, responder);
                }
            }
            if !any_differs {
                return;
            }
        }
        unreachable!("all pairs have exchanged records twice");
    }
}

fn writes() -> impl Strategy<Value = Write> {
    let text = || select(vec![MINUTE_LIMIT, HOUR_LIMIT, "SLIDING 5 1m SHADOW", "FIXED 9 1d AS day BAN 3 1m 1h"]);
    let brake = ScaleStep::Multiply { multiplier: factor("0.5"), min: factor("0.01") };
    let increase = ScaleStep::Add { step: factor("0.3"), max: Amount::ONE };
    prop_oneof![
        3 => text().prop_map(Write::Set),
        1 => text().prop_map(Write::SetIfMissing),
        1 => text().prop_map(Write::SetOver),
        2 => (select(vec!["0", "0.5", "1", "1000"]), select(vec![None, Some(1), Some(90_000)]))
            .prop_map(|(text, seconds)| Write::Scale(text, seconds)),
        2 => (select(vec![brake, increase]), select(vec![None, Some(1), Some(100)])).prop_map(|(step, every)| Write::Step(step, every)),
        2 => Just(Write::Delete),
        1 => Just(Write::SetLater),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    let node = || 0..NODES;
    prop_oneof![
        8 => (node(), select(vec!["a", "b", "c"]), writes()).prop_map(|(node, name, write)| Step::Write { node, name, write }),
        8 => any::<Index>().prop_map(Step::Deliver),
        2 => any::<Index>().prop_map(Step::Duplicate),
        2 => any::<Index>().prop_map(Step::Lose),
        3 => select(vec![0, 1, 60, 40_000, 90_000]).prop_map(Step::Wait),
        1 => (node(), select(vec![0, 1, -1, 7200, -7200, -100_000, 200_000]))
            .prop_map(|(node, skew)| Step::SetClock { node, skew }),
        1 => any::<[bool; NODES]>().prop_map(Step::Partition),
        3 => (node(), node()).prop_map(|(requester, responder)| Step::Gossip { requester, responder }),
        1 => node().prop_map(Step::Save),
        1 => node().prop_map(Step::Restart),
        1 => node().prop_map(Step::DropDeletions),
    ]
}

proptest! {
    #[test]
    fn tables_converge_after_any_faults(steps in proptest::collection::vec(steps(), 0..60)) {
        let mut cluster = Cluster::new();
        for step in &steps {
            cluster.step(step);
        }
        cluster.wait_for_days();
        cluster.heal();
        let [first, others @ ..] = cluster.tables.as_slice() else { unreachable!() };
        for other in others {
            prop_assert_eq!(first.live_records(), other.live_records());
            prop_assert_eq!(first.digest(), other.digest());
            for name in ["a", "b", "c"] {
                // Lookups by the same clock give the same policy.
                prop_assert_eq!(first.policy(name, at(cluster.now)), other.policy(name, at(cluster.now)));
            }
        }
    }

    #[test]
    fn latest_written_register_wins(
        steps in proptest::collection::vec(
            steps().prop_filter("dropped deletions and writes lost in a restart do not count", |step| {
                !matches!(step, Step::Restart(_) | Step::DropDeletions(_) | Step::Wait(40_000..) | Step::SetClock { .. })
            }),
            0..40,
        ),
    ) {
        let mut cluster = Cluster::new();
        let mut latest: [Option<PolicyEntry>; 3] = Default::default();
        for step in &steps {
            cluster.step(step);
            for (name, latest) in ["a", "b", "c"].iter().zip(&mut latest) {
                for slot in cluster.tables.iter().filter_map(|table| table.slots.get(name.as_bytes())) {
                    match latest {
                        Some(latest) => {
                            latest.merge(slot.entry.clone(), Horizon::of(at(cluster.now)));
                        }
                        None => *latest = Some(slot.entry.clone()),
                    }
                }
            }
        }
        cluster.heal();
        let live: Vec<_> = latest.iter().flatten().filter(|entry| !entry.is_deleted()).collect();
        let mut live: Vec<_> = live.iter().map(|entry| entry.identity().as_bytes().to_vec()).collect();
        live.sort_unstable();
        for table in &cluster.tables {
            prop_assert_eq!(table.live_records(), live.clone());
        }
    }
}
