//! Oracle of waiting queues: the time at which each call is granted or denied.
//!
//! It consists of a list of leases and a list of waiters in the order of service. Both are scanned whenever something
//! may have changed. Amounts are in millionths, timestamps in microseconds.

/// Requested lease.
#[derive(Clone, Debug)]
pub struct Claim {
    pub holder: String,
    pub cost: i128,
    pub keep: i128,
    pub nx: bool,
    pub ttl: i128,
}

/// Time to wait.
#[derive(Clone, Copy, Debug)]
pub enum Timeout {
    None,
    Until(i128),
    Forever,
}

/// Reply to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The lease is granted.
    Served,
    /// Denied: it may be granted after this many microseconds.
    After(i128),
    /// Denied: its cost is above the limit.
    Never,
}

/// Time of a reply, number of the call, and reply.
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
    /// `true`: the holder has called again.
    is_replaced: bool,
}

/// Leases of a key with its waiters.
#[derive(Debug, Default)]
pub struct Pool {
    limit: i128,
    /// Time of the last change of the leases.
    written: i128,
    leases: Vec<Lease>,
    waiters: Vec<Waiter>,
    /// Replies in the order of sending.
    pub answers: Vec<Answered>,
}

impl Pool {
    /// Returns the units leased at a time: by `holder` if `by_holder` is `true`, otherwise by all other holders.
    fn leased(&self, holder: &str, by_holder: bool, at: i128) -> i128 {
        let counts = |lease: &&Lease| at < lease.expires_at && (lease.holder == holder) == by_holder;
        self.leases.iter().filter(counts).map(|lease| lease.units).sum()
    }

    /// Returns `true` if the call renews a lease with the same or a smaller cost.
    fn renews(&self, claim: &Claim, at: i128) -> bool {
        let own = self.leased(&claim.holder, true, at);
        !claim.nx && own > 0 && claim.cost <= own
    }

    /// Returns `true` if the cost fits beside the leases of other holders. With NX, it does not fit if the holder has a
    /// lease.
    fn fits(&self, claim: &Claim, at: i128) -> bool {
        let blocked_by_nx = claim.nx && self.leased(&claim.holder, true, at) > 0;
        self.leased(&claim.holder, false, at) + claim.cost <= self.limit - claim.keep && !blocked_by_nx
    }

    /// Returns the reply at `now`. Renewals are granted. Any other call is denied while there are waiters ahead, for 1
    /// ms if it fits.
    fn decide(&self, claim: &Claim, has_waiters_ahead: bool, now: i128) -> Answer {
        if self.renews(claim, now) || self.fits(claim, now) && !has_waiters_ahead {
            return Answer::Served;
        }
        if self.fits(claim, now) {
            return Answer::After(1000);
        }
        let expiries = self.leases.iter().map(|lease| lease.expires_at).filter(|at| now < *at);
        let fits_at = expiries.filter(|at| self.fits(claim, *at)).min();
        fits_at.map_or(Answer::Never, |at| Answer::After(at - now))
    }

    /// Moves stored times back if they are later than `now`, by the difference.
    fn move_leases_back(&mut self, now: i128) {
        let back = (self.written - now).max(0);
        self.written -= back;
        self.leases.iter_mut().for_each(|lease| lease.expires_at -= back);
    }

    /// Returns the reply to a call at `now`, without changing anything.
    fn evaluate(&self, claim: &Claim, has_waiters_ahead: bool, now: i128) -> Answer {
        self.decide(claim, has_waiters_ahead, now.max(self.written))
    }

    /// Makes a call at `now`, and returns the reply.
    fn take(&mut self, claim: &Claim, has_waiters_ahead: bool, now: i128) -> Answer {
        self.move_leases_back(now);
        let answer = self.decide(claim, has_waiters_ahead, now);
        if answer == Answer::Served {
            self.leases.retain(|lease| now < lease.expires_at && lease.holder != claim.holder);
            let (holder, expires_at) = (claim.holder.clone(), now + claim.ttl);
            self.leases.push(Lease { holder, units: claim.cost, expires_at });
            self.written = now;
        }
        answer
    }

    /// Handles a new call, which sets the limit for all waiting calls. The call waits if it may be granted later.
    pub fn acquire(&mut self, call: usize, claim: Claim, limit: i128, timeout: Timeout, now: i128) {
        self.limit = limit;
        let has_waiters_ahead = !self.waiters.is_empty();
        let until = match (self.evaluate(&claim, has_waiters_ahead, now), timeout) {
            (Answer::After(_), Timeout::Until(until)) => Some(until),
            (Answer::After(_), Timeout::Forever) => None,
            _ => {
                let answer = self.take(&claim, has_waiters_ahead, now);
                return self.answers.push((now, call, answer));
            }
        };
        let waiter = Waiter { call, claim, until, is_replaced: false };
        let replaced_index =
            self.waiters.iter_mut().position(|older| !older.is_replaced && older.claim.holder == waiter.claim.holder);
        match replaced_index {
            Some(index) => {
                self.waiters[index].is_replaced = true;
                self.waiters.insert(index + 1, waiter);
            }
            None => self.waiters.push(waiter),
        }
    }

    /// Returns the reply to a peek at `now`, which does not set the limit for other calls.
    pub fn peek(&mut self, claim: &Claim, limit: i128, now: i128) -> Answer {
        let limit_of_others = std::mem::replace(&mut self.limit, limit);
        let answer = self.evaluate(claim, !self.waiters.is_empty(), now);
        self.limit = limit_of_others;
        answer
    }

    /// Releases the lease of a holder. If the holder has no lease, removes its waiting call.
    pub fn release(&mut self, holder: &str, now: i128) {
        self.move_leases_back(now);
        if self.leased(holder, true, now) > 0 {
            self.leases.retain(|lease| now < lease.expires_at && lease.holder != holder);
            self.written = now;
        } else if let Some(index) =
            self.waiters.iter().position(|waiter| !waiter.is_replaced && waiter.claim.holder == holder)
        {
            let Waiter { call, claim, .. } = self.waiters.remove(index);
            let answer = self.evaluate(&claim, true, now);
            self.answers.push((now, call, answer));
        }
    }

    /// Deletes the key.
    pub fn delete(&mut self) {
        self.leases.clear();
    }

    /// Disconnects the client of a waiting call.
    pub fn leave(&mut self, call: usize) {
        self.waiters.retain(|waiter| waiter.call != call);
    }

    /// Moves deadlines back with the clock.
    pub fn move_back(&mut self, span: i128) {
        for waiter in &mut self.waiters {
            waiter.until = waiter.until.map(|until| until - span);
        }
    }

    /// Answers all calls that can be answered, one after another.
    pub fn serve(&mut self, now: i128) {
        while self.serve_one(now) {}
    }

    fn serve_one(&mut self, now: i128) -> bool {
        if let Some(index) = self.waiters.iter().position(|waiter| waiter.is_replaced) {
            self.deny(index, true, now);
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
        let deadline_passed = |index: &usize| self.waiters[*index].until.filter(|until| *until <= now);
        let overdue =
            (0..self.waiters.len()).filter(|index| deadline_passed(index).is_some()).min_by_key(deadline_passed);
        if let Some(index) = overdue {
            self.deny(index, index > 0, now);
        }
        overdue.is_some()
    }

    /// Answers a call out of order, with a denial unless it has become a renewal. (After a clock step back, an expired
    /// lease may be valid again.)
    fn deny(&mut self, index: usize, has_waiters_ahead: bool, now: i128) {
        let Waiter { call, claim, .. } = self.waiters.remove(index);
        self.move_leases_back(now);
        let renews = self.renews(&claim, now);
        let answer = self.take(&claim, has_waiters_ahead, now);
        assert_eq!(answer == Answer::Served, renews, "{call} {claim:?}");
        self.answers.push((now, call, answer));
    }

    /// Returns the time of the next expiry or deadline.
    pub fn next_event(&self, now: i128) -> Option<i128> {
        let expiries = self.leases.iter().map(|lease| lease.expires_at);
        let deadlines = self.waiters.iter().filter_map(|waiter| waiter.until);
        expiries.chain(deadlines).filter(|at| now < *at).min()
    }

    /// Returns the waiting calls in order, without replaced ones.
    pub fn waiting(&self) -> Vec<usize> {
        let waiting = self.waiters.iter().filter(|waiter| !waiter.is_replaced);
        waiting.map(|waiter| waiter.call).collect()
    }

    /// Returns the number of calls, including replaced ones.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }
}
