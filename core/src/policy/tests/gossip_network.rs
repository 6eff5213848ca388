//! Gossip among hundreds of primaries over a simulated network, with the sizes of what a server sends for it.

use super::*;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// Bytes of a message of the cluster bus before the module's own: the server's header and the module's.
const HEADER: u64 = 2_256 + 13;
/// Byte with the form of a message of this module.
const FORM: u64 = 1;
/// Records that a server sends to a peer or takes over in one turn, bytes of them, peers, and milliseconds of a turn:
/// those of the module.
const BATCH_SIZE: usize = 200;
const BATCH_BYTES: usize = 32_768;
const ANSWERS_AT_ONCE: usize = 4;
const TURN: u64 = 5;
/// Milliseconds that a message takes, at most.
const LATENCY: u64 = 20;

#[derive(Clone)]
enum Message {
    Digest(Rc<[u64; GROUPS]>),
    Ask(u64),
    Records(Rc<Vec<Vec<u8>>>),
}

impl Message {
    fn bytes(&self) -> u64 {
        let body: usize = match self {
            Message::Digest(digest) => digest.len() * 8,
            Message::Ask(_) => 8,
            Message::Records(records) => records.iter().map(|record| record.len() + 4).sum(),
        };
        HEADER + FORM + whole(body)
    }
}

enum Event {
    Tick(usize),
    Early(usize),
    Turn(usize),
    Arrival { from: usize, to: usize, message: Message },
}

struct Node {
    table: Table,
    gossip: Gossip<usize>,
    is_round_scheduled: bool,
    /// A server with paused writes takes over nothing.
    is_paused: bool,
}

struct Network {
    nodes: Vec<Node>,
    /// Milliseconds since the start.
    now: u64,
    events: BTreeMap<(u64, u64), Event>,
    last_event: u64,
    random: u64,
    /// Part of each node: those of different parts do not reach each other.
    parts: Vec<usize>,
    /// Messages lost, of a thousand.
    lost: u64,
    /// Bytes sent so far, and digests.
    bytes: u64,
    digests: u64,
}

impl Network {
    /// Primaries that have the same policies.
    fn of(primaries: usize, seed: u64) -> Network {
        let mut network = Network {
            nodes: Vec::new(),
            now: 0,
            events: BTreeMap::new(),
            last_event: 0,
            random: seed,
            parts: Vec::new(),
            lost: 0,
            bytes: 0,
            digests: 0,
        };
        for _ in 0..primaries {
            network.join();
        }
        for number in 0..8 {
            network.write(0, &format!("plan:{number}"));
            let record = network.nodes[0].table.record(format!("plan:{number}").as_bytes(), network.clock()).unwrap();
            let now = network.clock();
            for node in &mut network.nodes[1..] {
                node.table.merge(&record, Origin::Peer, now);
            }
        }
        // Each has drawn the time of its next digest some times.
        network.run(20_000);
        (network.bytes, network.digests) = (0, 0);
        network
    }

    /// Adds a primary without policies, and returns its number.
    fn join(&mut self) -> usize {
        let node = self.nodes.len();
        self.nodes.push(Node::new(node));
        self.parts.push(0);
        let delay = self.random(1_000);
        self.after(delay, Event::Tick(node));
        node
    }

    /// Has a node lose all that it knows.
    fn restart(&mut self, node: usize) {
        let is_round_scheduled = self.nodes[node].is_round_scheduled;
        self.nodes[node] = Node { is_round_scheduled, ..Node::new(node) };
    }

    /// Sets a policy at a node, and returns its record, which has not been sent yet.
    fn write(&mut self, node: usize, name: &str) -> Message {
        let now = self.clock();
        let table = &mut self.nodes[node].table;
        table.set(name.as_bytes(), Condition::Always, &policy(MINUTE), now, MAX_POLICIES).unwrap();
        Message::Records(Rc::new(vec![table.record(name.as_bytes(), now).unwrap()]))
    }

    fn clock(&self) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + self.now * 1_000).unwrap()
    }

    fn steady(&self) -> Duration {
        Duration::from_millis(self.now)
    }

    /// Returns the next random number below a bound.
    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % below
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.last_event += 1;
        self.events.insert((self.now + delay, self.last_event), event);
    }

    fn send(&mut self, from: usize, to: usize, message: &Message) {
        // A link that is down is sent nothing.
        if self.parts[from] != self.parts[to] {
            return;
        }
        self.bytes += message.bytes();
        if self.random(1_000) >= self.lost {
            let delay = 1 + self.random(LATENCY);
            self.after(delay, Event::Arrival { from, to, message: message.clone() });
        }
    }

    fn send_to_all(&mut self, from: usize, message: &Message) {
        for to in (0..self.nodes.len()).filter(|to| *to != from) {
            self.send(from, to, message);
        }
    }

    fn send_digest(&mut self, node: usize) {
        self.digests += 1;
        let digest = Message::Digest(Rc::new(*self.nodes[node].table.digests()));
        self.send_to_all(node, &digest);
    }

    fn run(&mut self, milliseconds: u64) {
        let end = self.now + milliseconds;
        while self.events.first_key_value().is_some_and(|((at, _), _)| *at <= end) {
            let ((at, _), event) = self.events.pop_first().unwrap();
            self.now = at;
            self.happens(event);
        }
        self.now = end;
    }

    fn happens(&mut self, event: Event) {
        let (steady, clock, random) = (self.steady(), self.clock(), self.random(u64::MAX));
        match event {
            Event::Tick(node) => {
                self.after(1_000, Event::Tick(node));
                let primaries = self.nodes.len();
                let Node { table, gossip, .. } = &mut self.nodes[node];
                if gossip.is_digest_due(primaries, steady, random) && table.record_count() > 0 {
                    self.send_digest(node);
                }
            }
            Event::Early(node) => {
                let Node { table, gossip, .. } = &mut self.nodes[node];
                match gossip.early(table.buffered() > 0, steady) {
                    EarlyDigest::Send if table.record_count() > 0 => self.send_digest(node),
                    EarlyDigest::Wait(left) => self.after(milliseconds(left), Event::Early(node)),
                    EarlyDigest::Send | EarlyDigest::Cancelled => {}
                }
            }
            Event::Turn(node) => {
                self.nodes[node].is_round_scheduled = false;
                self.run_round(node, clock);
            }
            Event::Arrival { from, to, message } => {
                let Node { table, gossip, is_paused, .. } = &mut self.nodes[to];
                match message {
                    Message::Digest(peer_digests) => {
                        let can_merge = table.buffered() == 0 && !*is_paused;
                        let outcome =
                            gossip.receive_digest(from, &peer_digests, table.digests(), can_merge, steady, random);
                        if let Some(delay) = outcome.early_digest {
                            self.after(milliseconds(delay), Event::Early(to));
                        }
                        if let Some(groups) = outcome.request_groups {
                            self.send(to, from, &Message::Ask(groups));
                        }
                    }
                    Message::Ask(groups) => {
                        gossip.answer(from, groups);
                        self.schedule_round(to);
                    }
                    Message::Records(records) => {
                        gossip.receive_records(from, steady);
                        for record in records.iter() {
                            assert!(table.buffer(record, clock));
                        }
                        self.schedule_round(to);
                    }
                }
            }
        }
    }

    fn schedule_round(&mut self, node: usize) {
        if !std::mem::replace(&mut self.nodes[node].is_round_scheduled, true) {
            self.after(TURN, Event::Turn(node));
        }
    }

    /// Sends pieces of answers, and takes over records.
    fn run_round(&mut self, node: usize, clock: Timestamp) {
        for _ in 0..ANSWERS_AT_ONCE {
            let Some((to, mut walk)) = self.nodes[node].gossip.next_answer() else { break };
            let records = self.nodes[node].table.next_batch(&mut walk, BATCH_SIZE, BATCH_BYTES, clock);
            if !records.is_empty() {
                self.send(node, to, &Message::Records(Rc::new(records)));
            }
            self.nodes[node].gossip.requeue_answer(to, walk);
            self.schedule_round(node);
        }
        let Node { table, is_paused, .. } = &mut self.nodes[node];
        if !*is_paused {
            for _ in 0..BATCH_SIZE {
                if table.merge_buffered(clock).is_none() {
                    return;
                }
            }
            self.schedule_round(node);
        }
    }

    fn agree(&self) -> bool {
        let digests: BTreeSet<u64> =
            self.nodes.iter().filter(|node| !node.is_paused).map(|node| node.table.digest()).collect();
        digests.len() == 1
    }

    /// Runs until all agree, and returns the milliseconds that it took.
    fn repair(&mut self) -> u64 {
        let began = self.now;
        while !self.agree() {
            assert!(self.now - began < 60_000, "they still differ after a minute");
            self.run(20);
        }
        self.now - began
    }

    /// Runs for so many milliseconds, and returns the bytes that the whole cluster sends in a second.
    fn bytes_a_second(&mut self, milliseconds: u64) -> u64 {
        let sent = self.bytes;
        self.run(milliseconds);
        (self.bytes - sent) * 1_000 / milliseconds
    }
}

impl Node {
    fn new(number: usize) -> Node {
        let table = Table::of_node(whole(number) + 1);
        Node { table, gossip: Gossip::default(), is_round_scheduled: false, is_paused: false }
    }
}

/// Makes some primaries differ.
type Mishap = fn(&mut Network);

const ONE_HAS_WHAT_NO_OTHER_HAS: Mishap = |network| {
    network.write(1, "lone");
};

const ONE_MISSES_WHAT_ALL_OTHERS_HAVE: Mishap = |network| {
    let record = network.write(0, "missed");
    for to in 2..network.nodes.len() {
        network.send(0, to, &record);
    }
    network.run(2 * LATENCY);
};

const ONE_IS_NEW: Mishap = |network| {
    network.join();
};

const SOME_HAVE_LOST_ALL: Mishap = |network| {
    for node in (1..network.nodes.len()).step_by(10) {
        network.restart(node);
    }
};

const HALVES_WERE_APART: Mishap = |network| {
    let all = network.nodes.len();
    network.parts = (0..all).map(|node| node % 2).collect();
    for node in [0, 1] {
        let record = network.write(node, &format!("half:{node}"));
        network.send_to_all(node, &record);
    }
    network.run(3_000);
    network.parts = vec![0; all];
};

const MESSAGES_ARE_LOST: Mishap = |network| {
    network.lost = 250;
    for node in 0..3 {
        let record = network.write(node, &format!("lossy:{node}"));
        network.send_to_all(node, &record);
    }
};

const EACH_HAS_WHAT_NO_OTHER_HAS: Mishap = |network| {
    for node in 0..network.nodes.len() {
        network.write(node, &format!("own:{node}"));
    }
};

fn whole(number: usize) -> u64 {
    number.try_into().unwrap()
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap()
}

/// Bytes a second of digests alone, in a cluster of so many primaries.
fn digests_a_second(primaries: usize) -> u64 {
    let all = whole(primaries * (primaries - 1));
    all * Message::Digest(Rc::new([0; GROUPS])).bytes() / gossip::interval(primaries).as_secs()
}

#[test]
fn interval_grows_with_the_number_of_primaries() {
    let seconds = |primaries| gossip::interval(primaries).as_secs();
    assert_eq!([0, 1, 3, 16, 17, 32, 33, 100, 500].map(seconds), [1, 1, 1, 1, 2, 2, 3, 7, 32]);
}

#[test]
fn digests_of_equal_primaries_cost_the_documented_bandwidth() {
    assert_eq!(digests_a_second(100), 3_934_542);
    assert_eq!(digests_a_second(500), 21_690_906);
    for primaries in [3, 16, 40, 100] {
        let mut network = Network::of(primaries, 1);
        let (expected, found) = (digests_a_second(primaries), network.bytes_a_second(200_000));
        assert!(found.abs_diff(expected) < expected / 10, "{primaries}: {found} bytes a second, not {expected}");
    }
}

/// Milliseconds after a repair in which what it cost is counted too.
const SETTLES: u64 = 5_000;

/// Runs a mishap in clusters of several sizes, and checks how long the repair takes and what is sent meanwhile.
fn check(mishap: Mishap, most_milliseconds: u64, most_bytes_a_second: u64) {
    for primaries in [3, 16, 40, 100] {
        for seed in 0..2 {
            let mut network = Network::of(primaries, seed);
            mishap(&mut network);
            let (began, sent) = (network.now, network.bytes);
            let took = network.repair();
            network.run(SETTLES);
            let bytes = (network.bytes - sent) * 1_000 / (network.now - began);
            assert!(took <= most_milliseconds, "{primaries} primaries, seed {seed}: {took} ms");
            assert!(bytes <= most_bytes_a_second, "{primaries} primaries, seed {seed}: {bytes} bytes a second");
        }
    }
}

#[test]
fn record_of_one_primary_reaches_all_in_about_a_second() {
    check(ONE_HAS_WHAT_NO_OTHER_HAS, 1_500, 6_000_000);
}

#[test]
fn record_missing_on_one_primary_arrives_in_about_a_second() {
    check(ONE_MISSES_WHAT_ALL_OTHERS_HAVE, 1_200, 6_000_000);
}

#[test]
fn new_primary_has_all_records_in_about_a_second() {
    check(ONE_IS_NEW, 1_500, 6_000_000);
}

#[test]
fn primaries_restarted_empty_have_all_records_in_about_a_second() {
    check(SOME_HAVE_LOST_ALL, 1_500, 6_000_000);
}

#[test]
fn rejoined_halves_converge_in_about_a_second() {
    check(HALVES_WERE_APART, 1_500, 6_000_000);
}

#[test]
fn lost_messages_only_delay_a_repair() {
    check(MESSAGES_ARE_LOST, 15_000, 6_000_000);
}

#[test]
fn traffic_is_bounded_if_all_primaries_differ() {
    check(EACH_HAS_WHAT_NO_OTHER_HAS, 30_000, 8_000_000);
}

#[test]
fn primary_that_never_converges_costs_little() {
    let mut network = Network::of(100, 1);
    network.nodes[1].is_paused = true;
    let record = network.write(0, "paused");
    network.send_to_all(0, &record);
    let bytes = network.bytes_a_second(60_000);
    assert!(bytes < digests_a_second(100) * 6 / 5, "{bytes} bytes a second");
    network.nodes[1].is_paused = false;
    network.schedule_round(1);
    assert!(network.repair() <= 1_500);
}

/// 500 primaries with a replica each: gossip does not go to replicas.
#[test]
fn cluster_of_a_thousand_nodes_repairs_itself_in_two_seconds() {
    let mut network = Network::of(500, 1);
    for mishap in [ONE_HAS_WHAT_NO_OTHER_HAS, ONE_MISSES_WHAT_ALL_OTHERS_HAVE, SOME_HAVE_LOST_ALL, HALVES_WERE_APART] {
        mishap(&mut network);
        let (began, sent) = (network.now, network.bytes);
        let took = network.repair();
        network.run(SETTLES);
        let bytes = (network.bytes - sent) * 1_000 / (network.now - began);
        assert!(took <= 2_000, "{took} ms");
        assert!(bytes <= 2 * digests_a_second(500), "{bytes} bytes a second");
    }
}
