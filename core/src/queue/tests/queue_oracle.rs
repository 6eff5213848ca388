//! The queue beside its oracle in exact numbers.

use super::*;

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
