use super::*;
use crate::algorithm::leases;
use crate::algorithm::leases::ConcurrencyUsage;
use crate::evaluate::Request;
use crate::limit::{Decision, Usage, Verdict};
use crate::number::Span;
use crate::syntax::{Block, SpecOptions};
use crate::testing::calls::{Key, call, peek, seen_at, units, us};
use crate::testing::oracle::exact_queue as oracle;
use crate::testing::oracle::exact_queue::{Answer, Answered, Patience, Pool};
use crate::wire::args::Args;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// What RL.ACQUIRE asks for, and for how long it would wait: `limit ttl holder [options]`.
fn asked<T>(words: &str, read: impl FnOnce(&Spec, Block) -> T) -> T {
    let words: Vec<&[u8]> = std::iter::once("RL.ACQUIRE").chain(words.split(' ')).map(str::as_bytes).collect();
    let (mut args, mut behind) = (Args::new(&words), SpecOptions::default());
    let (numbers, block) = Spec::acquire(&mut args, &mut behind).unwrap();
    read(&spec(&KeyRequest::alone(&mut args, &numbers, &behind).unwrap()), block.block)
}

/// The one spec of a call.
fn spec<'a>(asked: &KeyRequest<'a>) -> Spec<'a> {
    match asked {
        KeyRequest::One(spec) => *spec,
        KeyRequest::Composite(call) if call.specs.len() == 1 => call.specs[0],
        asked => unreachable!("{asked:?}"),
    }
}

fn claim(words: &str) -> Claim {
    asked(words, |spec, _| Claim::of(spec).unwrap())
}

/// A spec as it is asked while others wait, or do not.
fn behind<'a>(spec: &Spec<'a>, callers_wait_ahead: bool) -> Spec<'a> {
    let AnyLimit::Concurrency(concurrency) = spec.limit else { unreachable!() };
    Spec { limit: AnyLimit::Concurrency(concurrency.behind(callers_wait_ahead)), ..*spec }
}

/// The limit of a spec, for its holder.
fn limit<'a>(spec: &Spec<'a>) -> leases::LeaseLimit<'a> {
    let AnyLimit::Concurrency(concurrency) = spec.limit else { unreachable!() };
    concurrency.asked_by(spec.holder).nx(spec.nx)
}

fn answer(decision: &Decision) -> Answer {
    match decision.verdict {
        Verdict::Allowed(_) => Answer::Served,
        Verdict::After(wait) => Answer::After(wait.micros().into()),
        Verdict::Never => Answer::Never,
    }
}

fn take(key: &mut ConcurrencyUsage, spec: &Spec, now: Timestamp) -> Answer {
    answer(&call(&limit(spec), key, now, spec.request))
}

fn look(key: &ConcurrencyUsage, spec: &Spec, now: Timestamp) -> Answer {
    answer(&peek(&limit(spec), key, now, spec.request))
}

/// A key and its queue, as the module keeps and serves them. A client is the number of its call.
struct Service {
    now: Timestamp,
    clock: SteadyClock,
    key: ConcurrencyUsage,
    queue: Queue<usize>,
    /// When the head may pass.
    head_due: Option<Steady>,
    /// Where each call waits, or waited.
    places: Vec<Option<QueuePlace>>,
    holders: Vec<String>,
    answers: Vec<Answered>,
}

impl Service {
    fn new(now: Timestamp) -> Service {
        let (queue, key) = (Queue::new(Amount::ZERO), ConcurrencyUsage::default());
        let clock = SteadyClock::default();
        Service { now, clock, key, queue, head_due: None, places: vec![], holders: vec![], answers: vec![] }
    }

    fn answer(&mut self, call: usize, answer: Answer) {
        self.answers.push((self.now.micros().into(), call, answer));
    }

    /// RL.ACQUIRE.
    fn ask(&mut self, words: &str) {
        let (call, callers_wait_ahead) = (self.places.len(), !self.queue.is_empty());
        self.places.push(None);
        asked(words, |spec, block| {
            self.holders.push(String::from_utf8(spec.holder.to_vec()).unwrap());
            self.queue.limit_to(spec.limit.raised_by(spec.kept).limit());
            let (spec, since) = (&behind(spec, callers_wait_ahead), self.clock.read(self.now));
            let until = match (look(&self.key, spec, self.now), block) {
                (Answer::After(_), Block::For(span)) => Some(since.plus(span)),
                (Answer::After(_), Block::Forever) => None,
                _ => {
                    let told = take(&mut self.key, spec, self.now);
                    return self.answer(call, told);
                }
            };
            let claim = Claim::of(spec).unwrap();
            self.places[call] = Some(self.queue.join(Waiter { claim, since, until, client: call }));
        });
    }

    /// What a call that only looks is answered now.
    fn peek(&self, words: &str) -> Answer {
        asked(words, |spec, _| look(&self.key, &behind(spec, !self.queue.is_empty()), self.now))
    }

    fn release(&mut self, holder: &str) {
        self.key = seen_at(&self.key, self.now);
        if self.key.release(&[holder.as_bytes()], self.now) == 0
            && let Some(place) = self.queue.place_of(holder.as_bytes())
        {
            let limit = self.queue.limit();
            let Waiter { claim, client, .. } = self.queue.leave(place).unwrap();
            let told = look(&self.key, &spec(&claim.request(limit, true)), self.now);
            self.answer(client, told);
        }
        if self.key.is_unused() {
            self.delete();
        }
    }

    fn delete(&mut self) {
        self.key = ConcurrencyUsage::default();
    }

    /// The client of a call goes away.
    fn leave(&mut self, call: usize) {
        let gone = self.places[call].and_then(|place| self.queue.leave(place));
        assert!(gone.is_none_or(|waiter| waiter.client == call), "a place is one call's");
    }

    fn serve(&mut self) {
        while let Some((place, _)) = self.queue.replaced() {
            self.deny(place);
        }
        loop {
            self.serve_in_turn();
            let Some((place, _)) = self.queue.overdue(self.clock.at(self.now)) else { break };
            self.deny(place);
        }
    }

    /// Serves the head, until one is denied for now.
    fn serve_in_turn(&mut self) {
        self.head_due = None;
        while let Some((place, waiter)) = self.queue.head() {
            let (client, asked) = (waiter.client, waiter.claim.request(self.queue.limit(), false));
            let told = take(&mut self.key, &spec(&asked), self.now);
            if let Answer::After(wait) = told {
                self.head_due = Some(self.clock.at(self.now).plus(Span::from_micros(wait.try_into().unwrap())));
                break;
            }
            self.queue.leave(place);
            self.answer(client, told);
        }
    }

    fn deny(&mut self, place: QueuePlace) {
        let (limit, callers_wait_ahead) = (self.queue.limit(), self.queue.others_wait_before(place));
        let Waiter { claim, client, .. } = self.queue.leave(place).unwrap();
        let asked = claim.request(limit, callers_wait_ahead);
        let told = take(&mut self.key, &spec(&asked), self.now);
        self.answer(client, told);
    }

    /// When it is to be looked at, if nothing happens before.
    fn due(&self) -> Option<Timestamp> {
        [self.queue.deadline(), self.head_due].into_iter().flatten().min().map(|due| self.clock.shows(due))
    }

    /// Time passes.
    fn go_on(&mut self, to: Timestamp) {
        while let Some(due) = self.due().filter(|due| *due <= to) {
            self.now = due;
            self.clock.read(due);
            self.serve();
        }
        self.set_clock(to);
    }

    /// The clock is set.
    fn set_clock(&mut self, to: Timestamp) {
        self.clock.read(to);
        self.now = to;
    }

    /// What has been answered since this was last asked, as people would say it.
    fn told(&mut self) -> Vec<String> {
        let told = std::mem::take(&mut self.answers).into_iter().map(|(at, call, answer)| {
            let (at, holder) = (at / 1000, &self.holders[call]);
            match answer {
                Answer::Served => format!("{at} {holder}"),
                Answer::After(wait) => format!("{at} {holder} denied {}", (wait + 999) / 1000),
                Answer::Never => format!("{at} {holder} denied for good"),
            }
        });
        told.collect()
    }
}

/// What happens when, in milliseconds, and who is answered what by then and for that. A client has its holder's name.
fn story(steps: &[(u64, &str, &[&str])]) {
    let mut service = Service::new(us(0));
    for (at, what, told) in steps {
        let at = us(at * 1000);
        match what.split_once(' ') {
            Some(("clock", _)) => service.set_clock(at),
            _ => service.go_on(at),
        }
        match what.split_once(' ') {
            Some(("acquire", words)) => service.ask(words),
            Some(("peek", words)) => {
                service.holders.push("look".to_owned());
                service.places.push(None);
                let told = service.peek(words);
                service.answer(service.places.len() - 1, told);
            }
            Some(("release", holder)) => service.release(holder),
            Some(("leave", holder)) => {
                let last = service.holders.iter().rposition(|name| name == holder);
                service.leave(last.unwrap());
            }
            Some(("del", _)) => service.delete(),
            Some(("clock" | "go", _)) => {}
            _ => unreachable!("{what}"),
        }
        service.serve();
        assert_eq!(service.told(), *told, "at {at:?}: {what}");
    }
    assert!(service.queue.is_empty(), "everybody is answered");
}

// Whose turn it is

#[test]
fn who_would_be_denied_waits_until_there_is_room() {
    for ends in ["release alice", "del it"] {
        story(&[
            (0, "acquire 1 50ms alice BLOCK 0", &["0 alice"]),
            (1, "acquire 1 50ms bob BLOCK 0", &[]),
            (9, ends, &["9 bob"]),
        ]);
    }
    story(&[
        (0, "acquire 1 50ms alice", &["0 alice"]),
        (1, "acquire 1 50ms bob BLOCK 49ms", &[]),
        (60, "go on", &["50 bob"]),
    ]);
}

#[test]
fn who_has_waited_long_enough_is_denied_as_it_would_be_then() {
    story(&[
        (0, "acquire 1 50ms alice", &["0 alice"]),
        (1, "acquire 1 50ms bob BLOCK 20ms", &[]),
        (2, "acquire 1 50ms carol BLOCK 10ms", &[]),
        (11, "go on", &[]),
        (12, "go on", &["12 carol denied 38"]),
        (90, "go on", &["21 bob denied 29"]),
    ]);
}

#[test]
fn where_a_denied_head_was_in_the_way_the_next_passes_at_once() {
    story(&[
        (0, "acquire 3 50ms alice COST 2", &["0 alice"]),
        (1, "acquire 3 50ms big COST 3 BLOCK 20ms", &[]),
        // Whose own time is up together with that of the head is let in all the same.
        (2, "acquire 3 50ms small BLOCK 19ms", &[]),
        (3, "acquire 3 50ms other BLOCK 18ms", &[]),
        (99, "go on", &["21 big denied 29", "21 small", "21 other denied 29"]),
    ]);
}

#[test]
fn of_deadlines_that_come_together_the_first_in_turn_comes_first() {
    story(&[
        (0, "acquire 1 50ms alice", &["0 alice"]),
        (1, "acquire 1 50ms bob BLOCK 20ms", &[]),
        (2, "acquire 1 50ms carol BLOCK 19ms", &[]),
        (3, "acquire 1 50ms dave BLOCK 18ms", &[]),
        (21, "go on", &["21 bob denied 29", "21 carol denied 29", "21 dave denied 29"]),
    ]);
}

#[test]
fn what_could_never_pass_is_answered_at_once() {
    story(&[
        (0, "acquire 2 50ms alice", &["0 alice"]),
        (1, "acquire 2 50ms bob COST 3 BLOCK 0", &["1 bob denied for good"]),
        (2, "acquire 2 50ms bob COST 2 KEEP 1 BLOCK 0", &["2 bob denied for good"]),
    ]);
}

#[test]
fn a_big_claim_at_the_head_is_not_overtaken() {
    story(&[
        (0, "acquire 4 100ms alice COST 2", &["0 alice"]),
        (1, "acquire 4 100ms bob", &["1 bob"]),
        (2, "acquire 4 50ms big COST 3 BLOCK 0", &[]),
        // One is free.
        (3, "acquire 4 50ms small BLOCK 0", &[]),
        (4, "acquire 4 50ms late", &["4 late denied 1"]),
        (5, "release bob", &[]),
        (6, "release alice", &["6 big", "6 small"]),
    ]);
}

#[test]
fn who_waits_comes_before_who_comes_later() {
    let mut service = Service::new(us(0));
    service.ask("1 50ms alice");
    service.ask("1 50ms bob BLOCK 0");
    assert_eq!(service.told(), ["0 alice"]);
    // Nobody has looked at the queue yet.
    service.release("alice");
    service.ask("1 50ms carol");
    service.ask("1 50ms dave BLOCK 0");
    assert_eq!(service.told(), ["0 carol denied 1"]);
    service.serve();
    assert_eq!(service.told(), ["0 bob"]);
    service.release("bob");
    service.serve();
    assert_eq!(service.told(), ["0 dave"]);
}

#[test]
fn while_others_wait_a_denial_says_when_there_would_be_room_and_a_millisecond_at_least() {
    let limit = Concurrency::new(units(2), crate::testing::calls::period("50us")).behind(true);
    let mut key = Key::default();
    assert_eq!(key.call(&limit.behind(false).asked_by(b"alice"), 0, Request::Take(units(2)))[0], 1);
    let wait = |micros, cost| peek(&limit.asked_by(b"bob"), &key.0, us(micros), Request::Take(units(cost))).verdict;
    assert_eq!(wait(20, 1), Verdict::After(Span::from_micros(30)));
    assert_eq!(wait(50, 1), Verdict::After(Span::MILLISECOND));
    assert_eq!(wait(20, 3), Verdict::Never);
    assert_eq!(wait(50, 3), Verdict::Never);
}

#[test]
fn a_renewal_passes_while_others_wait() {
    story(&[
        (0, "acquire 2 50ms alice COST 2", &["0 alice"]),
        (1, "acquire 2 50ms bob BLOCK 0", &[]),
        (30, "acquire 2 50ms alice COST 2", &["30 alice"]),
        (35, "acquire 2 50ms alice COST 2 BLOCK 0", &["35 alice"]),
        (40, "acquire 1 50ms alice", &["40 alice"]),
        (99, "go on", &["90 bob"]),
    ]);
}

#[test]
fn a_renewal_for_more_waits_its_turn() {
    story(&[
        (0, "acquire 3 50ms alice", &["0 alice"]),
        (0, "acquire 3 50ms bob", &["0 bob"]),
        (1, "acquire 3 50ms carol COST 2 BLOCK 0", &[]),
        (2, "acquire 3 50ms alice COST 2", &["2 alice denied 1"]),
        (3, "acquire 3 50ms alice COST 2 BLOCK 0", &[]),
        (4, "release bob", &["4 carol"]),
        (99, "go on", &["54 alice"]),
    ]);
}

#[test]
fn a_first_lease_waits_until_its_holder_has_none() {
    story(&[
        (0, "acquire 5 50ms alice", &["0 alice"]),
        (1, "acquire 5 50ms alice NX BLOCK 0", &[]),
        (2, "acquire 5 50ms bob BLOCK 0", &[]),
        (99, "go on", &["50 alice", "50 bob"]),
    ]);
}

#[test]
fn a_look_overtakes_nobody_and_brings_no_limit() {
    story(&[
        (0, "acquire 2 50ms alice", &["0 alice"]),
        (1, "acquire 2 50ms big COST 2 BLOCK 0", &[]),
        (2, "peek 2 50ms carol", &["2 look denied 1"]),
        (3, "peek 9 50ms carol", &["3 look denied 1"]),
        (4, "peek 2 50ms alice", &["4 look"]),
        (99, "go on", &["50 big"]),
    ]);
    // What takes nothing takes it from nobody.
    let limit = Concurrency::new(Amount::ONE, crate::testing::calls::period("50ms")).behind(true).asked_by(b"carol");
    let verdict = |cost| peek(&limit, &ConcurrencyUsage::default(), us(0), Request::Take(cost)).verdict;
    assert_eq!(verdict(Amount::ZERO), Verdict::Allowed(Span::ZERO));
    assert_eq!(verdict(Amount::saturating(1)), Verdict::After(Span::MILLISECOND));
}

// The limit

#[test]
fn a_raised_limit_lets_those_who_wait_in_in_order() {
    story(&[
        (0, "acquire 2 90ms alice COST 2", &["0 alice"]),
        (1, "acquire 2 50ms bob COST 2 BLOCK 0", &[]),
        (2, "acquire 2 50ms carol BLOCK 0", &[]),
        (3, "acquire 2 50ms dave BLOCK 0", &[]),
        (4, "acquire 5 50ms eve", &["4 eve denied 1", "4 bob", "4 carol"]),
        (54, "go on", &["54 dave"]),
    ]);
}

#[test]
fn a_lowered_limit_holds_for_those_who_wait() {
    story(&[
        (0, "acquire 4 50ms alice COST 3", &["0 alice"]),
        (1, "acquire 4 50ms bob COST 2 BLOCK 0", &[]),
        (2, "acquire 4 50ms carol COST 3 BLOCK 0", &[]),
        (3, "acquire 4 50ms dave BLOCK 0", &[]),
        (4, "acquire 2 50ms eve", &["4 eve denied 46"]),
        (50, "go on", &["50 bob", "50 carol denied for good"]),
        (100, "go on", &["100 dave"]),
    ]);
}

#[test]
fn what_is_kept_stays_as_the_call_said_it() {
    // Half of the limit that the call brought.
    for keep in ["2", "50%"] {
        story(&[
            (0, "acquire 4 50ms alice", &["0 alice"]),
            (1, &format!("acquire 4 50ms bob COST 2 KEEP {keep} BLOCK 0"), &[]),
            (2, "acquire 5 50ms carol", &["2 carol denied 1", "2 bob"]),
        ]);
        story(&[
            (0, "acquire 4 50ms alice", &["0 alice"]),
            (1, &format!("acquire 4 50ms bob COST 2 KEEP {keep} BLOCK 0"), &[]),
            (2, "acquire 3 50ms carol COST 3", &["2 carol denied 48", "2 bob denied for good"]),
        ]);
    }
}

#[test]
fn a_limit_that_stays_changes_nothing() {
    let mut queue: Queue<()> = Queue::new(units(2));
    assert_eq!(queue.limit(), units(2));
    assert!(!queue.limit_to(units(2)));
    assert!(queue.limit_to(units(3)));
    assert_eq!(queue.limit(), units(3));
    assert!(!queue.limit_to(units(3)));
}

// Callers that come again, and callers that go

#[test]
fn a_holder_that_asks_again_keeps_its_place() {
    story(&[
        (0, "acquire 2 50ms alice COST 2", &["0 alice"]),
        (1, "acquire 2 50ms bob COST 2 BLOCK 0", &[]),
        (2, "acquire 2 50ms carol COST 2 BLOCK 0", &[]),
        // The call that waited is denied; the call that waits has its own time and cost.
        (3, "acquire 2 50ms bob BLOCK 20ms", &["3 bob denied 47"]),
        (4, "acquire 2 50ms bob BLOCK 60ms", &["4 bob denied 46"]),
        (5, "acquire 2 50ms bob", &["5 bob denied 45"]),
        (50, "go on", &["50 bob"]),
        (100, "go on", &["100 carol"]),
    ]);
}

/// An instant of steady time, of a clock that has not gone back.
fn steady(micros: u64) -> Steady {
    SteadyClock::default().read(us(micros))
}

/// A queue of those of a list who would wait for a unit, and where they wait. A client is where it is in the list.
fn queue_of(holders: &[&str]) -> (Queue<usize>, Vec<QueuePlace>) {
    let mut queue = Queue::new(Amount::ONE);
    let join = |(client, holder): (usize, &&str)| {
        let client_at = |micros: u64| steady(micros + u64::try_from(client).unwrap());
        let (since, until) = (client_at(500_000), Some(client_at(1_000_000)));
        queue.join(Waiter { claim: claim(&format!("1 30s {holder}")), since, until, client })
    };
    let places = holders.iter().enumerate().map(join).collect();
    (queue, places)
}

fn clients(queue: &Queue<usize>) -> Vec<usize> {
    queue.iter().map(|waiter| waiter.client).collect()
}

#[test]
fn a_place_is_one_calls_whoever_comes_again() {
    let (queue, places) = queue_of(&["alice", "bob", "alice", "alice", "bob"]);
    assert_eq!(clients(&queue), [3, 4, 0, 2, 1], "who waits, then who is to be denied");
    assert_eq!(queue.len(), 5);
    assert_eq!(queue.head().map(|(place, waiter)| (place, waiter.client)), Some((places[3], 3)));
    assert_eq!(queue.replaced().map(|(place, waiter)| (place, waiter.client)), Some((places[0], 0)));
    assert_eq!(
        ["alice", "bob", "carol"].map(|holder| queue.place_of(holder.as_bytes())),
        [Some(places[3]), Some(places[4]), None]
    );
    for (client, place) in places.iter().enumerate() {
        let mut queue = queue.clone();
        assert_eq!(queue.at(*place).map(|waiter| waiter.client), Some(client));
        assert_eq!(queue.leave(*place).map(|waiter| waiter.client), Some(client));
        assert!(queue.leave(*place).is_none() && queue.at(*place).is_none());
        assert!(!clients(&queue).contains(&client));
        assert_eq!(queue.len(), 4);
        // Only before the first in turn does nobody wait, of those who wait and those who are to be denied.
        assert_eq!(queue.others_wait_before(places[3]), client == 3);
        assert_eq!(queue.others_wait_before(places[4]), client != 3);
        assert!([0, 1, 2].into_iter().all(|client| queue.others_wait_before(places[client])));
    }
    let in_turn = [0, 2, 3, 1, 4].map(|client: usize| places[client]);
    assert!(in_turn.is_sorted_by(|one, other| one < other && *other > *one));
}

#[test]
fn who_was_replaced_is_denied_even_when_all_others_have_gone() {
    let mut service = Service::new(us(0));
    for words in ["1 50ms alice", "1 50ms bob BLOCK 0", "1 50ms bob BLOCK 0"] {
        service.ask(words);
    }
    service.leave(2);
    service.release("alice");
    assert_eq!(service.told(), ["0 alice"]);
    service.ask("1 50ms bob BLOCK 0");
    service.serve();
    assert_eq!(service.told(), ["0 bob denied 1", "0 bob"]);
    assert_eq!(service.answers, []);
    assert!(service.queue.is_empty());
}

#[test]
fn who_gives_up_is_denied_and_holds_nobody_up() {
    story(&[
        (0, "acquire 4 50ms alice COST 3", &["0 alice"]),
        (1, "acquire 4 50ms bob COST 3 BLOCK 0", &[]),
        (2, "acquire 4 50ms carol COST 3 BLOCK 20ms", &[]),
        (3, "acquire 4 50ms dan BLOCK 0", &[]),
        // Behind the head; then the head, behind which there is room for another.
        (4, "release carol", &["4 carol denied 46"]),
        (5, "release bob", &["5 bob denied 45", "5 dan"]),
        // Whoever asks again comes behind all others.
        (6, "acquire 4 50ms erin COST 3 BLOCK 0", &[]),
        (7, "acquire 4 50ms bob COST 3 BLOCK 0", &[]),
        (8, "release nobody", &[]),
        (9, "release alice", &["9 erin"]),
        (10, "release bob", &["10 bob denied 49"]),
    ]);
}

#[test]
fn who_gives_a_lease_back_waits_on_for_the_next() {
    story(&[
        (0, "acquire 4 50ms alice", &["0 alice"]),
        (1, "acquire 4 50ms bob COST 2", &["1 bob"]),
        (2, "acquire 4 50ms alice COST 3 BLOCK 0", &[]),
        (3, "acquire 4 50ms carol COST 2 BLOCK 0", &[]),
        // First what it has, then what it waits for.
        (4, "release bob", &["4 alice"]),
        (5, "acquire 4 50ms alice COST 4 BLOCK 0", &[]),
        (6, "release alice", &["6 carol"]),
        (7, "release alice", &["7 alice denied 49"]),
    ]);
}

#[test]
fn leaving_frees_the_holders_place() {
    story(&[
        (0, "acquire 1 50ms alice", &["0 alice"]),
        (1, "acquire 1 50ms bob BLOCK 0", &[]),
        (2, "acquire 1 50ms carol BLOCK 0", &[]),
        (3, "leave bob", &[]),
        (4, "acquire 1 50ms bob BLOCK 0", &[]),
        (5, "release alice", &["5 carol"]),
        (55, "go on", &["55 bob"]),
    ]);
    let (mut queue, places) = queue_of(&["alice", "alice"]);
    // The call that was replaced leaves: the other stays where its holder waits.
    queue.leave(places[0]);
    let again = queue.join(Waiter { claim: claim("1 30s alice"), since: steady(0), until: None, client: 2 });
    assert_eq!((queue.head().unwrap().0, queue.replaced().unwrap().0), (again, places[1]));
}

#[test]
fn who_has_left_is_not_overdue() {
    let (mut queue, places) = queue_of(&["alice", "bob", "carol"]);
    assert_eq!(queue.deadline(), Some(steady(1_000_000)));
    assert!(queue.overdue(steady(999_999)).is_none());
    assert_eq!(queue.overdue(steady(1_000_000)).unwrap().1.client, 0);
    assert_eq!(queue.overdue(steady(2_000_000)).unwrap().0, places[0]);
    queue.leave(places[0]);
    assert_eq!(queue.deadline(), Some(steady(1_000_001)));
    assert_eq!(queue.overdue(steady(2_000_000)).unwrap().1.client, 1);
    // Nor who was replaced: it is to be denied as it is.
    queue.join(Waiter { claim: claim("1 30s bob"), since: steady(0), until: None, client: 3 });
    assert_eq!(queue.deadline(), Some(steady(1_000_002)));
    queue.leave(places[2]);
    assert_eq!((queue.deadline(), queue.len(), queue.is_empty()), (None, 2, false));
    queue.leave(queue.head().unwrap().0);
    assert!(!queue.is_empty() && queue.head().is_none());
    queue.leave(places[1]);
    assert!(queue.is_empty());
}

// The clock

#[test]
fn a_clock_gone_back_moves_deadlines_back() {
    story(&[
        (1000, "acquire 1 900ms alice", &["1000 alice"]),
        (1100, "acquire 1 900ms bob BLOCK 200ms", &[]),
        (1100, "acquire 1 900ms carol BLOCK 900ms", &[]),
        (700, "clock back by 400ms", &[]),
        (899, "go on", &[]),
        (900, "go on", &["900 bob denied 700"]),
        (1600, "go on", &["1600 carol"]),
    ]);
}

#[test]
fn the_oldest_call_is_the_one_that_joined_first_wherever_it_stands() {
    // The holder of the first has asked again, and keeps its place.
    let (mut queue, places) = queue_of(&["alice", "bob", "alice", "carol"]);
    for (place, joined) in [(places[0], 500_000), (places[1], 500_001), (places[2], 500_002), (places[3], 500_003)] {
        assert_eq!(queue.oldest(), Some(steady(joined)));
        assert!(queue.leave(place).is_some() && queue.leave(place).is_none());
    }
    assert_eq!(queue.oldest(), None);
    assert!(queue.by_call.is_empty());
}

/// It is there again, and what waits would be a renewal: it is answered as a call would be that comes then.
#[test]
fn a_lease_that_a_clock_gone_back_brings_back_is_renewed_at_the_deadline() {
    story(&[
        (100, "acquire 2 20ms alice", &["100 alice"]),
        (100, "acquire 2 90ms bob", &["100 bob"]),
        (130, "acquire 2 50ms carol COST 2 BLOCK 0", &[]),
        (131, "acquire 2 20ms alice BLOCK 8ms", &[]),
        (110, "clock back by 21ms", &[]),
        (190, "go on", &["118 alice", "190 carol"]),
    ]);
}

#[test]
fn a_clock_set_on_answers_what_is_due() {
    story(&[
        (0, "acquire 1 50ms alice", &["0 alice"]),
        (1, "acquire 1 50ms bob BLOCK 0", &[]),
        (2, "acquire 1 50ms carol BLOCK 20ms", &[]),
        (900, "clock on", &["900 bob", "900 carol denied 50"]),
    ]);
}

/// A clock gone back moves leases back by a call. A look only sees what a call would do now: to one who only looks, the
/// leases stay as far away.
#[test]
fn a_head_that_is_only_looked_at_after_a_clock_gone_back_would_wait_for_the_clock_to_come_back() {
    let mut key = ConcurrencyUsage::default();
    asked("1 50ms alice", |spec, _| take(&mut key, spec, us(900_000)));
    let bob = claim("1 50ms bob");
    let looked = |key: &ConcurrencyUsage, at| look(key, &spec(&bob.request(Amount::ONE, false)), us(at));
    for at in [100_000, 150_000, 200_000] {
        assert_eq!(looked(&key, at), Answer::After(50_000));
    }
    assert_eq!(take(&mut key, &spec(&bob.request(Amount::ONE, false)), us(100_000)), Answer::After(50_000));
    assert_eq!([149_999, 150_000].map(|at| looked(&key, at)), [Answer::After(1), Answer::Served]);
}

// Claims

#[test]
fn a_claim_asks_what_its_call_asked() {
    for words in [
        "4 30s alice",
        "4 30s alice COST 2.5",
        "4 30s alice KEEP 1",
        "4 30s alice COST 0.5 KEEP 30% NX",
        "4 30s alice KEEP 100%",
        "4 30s alice KEEP 7",
        "0 30s alice",
    ] {
        for words in [words.to_owned(), format!("{words} AS workers")] {
            let args: Vec<&[u8]> = std::iter::once("RL.ACQUIRE").chain(words.split(' ')).map(str::as_bytes).collect();
            let call = KeyRequest::one(&mut Args::new(&args), Spec::concurrency).unwrap();
            let claim = Claim::of(&spec(&call)).unwrap();
            let limit = if words.starts_with('0') { Amount::ZERO } else { units(4) };
            // Whose cost it was says nothing but to a settlement.
            let said = |asked: &KeyRequest| format!("{asked:?}").replace("own_cost: true", "own_cost: false");
            assert_eq!(said(&claim.request(limit, false)), said(&call), "{words}");
            assert_eq!(claim.holder(), b"alice");
            assert_eq!(Request::Take(claim.cost()), spec(&call).request);
            assert_eq!(claim.expires_at(us(5)), us(30_000_005));
            assert_eq!(claim.expires_at(Timestamp::MAX), Timestamp::MAX);
        }
    }
}

#[test]
fn only_a_take_of_a_lease_is_a_claim() {
    let read = |words: &str| {
        let words: Vec<&[u8]> = std::iter::once("RL.TAKE").chain(words.split(' ')).map(str::as_bytes).collect();
        Claim::of(&spec(&KeyRequest::take(&mut Args::new(&words)).unwrap())).is_some()
    };
    assert!(read("CONCURRENCY 4 30s alice"));
    assert!(!read("FIXED 4 30s"));
    let numbers = Concurrency::new(units(4), crate::testing::calls::period("30s"));
    let of_leases = |ask| Claim::of(&Spec::of(AnyLimit::Concurrency(numbers), ask)).is_some();
    assert!(of_leases(Request::Take(Amount::ONE)) && !of_leases(Request::Force(Amount::ONE)));
}

// What it costs

/// Comparisons of places: each of the maps is a tree of nodes of 5 to 11 entries, and at most all entries of a node on
/// each level are compared. One call changes five of them at most.
fn assert_logarithmic(steps: usize, waiting: usize) {
    let levels = 1 + waiting.ilog2() / 6_u32.ilog2();
    assert!(steps <= 5 * 11 * usize::try_from(levels).unwrap(), "{steps} of {waiting}");
}

#[test]
fn ten_thousand_who_wait_are_passed_by_nobody() {
    let waiter = |client: usize| {
        let claim = claim(&format!("1 30s {:05}", client * 7919 % 10_000));
        // Together, in order, backwards, or never.
        let until = [Some(5), Some(client), Some(10_000 - client), None][client % 4];
        Waiter { claim, since: steady(0), until: until.map(|until| steady(until.try_into().unwrap())), client }
    };
    let (mut queue, mut most) = (Queue::new(Amount::ONE), 0);
    let count = |queue: &mut Queue<usize>, most: &mut usize, run: &mut dyn FnMut(&mut Queue<usize>)| {
        let steps = effort::of(|| run(queue));
        assert_logarithmic(steps, queue.len().max(1));
        *most = steps.max(*most);
    };
    for client in 0..10_000 {
        count(&mut queue, &mut most, &mut |queue| assert_eq!(queue.join(waiter(client)).call, queue.calls - 1));
    }
    // Half of them ask again, whom nobody has denied yet.
    for client in (0..10_000).step_by(2) {
        count(&mut queue, &mut most, &mut |queue| assert_eq!(queue.join(waiter(client)).call, queue.calls - 1));
    }
    assert_eq!(queue.len(), 15_000);
    let mut answered = Vec::new();
    while !queue.is_empty() {
        count(&mut queue, &mut most, &mut |queue| {
            let next =
                queue.replaced().or_else(|| if answered.len() % 3 == 0 { queue.overdue(steady(10_000)) } else { None });
            let (place, waiter) = next.or_else(|| queue.head()).unwrap();
            answered.push(waiter.client);
            assert!(queue.deadline().is_some() || answered.len() > 10_000);
            assert!(queue.leave(place).is_some());
        });
    }
    assert_eq!(answered.len(), 15_000);
    assert!(most > 13, "it is counted");
}

// Anything, at random, beside the oracle

/// What a call says.
#[derive(Clone, Debug)]
struct Says {
    limit: Amount,
    ttl: u64,
    holder: usize,
    cost: Amount,
    kept: Amount,
    nx: bool,
    named: bool,
    /// In microseconds; `None` not at all, 0 for ever.
    block: Option<u64>,
}

impl Says {
    fn words(&self) -> String {
        let Says { limit, ttl, holder, cost, kept, .. } = self;
        let mut words = format!("{limit} {ttl}us h{holder} COST {cost} KEEP {kept}");
        words.push_str(if self.nx { " NX" } else { "" });
        words.push_str(if self.named { " AS a" } else { "" });
        match self.block {
            None => words,
            Some(0) => words + " BLOCK 0",
            Some(block) => format!("{words} BLOCK {block}us"),
        }
    }

    fn claim(&self) -> oracle::Claim {
        let [cost, kept] = [self.cost, self.kept].map(|amount| amount.millionths().into());
        oracle::Claim { holder: format!("h{}", self.holder), cost, kept, nx: self.nx, ttl: self.ttl.into() }
    }

    fn any() -> impl Strategy<Value = Says> {
        let whole = |most: u64| (1..=most).prop_map(units);
        let most = units(1_000_000_000_000);
        let limit = prop_oneof![12 => Just(units(3)), 4 => whole(6), 1 => Just(Amount::ZERO), 1 => Just(most)];
        let cost = prop_oneof![8 => whole(3), 2 => (1..=3_000_000u64).prop_map(Amount::saturating), 1 => Just(most)];
        let kept = prop_oneof![8 => Just(Amount::ZERO), 2 => whole(2)];
        let tens = |most: u64| (1..=most).prop_map(|tens| tens * 10_000);
        let ttl = prop_oneof![6 => tens(8), 1 => 1..=90_000u64];
        let block = prop_oneof![
            3 => Just(None),
            3 => Just(Some(0)),
            3 => tens(8).prop_map(Some),
            1 => (1..=90_000u64).prop_map(Some),
        ];
        (limit, ttl, 0..6usize, cost, kept, prop::bool::weighted(0.1), prop::bool::weighted(0.1), block).prop_map(
            |(limit, ttl, holder, cost, kept, nx, named, block)| Says {
                limit,
                ttl,
                holder,
                cost,
                kept,
                nx,
                named,
                block,
            },
        )
    }
}

#[derive(Clone, Debug)]
enum Step {
    Request(Says),
    Peek(Says),
    Release(usize),
    Delete,
    /// One of the calls so far goes away.
    Leave(Index),
    /// A number of microseconds passes.
    GoOn(u64),
    /// It becomes so many microseconds beside the next time at which something is due.
    GoToDue(i64),
    SetClock(i64),
}

fn steps() -> impl Strategy<Value = Vec<(Step, bool)>> {
    let step = prop_oneof![
        16 => Says::any().prop_map(Step::Request),
        2 => Says::any().prop_map(Step::Peek),
        3 => (0..6usize).prop_map(Step::Release),
        1 => Just(Step::Delete),
        3 => any::<Index>().prop_map(Step::Leave),
        4 => prop_oneof![(0..=4u64).prop_map(|tens| tens * 10_000), 0..=30_000u64].prop_map(Step::GoOn),
        4 => (-1..=1i64).prop_map(Step::GoToDue),
        1 => prop_oneof![-100_000..=100_000i64, select(vec![-3_600_000_000, -10_000, 10_000])].prop_map(Step::SetClock),
    ];
    vec((step, any::<bool>()), 1..=80)
}

/// The service and the oracle side by side.
struct Both {
    service: Service,
    pool: Pool,
}

impl Both {
    fn now(&self) -> i128 {
        self.service.now.micros().into()
    }

    fn serve(&mut self) {
        self.service.serve();
        self.pool.serve(self.now());
    }

    fn go_on(&mut self, to: Timestamp) {
        let mut now = self.now();
        while let Some(due) = self.pool.due(now).filter(|due| *due <= i128::from(to.micros())) {
            now = due;
            self.pool.serve(now);
        }
        self.service.go_on(to);
    }

    fn step(&mut self, step: &Step) {
        let now = self.now();
        match step {
            Step::Request(says) => {
                let patience = match says.block {
                    None => Patience::None,
                    Some(0) => Patience::Forever,
                    Some(block) => Patience::Until(now + i128::from(block)),
                };
                let call = self.service.places.len();
                let limit = says.limit.millionths().into();
                self.service.ask(&says.words());
                self.pool.ask(call, says.claim(), limit, patience, now);
            }
            Step::Peek(says) => {
                let limit = says.limit.millionths().into();
                assert_eq!(self.service.peek(&says.words()), self.pool.peek(&says.claim(), limit, now));
            }
            Step::Release(holder) => {
                let holder = format!("h{holder}");
                self.service.release(&holder);
                self.pool.release(&holder, now);
            }
            Step::Delete => {
                self.service.delete();
                self.pool.delete();
            }
            Step::Leave(call) if !self.service.places.is_empty() => {
                let call = call.index(self.service.places.len());
                self.service.leave(call);
                self.pool.leave(call);
            }
            Step::Leave(_) => {}
            Step::GoOn(micros) => self.go_on(self.service.now.plus(Span::from_micros(*micros))),
            Step::GoToDue(beside) => {
                let due = self.service.due().and_then(|due| due.micros().checked_add_signed(*beside)).map(us);
                self.go_on(due.unwrap_or_default().max(self.service.now));
            }
            Step::SetClock(by) => {
                let to = us(self.service.now.micros().checked_add_signed(*by).unwrap());
                self.pool.move_back((now - i128::from(to.micros())).max(0));
                self.service.set_clock(to);
                // It is noticed.
                self.serve();
            }
        }
    }

    fn compare(&self) {
        assert_eq!(self.service.answers, self.pool.answers);
        let waiting = self.pool.waiting();
        assert_eq!(clients(&self.service.queue)[..waiting.len()], waiting);
        assert_eq!(self.service.queue.len(), self.pool.len());
        assert_eq!(self.service.queue.head().map(|(_, waiter)| waiter.client), waiting.first().copied());
    }
}

proptest! {
    /// The very same calls, served and denied in the very same order at the very same instants.
    #[test]
    fn a_queue_serves_whom_the_oracle_serves_and_when(steps in steps()) {
        let mut both = Both { service: Service::new(us(1_700_000_000_000_000)), pool: Pool::default() };
        for (step, is_served) in steps {
            if matches!(step, Step::GoOn(_) | Step::GoToDue(_) | Step::SetClock(_)) {
                // No time passes before who can be answered is.
                both.serve();
            }
            both.step(&step);
            if is_served {
                both.serve();
            }
            both.compare();
        }
        // Leases lapse: everybody is answered in the end.
        both.serve();
        both.go_on(both.service.now.plus(Span::SECOND.times(60)));
        both.compare();
        prop_assert!(both.service.queue.is_empty());
    }

    /// However many want the little that is free: after each lease that those before can have had, at most.
    #[test]
    fn nobody_starves(claims in vec((1..=3u64, 1..=50u64), 1..=12)) {
        const LONGEST: u64 = 50;
        let mut service = Service::new(us(0));
        service.ask("3 50ms first COST 3");
        for (call, (cost, ttl)) in claims.iter().enumerate() {
            service.ask(&format!("3 {ttl}ms w{call} COST {cost} BLOCK 0"));
        }
        service.told();
        let (mut served, mut now) = (0, 0);
        while served < claims.len() {
            now += 1;
            prop_assert!(now <= LONGEST * u64::try_from(claims.len()).unwrap(), "somebody starves");
            service.go_on(us(now * 1000));
            // A caller that does not wait its turn gets nothing while another waits.
            let callers_wait_ahead = !service.queue.is_empty();
            let told: Vec<_> = std::mem::take(&mut service.answers);
            service.ask(&format!("3 50ms late{now}"));
            service.ask(&format!("3 50ms late{now} BLOCK 1us"));
            service.serve();
            let passed = std::mem::take(&mut service.answers).iter().any(|(_, _, answer)| *answer == Answer::Served);
            prop_assert!(!callers_wait_ahead || !passed);
            for (at, call, answer) in told {
                if call <= claims.len() {
                    served += 1;
                    prop_assert_eq!((call, answer), (served, Answer::Served), "in turn");
                    prop_assert!(at <= i128::try_from(call).unwrap() * i128::from(LONGEST) * 1000);
                }
            }
        }
    }
}
