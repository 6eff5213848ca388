mod claims;
mod clock_steps;
mod limits_and_places;
mod queue_oracle;
mod service_order;

use super::*;
use crate::algorithm::leases;
use crate::algorithm::leases::ConcurrencyUsage;
use crate::evaluate::Request;
use crate::limit::{Decision, Usage, Verdict};
use crate::number::Span;
use crate::syntax::{Block, SpecOptions};
use crate::testing::calls::{Key, call, moved_back_to, peek, units, us};
use crate::testing::oracle::exact_queue as oracle;
use crate::testing::oracle::exact_queue::{Answer, Answered, Pool, Timeout};
use crate::wire::args::Args;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Parses the arguments of RL.ACQUIRE, `limit ttl holder [options]`, and calls `use_spec` with the spec and the time to
/// wait.
fn with_spec<T>(words: &str, use_spec: impl FnOnce(&Spec, Block) -> T) -> T {
    let words: Vec<&[u8]> = std::iter::once("RL.ACQUIRE").chain(words.split(' ')).map(str::as_bytes).collect();
    let (mut args, mut options) = (Args::new(&words), SpecOptions::default());
    let (parsed, acquire_options) = Spec::acquire(&mut args, &mut options).unwrap();
    let request = KeyRequest::build_single_with_options(&mut args, &parsed, &options).unwrap();
    use_spec(&spec(&request), acquire_options.block)
}

/// Returns the only spec of a request.
fn spec<'a>(request: &KeyRequest<'a>) -> Spec<'a> {
    match request {
        KeyRequest::One(spec) => *spec,
        KeyRequest::Composite(call) if call.specs.len() == 1 => call.specs[0],
        other => unreachable!("{other:?}"),
    }
}

fn claim(words: &str) -> Claim {
    with_spec(words, |spec, _| Claim::of(spec).unwrap())
}

/// Returns the spec of a call that joins behind other waiters if `has_waiters_ahead` is `true`.
fn behind_waiters<'a>(spec: &Spec<'a>, has_waiters_ahead: bool) -> Spec<'a> {
    let AnyLimit::Concurrency(concurrency) = spec.limit else { unreachable!() };
    Spec { limit: AnyLimit::Concurrency(concurrency.with_waiters_ahead(has_waiters_ahead)), ..*spec }
}

/// Returns the limit of a spec for its holder.
fn lease_limit<'a>(spec: &Spec<'a>) -> leases::LeaseLimit<'a> {
    let AnyLimit::Concurrency(concurrency) = spec.limit else { unreachable!() };
    concurrency.for_holder(spec.holder_or_item).with_nx(spec.nx)
}

fn answer(decision: &Decision) -> Answer {
    match decision.verdict {
        Verdict::Allowed(_) => Answer::Served,
        Verdict::After(wait) => Answer::After(wait.micros().into()),
        Verdict::Never => Answer::Never,
    }
}

fn take(key: &mut ConcurrencyUsage, spec: &Spec, now: Timestamp) -> Answer {
    answer(&call(&lease_limit(spec), key, now, spec.request))
}

fn peek_answer(key: &ConcurrencyUsage, spec: &Spec, now: Timestamp) -> Answer {
    answer(&peek(&lease_limit(spec), key, now, spec.request))
}

/// Key with its queue, which is served as in the module. A client is the number of its call.
struct Service {
    now: Timestamp,
    clock: SteadyClock,
    key: ConcurrencyUsage,
    queue: Queue<usize>,
    /// Time at which the head may be granted.
    head_due: Option<Steady>,
    /// Place of each call that has joined.
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

    /// Calls RL.ACQUIRE.
    fn acquire(&mut self, words: &str) {
        let (call, has_waiters_ahead) = (self.places.len(), !self.queue.is_empty());
        self.places.push(None);
        with_spec(words, |spec, block| {
            self.holders.push(String::from_utf8(spec.holder_or_item.to_vec()).unwrap());
            self.queue.set_limit(spec.limit.raised_by(spec.keep).limit());
            let (spec, joined_at) = (&behind_waiters(spec, has_waiters_ahead), self.clock.read(self.now));
            let deadline = match (peek_answer(&self.key, spec, self.now), block) {
                (Answer::After(_), Block::For(span)) => Some(joined_at.plus(span)),
                (Answer::After(_), Block::Forever) => None,
                _ => {
                    let answer = take(&mut self.key, spec, self.now);
                    return self.answer(call, answer);
                }
            };
            let claim = Claim::of(spec).unwrap();
            self.places[call] = Some(self.queue.join(Waiter { claim, joined_at, deadline, client: call }));
        });
    }

    /// Returns the reply to RL.PEEK.
    fn peek(&self, words: &str) -> Answer {
        with_spec(words, |spec, _| peek_answer(&self.key, &behind_waiters(spec, !self.queue.is_empty()), self.now))
    }

    fn release(&mut self, holder: &str) {
        self.key = moved_back_to(&self.key, self.now);
        if self.key.release(&[holder.as_bytes()], self.now) == 0
            && let Some(place) = self.queue.place_of(holder.as_bytes())
        {
            let limit = self.queue.limit();
            let Waiter { claim, client, .. } = self.queue.leave(place).unwrap();
            let answer = peek_answer(&self.key, &spec(&claim.request(limit, true)), self.now);
            self.answer(client, answer);
        }
        if self.key.is_unused() {
            self.delete();
        }
    }

    fn delete(&mut self) {
        self.key = ConcurrencyUsage::default();
    }

    /// Disconnects the client of a call.
    fn leave(&mut self, call: usize) {
        let removed = self.places[call].and_then(|place| self.queue.leave(place));
        assert!(removed.is_none_or(|waiter| waiter.client == call), "a place belongs to one call");
    }

    fn serve(&mut self) {
        while let Some((place, _)) = self.queue.replaced() {
            self.deny(place);
        }
        loop {
            self.serve_heads();
            let Some((place, _)) = self.queue.overdue(self.clock.at(self.now)) else { break };
            self.deny(place);
        }
    }

    /// Serves the heads until one is denied for now.
    fn serve_heads(&mut self) {
        self.head_due = None;
        while let Some((place, waiter)) = self.queue.head() {
            let (client, request) = (waiter.client, waiter.claim.request(self.queue.limit(), false));
            let answer = take(&mut self.key, &spec(&request), self.now);
            if let Answer::After(wait) = answer {
                self.head_due = Some(self.clock.at(self.now).plus(Span::from_micros(wait.try_into().unwrap())));
                break;
            }
            self.queue.leave(place);
            self.answer(client, answer);
        }
    }

    fn deny(&mut self, place: QueuePlace) {
        let (limit, has_waiters_ahead) = (self.queue.limit(), self.queue.has_waiters_ahead(place));
        let Waiter { claim, client, .. } = self.queue.leave(place).unwrap();
        let request = claim.request(limit, has_waiters_ahead);
        let answer = take(&mut self.key, &spec(&request), self.now);
        self.answer(client, answer);
    }

    /// Returns the time of the next deadline or possible grant.
    fn next_due(&self) -> Option<Timestamp> {
        [self.queue.earliest_deadline(), self.head_due].into_iter().flatten().min().map(|due| self.clock.shows(due))
    }

    /// Advances the clock to `to`, and serves the queue at each deadline and possible grant.
    fn advance_to(&mut self, to: Timestamp) {
        while let Some(due) = self.next_due().filter(|due| *due <= to) {
            self.now = due;
            self.clock.read(due);
            self.serve();
        }
        self.set_clock(to);
    }

    /// Sets the clock.
    fn set_clock(&mut self, to: Timestamp) {
        self.clock.read(to);
        self.now = to;
    }

    /// Takes the replies since the last call of this function, as text.
    fn take_replies(&mut self) -> Vec<String> {
        let replies = std::mem::take(&mut self.answers).into_iter().map(|(at, call, answer)| {
            let (at, holder) = (at / 1000, &self.holders[call]);
            match answer {
                Answer::Served => format!("{at} {holder}"),
                Answer::After(wait) => format!("{at} {holder} denied {}", (wait + 999) / 1000),
                Answer::Never => format!("{at} {holder} denied for good"),
            }
        });
        replies.collect()
    }
}

/// Runs steps, each with its time in milliseconds, the action and the expected replies. A client is named by its holder.
fn run_steps(steps: &[(u64, &str, &[&str])]) {
    let mut service = Service::new(us(0));
    for (at, action, expected) in steps {
        let at = us(at * 1000);
        match action.split_once(' ') {
            Some(("clock", _)) => service.set_clock(at),
            _ => service.advance_to(at),
        }
        match action.split_once(' ') {
            Some(("acquire", words)) => service.acquire(words),
            Some(("peek", words)) => {
                service.holders.push("peek".to_owned());
                service.places.push(None);
                let answer = service.peek(words);
                service.answer(service.places.len() - 1, answer);
            }
            Some(("release", holder)) => service.release(holder),
            Some(("leave", holder)) => {
                let last = service.holders.iter().rposition(|name| name == holder);
                service.leave(last.unwrap());
            }
            Some(("del", _)) => service.delete(),
            Some(("clock" | "go", _)) => {}
            _ => unreachable!("{action}"),
        }
        service.serve();
        assert_eq!(service.take_replies(), *expected, "at {at:?}: {action}");
    }
    assert!(service.queue.is_empty(), "all calls are answered");
}

/// Returns the steady time of a clock that never moved backwards.
fn steady(micros: u64) -> Steady {
    SteadyClock::default().read(us(micros))
}

/// Creates a queue of calls for one unit by the given holders. Returns the queue and the places of the calls. Clients
/// are numbered in the order of the holders.
fn queue_of(holders: &[&str]) -> (Queue<usize>, Vec<QueuePlace>) {
    let mut queue = Queue::new(Amount::ONE);
    let join = |(client, holder): (usize, &&str)| {
        // Each call is a microsecond later than the call before.
        let client_at = |micros: u64| steady(micros + u64::try_from(client).unwrap());
        let (joined_at, deadline) = (client_at(500_000), Some(client_at(1_000_000)));
        queue.join(Waiter { claim: claim(&format!("1 30s {holder}")), joined_at, deadline, client })
    };
    let places = holders.iter().enumerate().map(join).collect();
    (queue, places)
}

fn clients(queue: &Queue<usize>) -> Vec<usize> {
    queue.iter().map(|waiter| waiter.client).collect()
}

/// Arguments of a random call, for the queue and its oracle.
#[derive(Clone, Debug)]
struct CallArguments {
    limit: Amount,
    ttl: u64,
    holder: usize,
    cost: Amount,
    keep: Amount,
    nx: bool,
    has_name: bool,
    /// Time to wait in microseconds: `None` for no waiting, 0 for no timeout.
    block: Option<u64>,
}

impl CallArguments {
    fn words(&self) -> String {
        let CallArguments { limit, ttl, holder, cost, keep, .. } = self;
        let mut words = format!("{limit} {ttl}us h{holder} COST {cost} KEEP {keep}");
        words.push_str(if self.nx { " NX" } else { "" });
        words.push_str(if self.has_name { " AS a" } else { "" });
        match self.block {
            None => words,
            Some(0) => words + " BLOCK 0",
            Some(block) => format!("{words} BLOCK {block}us"),
        }
    }

    fn claim(&self) -> oracle::Claim {
        let [cost, keep] = [self.cost, self.keep].map(|amount| amount.millionths().into());
        oracle::Claim { holder: format!("h{}", self.holder), cost, keep, nx: self.nx, ttl: self.ttl.into() }
    }

    fn any() -> impl Strategy<Value = CallArguments> {
        let whole = |max: u64| (1..=max).prop_map(units);
        let largest = units(1_000_000_000_000);
        let limit = prop_oneof![12 => Just(units(3)), 4 => whole(6), 1 => Just(Amount::ZERO), 1 => Just(largest)];
        let cost = prop_oneof![8 => whole(3), 2 => (1..=3_000_000u64).prop_map(Amount::saturating), 1 => Just(largest)];
        let keep = prop_oneof![8 => Just(Amount::ZERO), 2 => whole(2)];
        let tens_of_millis = |max: u64| (1..=max).prop_map(|tens| tens * 10_000);
        let ttl = prop_oneof![6 => tens_of_millis(8), 1 => 1..=90_000u64];
        let block = prop_oneof![
            3 => Just(None),
            3 => Just(Some(0)),
            3 => tens_of_millis(8).prop_map(Some),
            1 => (1..=90_000u64).prop_map(Some),
        ];
        (limit, ttl, 0..6usize, cost, keep, prop::bool::weighted(0.1), prop::bool::weighted(0.1), block).prop_map(
            |(limit, ttl, holder, cost, keep, nx, has_name, block)| CallArguments {
                limit,
                ttl,
                holder,
                cost,
                keep,
                nx,
                has_name,
                block,
            },
        )
    }
}

#[derive(Clone, Debug)]
enum Step {
    Request(CallArguments),
    Peek(CallArguments),
    Release(usize),
    Delete,
    /// The client of an earlier call disconnects.
    Leave(Index),
    /// Time passes, in microseconds.
    Advance(u64),
    /// Time passes until the next due time, plus an offset in microseconds.
    AdvanceToDue(i64),
    /// The clock is set ahead or back, in microseconds.
    SetClock(i64),
}

/// Generates steps, each with `true` if the queue is served after it.
fn steps() -> impl Strategy<Value = Vec<(Step, bool)>> {
    let step = prop_oneof![
        16 => CallArguments::any().prop_map(Step::Request),
        2 => CallArguments::any().prop_map(Step::Peek),
        3 => (0..6usize).prop_map(Step::Release),
        1 => Just(Step::Delete),
        3 => any::<Index>().prop_map(Step::Leave),
        4 => prop_oneof![(0..=4u64).prop_map(|tens| tens * 10_000), 0..=30_000u64].prop_map(Step::Advance),
        4 => (-1..=1i64).prop_map(Step::AdvanceToDue),
        1 => prop_oneof![-100_000..=100_000i64, select(vec![-3_600_000_000, -10_000, 10_000])].prop_map(Step::SetClock),
    ];
    vec((step, any::<bool>()), 1..=80)
}
