//! Waiting in turn: who is served when, and who is denied.
//!
//! A list of leases, and a list of who waits, in the order in which they are to be served; each is walked over whenever
//! something may have changed. Amounts are in millionths, instants in microseconds.

/// What a call asks for.
#[derive(Clone, Debug)]
pub struct Claim {
    pub holder: String,
    pub cost: i128,
    pub kept: i128,
    pub nx: bool,
    pub ttl: i128,
}

/// How long a call would wait.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    None,
    Until(i128),
    Forever,
}

/// What a call is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has its lease.
    Served,
    /// Denied: it may pass after so long.
    After(i128),
    /// Denied, since its cost is above the limit.
    Never,
}

/// When which call is answered what.
pub type Answered = (i128, usize, Answer);

#[derive(Debug)]
struct Lease {
    holder: String,
    units: i128,
    expires_at: i128,
}

#[derive(Debug)]
struct Waiter {
    call: usize,
    claim: Claim,
    until: Option<i128>,
    /// Whether its holder has asked again.
    replaced: bool,
}

/// The leases of a key, and who waits for one.
#[derive(Debug, Default)]
pub struct Pool {
    limit: i128,
    /// When the leases were last changed.
    written: i128,
    leases: Vec<Lease>,
    waiters: Vec<Waiter>,
    /// In the order in which they are given.
    pub answers: Vec<Answered>,
}

impl Pool {
    /// What is held, at some time, by whoever is (or is not) `holder`.
    fn held(&self, holder: &str, is: bool, at: i128) -> i128 {
        let live = |lease: &&Lease| at < lease.expires_at && (lease.holder == holder) == is;
        self.leases.iter().filter(live).map(|lease| lease.units).sum()
    }

    /// "With the same or a smaller cost it always passes."
    fn renews(&self, claim: &Claim, at: i128) -> bool {
        let own = self.held(&claim.holder, true, at);
        !claim.nx && own > 0 && claim.cost <= own
    }

    /// "With a larger one the others' units and it must fit." NX: "only if this holder has no lease yet."
    fn fits(&self, claim: &Claim, at: i128) -> bool {
        let in_own_way = claim.nx && self.held(&claim.holder, true, at) > 0;
        self.held(&claim.holder, false, at) + claim.cost <= self.limit - claim.kept && !in_own_way
    }

    /// What is answered now. "A new holder is denied while others wait (at least 1 ms, else when the leases alone would
    /// let it pass); renewals pass."
    fn decide(&self, claim: &Claim, callers_wait_ahead: bool, now: i128) -> Answer {
        if self.renews(claim, now) || self.fits(claim, now) && !callers_wait_ahead {
            return Answer::Served;
        }
        if self.fits(claim, now) {
            return Answer::After(1000);
        }
        let expiries = self.leases.iter().map(|lease| lease.expires_at).filter(|at| now < *at);
        let first = expiries.filter(|at| self.fits(claim, *at)).min();
        first.map_or(Answer::Never, |at| Answer::After(at - now))
    }

    /// "A clock gone back: stored times move back by the difference." A call sees to that.
    fn see(&mut self, now: i128) {
        let back = (self.written - now).max(0);
        self.written -= back;
        self.leases.iter_mut().for_each(|lease| lease.expires_at -= back);
    }

    /// What a call would be answered and get, if it came now. Nothing is seen to.
    fn look(&self, claim: &Claim, callers_wait_ahead: bool, now: i128) -> Answer {
        self.decide(claim, callers_wait_ahead, now.max(self.written))
    }

    /// What a call is answered, and gets.
    fn take(&mut self, claim: &Claim, callers_wait_ahead: bool, now: i128) -> Answer {
        self.see(now);
        let answer = self.decide(claim, callers_wait_ahead, now);
        if answer == Answer::Served {
            self.leases.retain(|lease| now < lease.expires_at && lease.holder != claim.holder);
            let (holder, expires_at) = (claim.holder.clone(), now + claim.ttl);
            self.leases.push(Lease { holder, units: claim.cost, expires_at });
            self.written = now;
        }
        answer
    }

    /// A call comes, and with it a limit for all. It waits if it would be let in later.
    pub fn ask(&mut self, call: usize, claim: Claim, limit: i128, patience: Patience, now: i128) {
        self.limit = limit;
        let callers_wait_ahead = !self.waiters.is_empty();
        let until = match (self.look(&claim, callers_wait_ahead, now), patience) {
            (Answer::After(_), Patience::Until(until)) => Some(until),
            (Answer::After(_), Patience::Forever) => None,
            _ => {
                let answer = self.take(&claim, callers_wait_ahead, now);
                return self.answers.push((now, call, answer));
            }
        };
        let waiter = Waiter { call, claim, until, replaced: false };
        let older =
            self.waiters.iter_mut().position(|older| !older.replaced && older.claim.holder == waiter.claim.holder);
        match older {
            Some(place) => {
                self.waiters[place].replaced = true;
                self.waiters.insert(place + 1, waiter);
            }
            None => self.waiters.push(waiter),
        }
    }

    /// What a call would be answered now that only looks: it brings no limit for others.
    pub fn peek(&mut self, claim: &Claim, limit: i128, now: i128) -> Answer {
        let limit = std::mem::replace(&mut self.limit, limit);
        let answer = self.look(claim, !self.waiters.is_empty(), now);
        self.limit = limit;
        answer
    }

    /// A holder gives its lease back; if it has none, it waits no longer.
    pub fn release(&mut self, holder: &str, now: i128) {
        self.see(now);
        if self.held(holder, true, now) > 0 {
            self.leases.retain(|lease| now < lease.expires_at && lease.holder != holder);
            self.written = now;
        } else if let Some(place) =
            self.waiters.iter().position(|waiter| !waiter.replaced && waiter.claim.holder == holder)
        {
            let Waiter { call, claim, .. } = self.waiters.remove(place);
            let answer = self.look(&claim, true, now);
            self.answers.push((now, call, answer));
        }
    }

    /// The key is gone.
    pub fn delete(&mut self) {
        self.leases.clear();
    }

    /// The waiting caller has gone away.
    pub fn leave(&mut self, call: usize) {
        self.waiters.retain(|waiter| waiter.call != call);
    }

    /// The clock has gone back: deadlines go with it.
    pub fn move_back(&mut self, span: i128) {
        for waiter in &mut self.waiters {
            waiter.until = waiter.until.map(|until| until - span);
        }
    }

    /// Answers whoever can be answered, one after another.
    pub fn serve(&mut self, now: i128) {
        while self.serve_one(now) {}
    }

    fn serve_one(&mut self, now: i128) -> bool {
        if let Some(place) = self.waiters.iter().position(|waiter| waiter.replaced) {
            self.deny(place, true, now);
            return true;
        }
        let Some(head) = self.waiters.first() else { return false };
        let claim = head.claim.clone();
        let answer = self.take(&claim, false, now);
        if !matches!(answer, Answer::After(_)) {
            let head = self.waiters.remove(0);
            self.answers.push((now, head.call, answer));
            return true;
        }
        let due = |place: &usize| self.waiters[*place].until.filter(|until| *until <= now);
        let overdue = (0..self.waiters.len()).filter(|place| due(place).is_some()).min_by_key(due);
        if let Some(place) = overdue {
            self.deny(place, place > 0, now);
        }
        overdue.is_some()
    }

    /// Answers one whose turn it is not: with a denial, unless it has become a renewal. (By a clock gone back, a lease
    /// that had lapsed may be there again.)
    fn deny(&mut self, place: usize, callers_wait_ahead: bool, now: i128) {
        let Waiter { call, claim, .. } = self.waiters.remove(place);
        self.see(now);
        let renews = self.renews(&claim, now);
        let answer = self.take(&claim, callers_wait_ahead, now);
        assert_eq!(answer == Answer::Served, renews, "{call} {claim:?}");
        self.answers.push((now, call, answer));
    }

    /// The next time at which something may have changed by itself.
    pub fn due(&self, now: i128) -> Option<i128> {
        let expiries = self.leases.iter().map(|lease| lease.expires_at);
        let deadlines = self.waiters.iter().filter_map(|waiter| waiter.until);
        expiries.chain(deadlines).filter(|at| now < *at).min()
    }

    /// Those who wait, in order; those who have asked again since are to be denied.
    pub fn waiting(&self) -> Vec<usize> {
        let waiting = self.waiters.iter().filter(|waiter| !waiter.replaced);
        waiting.map(|waiter| waiter.call).collect()
    }

    /// How many wait, with those.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }
}
