//! Gossip among hundreds of primaries over a simulated network, with the time and traffic that it takes.

use super::*;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// Bytes of a message of the cluster bus before its body: the headers of the server and of the module.
const HEADER: u64 = 2_256 + 13;
/// Length of the field with the form of a message, in bytes.
const FORM: u64 = 1;
/// Number of records that a server sends to a peer or merges in one round, as in the module.
const BATCH_SIZE: usize = 200;
/// Bytes of records that a server sends to a peer in one round, as in the module.
const BATCH_BYTES: usize = 32_768;
/// Number of peers that a server answers in one round, as in the module.
const ANSWERS_AT_ONCE: usize = 4;
/// Time between two rounds in milliseconds, as in the module.
const ROUND: u64 = 5;
/// Maximum time that a message takes, in milliseconds.
const LATENCY: u64 = 20;

#[derive(Clone)]
enum Message {
    Digest(Rc<[u64; GROUPS]>),
    /// Request for the records of groups, a bit for each.
    Request(u64),
    Records(Rc<Vec<Vec<u8>>>),
}

impl Message {
    /// Returns the length of the message on the cluster bus.
    fn bytes(&self) -> u64 {
        let body: usize = match self {
            Message::Digest(digest) => digest.len() * 8,
            Message::Request(_) => 8,
            Message::Records(records) => records.iter().map(|record| record.len() + 4).sum(),
        };
        HEADER + FORM + to_u64(body)
    }
}

/// Event at a node, by its number.
enum Event {
    Tick(usize),
    EarlyDigest(usize),
    Round(usize),
    Arrival { from: usize, to: usize, message: Message },
}

struct Node {
    table: Table,
    gossip: Gossip<usize>,
    is_round_scheduled: bool,
    /// `true` while writes are paused: the server merges no records.
    is_paused: bool,
}

struct Network {
    nodes: Vec<Node>,
    /// Milliseconds since the start.
    now: u64,
    /// Events by their time and their number.
    events: BTreeMap<(u64, u64), Event>,
    /// Number of the last event.
    last_event: u64,
    random: u64,
    /// Side of each node in a partition of the network.
    sides: Vec<usize>,
    /// Number of lost messages of a thousand.
    loss_rate: u64,
    /// Bytes sent so far.
    bytes: u64,
}

impl Network {
    /// Creates a network of primaries with the same policies.
    fn of(primaries: usize, seed: u64) -> Network {
        let mut network = Network {
            nodes: Vec::new(),
            now: 0,
            events: BTreeMap::new(),
            last_event: 0,
            random: seed,
            sides: Vec::new(),
            loss_rate: 0,
            bytes: 0,
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
        // After some rounds, the digests of the primaries are spread over the interval.
        network.run(20_000);
        network.bytes = 0;
        network
    }

    /// Adds a primary without policies, and returns its number.
    fn join(&mut self) -> usize {
        let node = self.nodes.len();
        self.nodes.push(Node::new(node));
        self.sides.push(0);
        let delay = self.random(1_000);
        self.schedule(delay, Event::Tick(node));
        node
    }

    /// Restarts a node with an empty table.
    fn restart(&mut self, node: usize) {
        let is_round_scheduled = self.nodes[node].is_round_scheduled;
        self.nodes[node] = Node { is_round_scheduled, ..Node::new(node) };
    }

    /// Sets a policy at a node, and returns the message with its record, which has not been sent yet.
    fn write(&mut self, node: usize, name: &str) -> Message {
        let now = self.clock();
        let table = &mut self.nodes[node].table;
        table.set(name.as_bytes(), Condition::Always, &policy(MINUTE_LIMIT), now, MAX_POLICIES).unwrap();
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

    /// Schedules an event after a delay in milliseconds.
    fn schedule(&mut self, delay: u64, event: Event) {
        self.last_event += 1;
        self.events.insert((self.now + delay, self.last_event), event);
    }

    fn send(&mut self, from: usize, to: usize, message: &Message) {
        if self.sides[from] != self.sides[to] {
            return;
        }
        self.bytes += message.bytes();
        if self.random(1_000) >= self.loss_rate {
            let delay = 1 + self.random(LATENCY);
            self.schedule(delay, Event::Arrival { from, to, message: message.clone() });
        }
    }

    fn send_to_all(&mut self, from: usize, message: &Message) {
        for to in (0..self.nodes.len()).filter(|to| *to != from) {
            self.send(from, to, message);
        }
    }

    fn send_digest(&mut self, node: usize) {
        let digest = Message::Digest(Rc::new(*self.nodes[node].table.digests()));
        self.send_to_all(node, &digest);
    }

    fn run(&mut self, milliseconds: u64) {
        let end = self.now + milliseconds;
        while self.events.first_key_value().is_some_and(|((at, _), _)| *at <= end) {
            let ((at, _), event) = self.events.pop_first().unwrap();
            self.now = at;
            self.handle(event);
        }
        self.now = end;
    }

    fn handle(&mut self, event: Event) {
        let (steady, clock, random) = (self.steady(), self.clock(), self.random(u64::MAX));
        match event {
            Event::Tick(node) => {
                self.schedule(1_000, Event::Tick(node));
                let primaries = self.nodes.len();
                let Node { table, gossip, .. } = &mut self.nodes[node];
                if gossip.is_digest_due(primaries, steady, random) && table.record_count() > 0 {
                    self.send_digest(node);
                }
            }
            Event::EarlyDigest(node) => {
                let Node { table, gossip, .. } = &mut self.nodes[node];
                match gossip.decide_early_digest(table.buffered() > 0, steady) {
                    EarlyDigest::Send if table.record_count() > 0 => self.send_digest(node),
                    EarlyDigest::Wait(delay) => self.schedule(milliseconds(delay), Event::EarlyDigest(node)),
                    EarlyDigest::Send | EarlyDigest::Cancelled => {}
                }
            }
            Event::Round(node) => {
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
                            self.schedule(milliseconds(delay), Event::EarlyDigest(to));
                        }
                        if let Some(groups) = outcome.request_groups {
                            self.send(to, from, &Message::Request(groups));
                        }
                    }
                    Message::Request(groups) => {
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
            self.schedule(ROUND, Event::Round(node));
        }
    }

    /// Sends the next batches of answers, and merges buffered records.
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

    /// Returns `true` if all primaries have the same digest, except paused ones.
    fn have_converged(&self) -> bool {
        let digests: BTreeSet<u64> =
            self.nodes.iter().filter(|node| !node.is_paused).map(|node| node.table.digest()).collect();
        digests.len() == 1
    }

    /// Runs until the primaries have converged, and returns the elapsed milliseconds.
    fn converge(&mut self) -> u64 {
        let start = self.now;
        while !self.have_converged() {
            assert!(self.now - start < 60_000, "the primaries still differ after a minute");
            self.run(20);
        }
        self.now - start
    }

    /// Runs for `milliseconds`, and returns the bytes that the whole cluster sends per second.
    fn bytes_per_second(&mut self, milliseconds: u64) -> u64 {
        let bytes_before = self.bytes;
        self.run(milliseconds);
        (self.bytes - bytes_before) * 1_000 / milliseconds
    }

    /// Returns the milliseconds until the primaries have converged again, and the bytes sent per second.
    fn run_divergence(&mut self, divergence: Divergence) -> (u64, u64) {
        divergence(self);
        let (start, bytes_before) = (self.now, self.bytes);
        let milliseconds = self.converge();
        self.run(TAIL);
        (milliseconds, (self.bytes - bytes_before) * 1_000 / (self.now - start))
    }
}

impl Node {
    fn new(number: usize) -> Node {
        let table = Table::of_node(to_u64(number) + 1);
        Node { table, gossip: Gossip::default(), is_round_scheduled: false, is_paused: false }
    }
}

/// Event that makes some primaries differ.
type Divergence = fn(&mut Network);

const ONE_HAS_A_NEW_RECORD: Divergence = |network| {
    network.write(1, "new");
};

const ONE_MISSED_A_RECORD: Divergence = |network| {
    let record = network.write(0, "missed");
    for to in 2..network.nodes.len() {
        network.send(0, to, &record);
    }
    network.run(2 * LATENCY);
};

const ONE_JOINED_EMPTY: Divergence = |network| {
    network.join();
};

const SOME_RESTARTED_EMPTY: Divergence = |network| {
    for node in (1..network.nodes.len()).step_by(10) {
        network.restart(node);
    }
};

const PARTITION_HAS_HEALED: Divergence = |network| {
    let all = network.nodes.len();
    network.sides = (0..all).map(|node| node % 2).collect();
    for node in [0, 1] {
        let record = network.write(node, &format!("half:{node}"));
        network.send_to_all(node, &record);
    }
    network.run(3_000);
    network.sides = vec![0; all];
};

const MESSAGES_ARE_LOST: Divergence = |network| {
    network.loss_rate = 250;
    for node in 0..3 {
        let record = network.write(node, &format!("lossy:{node}"));
        network.send_to_all(node, &record);
    }
};

const ALL_HAVE_A_NEW_RECORD: Divergence = |network| {
    for node in 0..network.nodes.len() {
        network.write(node, &format!("own:{node}"));
    }
};

fn to_u64(number: usize) -> u64 {
    number.try_into().unwrap()
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap()
}

/// Returns the bytes of digests per second in a cluster of `primaries` with equal policies.
fn digest_bytes_per_second(primaries: usize) -> u64 {
    let digests = to_u64(primaries * (primaries - 1));
    digests * Message::Digest(Rc::new([0; GROUPS])).bytes() / gossip::interval(primaries).as_secs()
}

#[test]
fn interval_grows_with_the_number_of_primaries() {
    let seconds = |primaries| gossip::interval(primaries).as_secs();
    assert_eq!([0, 1, 3, 16, 17, 32, 33, 100, 500].map(seconds), [1, 1, 1, 1, 2, 2, 3, 7, 32]);
}

#[test]
fn digests_of_equal_primaries_cost_the_documented_bandwidth() {
    assert_eq!(digest_bytes_per_second(100), 3_934_542);
    assert_eq!(digest_bytes_per_second(500), 21_690_906);
    for primaries in [3, 16, 40, 100] {
        let mut network = Network::of(primaries, 1);
        let (expected, measured) = (digest_bytes_per_second(primaries), network.bytes_per_second(200_000));
        assert!(measured.abs_diff(expected) < expected / 10, "{primaries}: {measured} bytes/s, not {expected}");
    }
}

/// Time after convergence in which the traffic is still counted, in milliseconds.
const TAIL: u64 = 5_000;

/// Checks the time and the traffic until clusters of several sizes have converged.
fn assert_converges(divergence: Divergence, max_milliseconds: u64, max_bytes_per_second: u64) {
    for primaries in [3, 16, 40, 100] {
        for seed in 0..2 {
            let mut network = Network::of(primaries, seed);
            let (milliseconds, bytes_per_second) = network.run_divergence(divergence);
            assert!(milliseconds <= max_milliseconds, "{primaries} primaries, seed {seed}: {milliseconds} ms");
            assert!(
                bytes_per_second <= max_bytes_per_second,
                "{primaries} primaries, seed {seed}: {bytes_per_second} bytes/s"
            );
        }
    }
}

#[test]
fn record_of_one_primary_reaches_all_in_about_a_second() {
    assert_converges(ONE_HAS_A_NEW_RECORD, 1_500, 6_000_000);
}

#[test]
fn record_missing_on_one_primary_arrives_in_about_a_second() {
    assert_converges(ONE_MISSED_A_RECORD, 1_200, 6_000_000);
}

#[test]
fn new_primary_has_all_records_in_about_a_second() {
    assert_converges(ONE_JOINED_EMPTY, 1_500, 6_000_000);
}

#[test]
fn primaries_restarted_empty_have_all_records_in_about_a_second() {
    assert_converges(SOME_RESTARTED_EMPTY, 1_500, 6_000_000);
}

#[test]
fn rejoined_halves_converge_in_about_a_second() {
    assert_converges(PARTITION_HAS_HEALED, 1_500, 6_000_000);
}

#[test]
fn lost_messages_only_delay_convergence() {
    assert_converges(MESSAGES_ARE_LOST, 15_000, 6_000_000);
}

#[test]
fn traffic_is_bounded_if_all_primaries_differ() {
    assert_converges(ALL_HAVE_A_NEW_RECORD, 30_000, 8_000_000);
}

#[test]
fn paused_primary_causes_little_traffic() {
    let mut network = Network::of(100, 1);
    network.nodes[1].is_paused = true;
    let record = network.write(0, "paused");
    network.send_to_all(0, &record);
    let bytes_per_second = network.bytes_per_second(60_000);
    assert!(bytes_per_second < digest_bytes_per_second(100) * 6 / 5, "{bytes_per_second} bytes/s");
    network.nodes[1].is_paused = false;
    network.schedule_round(1);
    assert!(network.converge() <= 1_500);
}

#[test]
fn cluster_of_a_thousand_nodes_converges_in_two_seconds() {
    // Half of the nodes are replicas, which take no part in the gossip.
    let mut network = Network::of(500, 1);
    for divergence in [ONE_HAS_A_NEW_RECORD, ONE_MISSED_A_RECORD, SOME_RESTARTED_EMPTY, PARTITION_HAS_HEALED] {
        let (milliseconds, bytes_per_second) = network.run_divergence(divergence);
        assert!(milliseconds <= 2_000, "{milliseconds} ms");
        assert!(bytes_per_second <= 2 * digest_bytes_per_second(500), "{bytes_per_second} bytes/s");
    }
}
