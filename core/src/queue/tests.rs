mod claims;
mod clock_steps;
mod limits_and_places;
mod queue_oracle;
mod turns;

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
