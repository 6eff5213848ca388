//! Queue compared with its oracle in exact numbers.

use super::*;

/// Service and oracle side by side.
struct ServiceAndOracle {
    service: Service,
    pool: Pool,
}

impl ServiceAndOracle {
    fn now(&self) -> i128 {
        self.service.now.micros().into()
    }

    fn serve(&mut self) {
        self.service.serve();
        self.pool.serve(self.now());
    }

    fn advance_to(&mut self, to: Timestamp) {
        let mut now = self.now();
        while let Some(due) = self.pool.next_event(now).filter(|due| *due <= i128::from(to.micros())) {
            now = due;
            self.pool.serve(now);
        }
        self.service.advance_to(to);
    }

    fn step(&mut self, step: &Step) {
        let now = self.now();
        match step {
            Step::Request(arguments) => {
                let timeout = match arguments.block {
                    None => Timeout::None,
                    Some(0) => Timeout::Forever,
                    Some(block) => Timeout::Until(now + i128::from(block)),
                };
                let call = self.service.places.len();
                let limit = arguments.limit.millionths().into();
                self.service.acquire(&arguments.words());
                self.pool.acquire(call, arguments.claim(), limit, timeout, now);
            }
            Step::Peek(arguments) => {
                let limit = arguments.limit.millionths().into();
                assert_eq!(self.service.peek(&arguments.words()), self.pool.peek(&arguments.claim(), limit, now));
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
            Step::Advance(micros) => self.advance_to(self.service.now.plus(Span::from_micros(*micros))),
            Step::AdvanceToDue(offset) => {
                let due = self.service.next_due().and_then(|due| due.micros().checked_add_signed(*offset)).map(us);
                self.advance_to(due.unwrap_or_default().max(self.service.now));
            }
            Step::SetClock(by) => {
                let to = us(self.service.now.micros().checked_add_signed(*by).unwrap());
                self.pool.move_back((now - i128::from(to.micros())).max(0));
                self.service.set_clock(to);
                // The periodic tick notices the step.
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
    #[test]
    fn queue_answers_like_the_oracle(steps in steps()) {
        let mut both = ServiceAndOracle { service: Service::new(us(1_700_000_000_000_000)), pool: Pool::default() };
        for (step, is_served) in steps {
            if matches!(step, Step::Advance(_) | Step::AdvanceToDue(_) | Step::SetClock(_)) {
                // All calls that can be answered are answered before time passes.
                both.serve();
            }
            both.step(&step);
            if is_served {
                both.serve();
            }
            both.compare();
        }
        // All calls are answered once the leases have expired.
        both.serve();
        both.advance_to(both.service.now.plus(Span::SECOND.times(60)));
        both.compare();
        prop_assert!(both.service.queue.is_empty());
    }

    /// A call waits at most for one lease of each call ahead, no matter how many calls wait for the free units.
    #[test]
    fn no_waiter_starves(claims in vec((1..=3u64, 1..=50u64), 1..=12)) {
        /// Longest ttl in milliseconds.
        const MAX_TTL: u64 = 50;
        let mut service = Service::new(us(0));
        service.acquire("3 50ms first COST 3");
        for (call, (cost, ttl)) in claims.iter().enumerate() {
            service.acquire(&format!("3 {ttl}ms w{call} COST {cost} BLOCK 0"));
        }
        service.take_replies();
        let (mut served, mut now) = (0, 0);
        while served < claims.len() {
            now += 1;
            prop_assert!(now <= MAX_TTL * u64::try_from(claims.len()).unwrap(), "a waiter starves");
            service.advance_to(us(now * 1000));
            // A call without BLOCK is never granted while others wait.
            let has_waiters_ahead = !service.queue.is_empty();
            let answers: Vec<_> = std::mem::take(&mut service.answers);
            service.acquire(&format!("3 50ms late{now}"));
            service.acquire(&format!("3 50ms late{now} BLOCK 1us"));
            service.serve();
            let is_granted = std::mem::take(&mut service.answers).iter().any(|(_, _, answer)| *answer == Answer::Served);
            prop_assert!(!has_waiters_ahead || !is_granted, "a later call overtakes a waiter");
            for (at, call, answer) in answers {
                if call <= claims.len() {
                    served += 1;
                    prop_assert_eq!((call, answer), (served, Answer::Served), "waiters are served in order");
                    prop_assert!(at <= i128::try_from(call).unwrap() * i128::from(MAX_TTL) * 1000);
                }
            }
        }
    }
}
