//! Judging a request: all that its parts ask is asked at once, and charged by the charging mode of each.

mod rollback;

use crate::ask::{Call, Reply, Rule, Verb, Verdict};
use crate::link::{Link, Listener as _};
use crate::local::Local;
use crate::seen::{self, Outcome, RequestOutcome, Units};
use crate::told_policies::Table;
use crate::windows::{Window, windows};
use ratelimit_core::Amount;
use rollback::identified;
use serde_json::{Map, Value};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

/// What is answered while the server is away.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outage {
    /// Requests pass.
    Open,
    /// They do not.
    Closed,
    /// This share of each limit passes, counted here; what is not known here passes.
    Local(f64),
}

/// What a part of a request asks.
#[derive(Clone, Debug)]
pub enum RequestPart {
    /// Nothing limits it.
    Nothing,
    /// A limit that nothing ever reaches.
    Unlimited,
    /// More than any limit allows.
    TooMuch,
    /// The server.
    Server(Question),
}

/// A part that the server decides.
#[derive(Clone, Debug)]
pub struct Question {
    /// The call.
    pub call: Call,
    /// Whether what is over the limit passes.
    pub shadow: bool,
    /// Whether it is over only together with all others such.
    pub quota: bool,
    /// What it is called in the metrics; none: by the policy that rules.
    pub metric: Option<crate::configuration::Metric>,
    /// Metadata of the rule.
    pub metadata: Option<Arc<Map<String, Value>>>,
}

impl Question {
    /// Creates a question that is enforced, under no rule of a file.
    #[must_use]
    pub fn new(call: Call) -> Question {
        Question { call, shadow: false, quota: false, metric: None, metadata: None }
    }
}

/// What became of a part.
#[derive(Clone, Debug)]
pub struct Judged {
    /// How it ended.
    pub outcome: Outcome,
    /// Whether this part is over its limit: a shadow's too.
    pub over: bool,
    /// Whether nobody is held to its limit.
    pub shadow: bool,
    /// Whether the request does not pass because of this part.
    pub denies: bool,
    /// What the server decided.
    pub verdict: Option<Verdict>,
    /// The limits that it was decided under, if they are known.
    pub windows: Arc<[Window]>,
    /// What it cost.
    pub cost: Amount,
}

/// What became of a request.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// Whether it passes.
    pub allowed: bool,
    /// Whether it was answered without the server.
    pub unknown: bool,
    /// What became of each part, in order.
    pub parts: Vec<Judged>,
}

/// How requests are judged.
pub struct Judge {
    /// The link to the server.
    pub link: Arc<Link>,
    /// The policies that it told of.
    pub table: Arc<Table>,
    /// What is answered while it is away.
    pub outage: Outage,
    /// What is counted meanwhile, if anything is.
    pub local: Option<Local>,
    /// Timeout of a call. A call without a reply by then is a failure of the server.
    pub timeout: Duration,
    /// Whether nobody is held to anything.
    pub shadow: bool,
    /// A permit for each request that may be under way at once.
    pub in_flight: Arc<Semaphore>,
    /// When an error of the server was last told in the log.
    pub told: Mutex<Option<Instant>>,
}

impl Judge {
    /// Evaluates all descriptors of a request and charges all of them or none. Answers within `timeout`, the caller's own,
    /// and within that of the gateway; the calls go on behind the answer, so that a caller with little time neither counts
    /// as a failure of the server nor leaves charges that have to be rolled back.
    pub async fn judge(
        self: &Arc<Judge>,
        domain: String,
        asked: Arc<[RequestPart]>,
        timeout: Option<Duration>,
    ) -> Judgement {
        let (this, count) = (Arc::clone(self), asked.len());
        let (answer, answered) = oneshot::channel();
        tokio::spawn(async move { this.carry_out(&domain, &asked, timeout, answer).await });
        // A panic drops the sender.
        answered.await.unwrap_or_else(|_| self.without(count))
    }

    async fn carry_out(
        &self,
        domain: &str,
        asked: &[RequestPart],
        timeout: Option<Duration>,
        answer: oneshot::Sender<Judgement>,
    ) {
        let began = Instant::now();
        let answer_by = began + timeout.map_or(self.timeout, |timeout| timeout.min(self.timeout));
        let permit = self.in_flight.try_acquire();
        let calls = identified(asked, self.timeout);
        let lost = |why: &str| calls.iter().map(|_| Reply::Lost(why.to_owned())).collect::<Vec<_>>();
        let mut asking = pin!(async {
            match &permit {
                _ if calls.is_empty() => (Arc::clone(&calls), vec![]),
                Ok(_) => self.asked(Arc::clone(&calls)).await,
                Err(_) => (Arc::clone(&calls), lost("too many requests at once")),
            }
        });
        let (is_late, (sent, mut replies)) = match timeout_at(answer_by, &mut asking).await {
            Ok(asked) => (false, asked),
            Err(_) => (true, (Arc::clone(&calls), lost("no reply before the deadline of the caller"))),
        };
        self.read_new_policies(&sent, &replies, answer_by).await;
        if let Some(local) = &self.local
            && replies.iter().any(Reply::is_undecided)
        {
            local.decide(&sent, &mut replies, &self.table);
        }
        let mut judgement = self.concluded(asked, &replies);
        let rolls_back = !judgement.allowed;
        self.count(domain, asked, &mut judgement);
        let mut rest = pin!(async {
            let (sent, replies) = if is_late { asking.await } else { (sent, replies) };
            if is_late {
                seen::late(replies.iter().filter(|reply| !matches!(reply, Reply::Lost(_))).count());
            }
            if rolls_back {
                self.undo(&sent, &replies).await;
            }
        });
        // A caller that asks again at once finds what was denied given back, if there is time for that.
        let is_done = timeout_at(answer_by, &mut rest).await.is_ok();
        seen::request_seconds(began.elapsed(), judgement.outcome());
        // The caller may have gone.
        let _ = answer.send(judgement);
        if !is_done {
            rest.await;
        }
    }

    /// Sends the calls and returns them with their replies. A call whose key remembers as many ids as it may is sent again
    /// without its id, and returned so.
    async fn asked(&self, calls: Arc<[Call]>) -> (Arc<[Call]>, Vec<Reply>) {
        let mut replies = self.link.ask(Arc::clone(&calls), Instant::now() + self.timeout).await;
        let is_full = |call: &Call, reply: &Reply| call.charges() && call.id.is_some() && reply.is_full_of_ids();
        if !calls.iter().zip(&replies).any(|(call, reply)| is_full(call, reply)) {
            return (calls, replies);
        }
        let (mut all, mut again, mut places) = (Vec::with_capacity(calls.len()), Vec::new(), Vec::new());
        for (call, reply) in calls.iter().zip(&mut replies) {
            let mut call = call.clone();
            if is_full(&call, reply) {
                call.id = None;
                again.push(call.clone());
                places.push(reply);
            }
            all.push(call);
        }
        // A time of its own: with what the first has left, an answer in good time would be a failure of the server.
        let deadline = Instant::now() + self.timeout;
        for (place, reply) in places.into_iter().zip(self.link.ask(again.into(), deadline).await) {
            *place = reply;
        }
        (all.into(), replies)
    }

    /// Reads policies that ruled in a version that is not known here, so that the answer describes the limits as they are.
    async fn read_new_policies(&self, calls: &[Call], replies: &[Reply], by: Instant) {
        for (call, reply) in calls.iter().zip(replies) {
            if let Reply::Decided(Verdict { policy: Some(policy), version: Some(version), .. }) = reply
                && !self.table.has(policy, *version)
            {
                let (link, table) = (Arc::clone(&self.link), Arc::clone(&self.table));
                let reading = tokio::spawn(link.read_policy(call.key.clone(), policy.clone(), *version, table));
                // The caller may have less time than the others that wait for the policy.
                let _ = timeout_at(by, reading).await;
            }
        }
    }

    /// What a request is told that could not be judged.
    fn without(&self, count: usize) -> Judgement {
        let closed = self.outage == Outage::Closed;
        let part = Judged { denies: closed, ..Judged::new(Outcome::Outage, closed) };
        Judgement { allowed: !closed, unknown: true, parts: vec![part; count] }
    }

    fn concluded(&self, asked: &[RequestPart], replies: &[Reply]) -> Judgement {
        let mut replies = replies.iter();
        let mut parts: Vec<Judged> = vec![];
        let (mut quotas, mut unknown) = (vec![], false);
        for one in asked {
            let mut part = match one {
                RequestPart::Nothing => Judged::new(Outcome::Unmatched, false),
                RequestPart::Unlimited => Judged::new(Outcome::Allowed, false),
                RequestPart::TooMuch => Judged::new(Outcome::Denied, true),
                RequestPart::Server(question) => {
                    let part = replies.next().map(|reply| self.part(question, reply));
                    Judged { shadow: question.shadow, ..part.unwrap_or_else(|| Judged::new(Outcome::Outage, false)) }
                }
            };
            let without = matches!(part.outcome, Outcome::Outage | Outcome::Error) && part.verdict.is_none();
            unknown |= without;
            part.denies = part.over && !part.shadow;
            if matches!(one, RequestPart::Server(Question { quota: true, .. })) && !without {
                quotas.push(parts.len());
            }
            parts.push(part);
        }
        // Of quotas none denies, unless all do.
        let over = |place: &usize| parts.get(*place).is_some_and(|part| part.over && !part.shadow);
        if !quotas.iter().all(over) {
            for place in quotas {
                if let Some(part) = parts.get_mut(place) {
                    part.denies = false;
                }
            }
        }
        Judgement { allowed: !parts.iter().any(|part| part.denies), unknown, parts }
    }

    fn part(&self, question: &Question, reply: &Reply) -> Judged {
        let cost = match question.call.verb {
            Verb::Take(cost) => cost,
            _ => Amount::ZERO,
        };
        // A settlement of an id that is not known, or a give-back, stops nobody.
        let asks = matches!(question.call.verb, Verb::Take(_));
        match reply {
            Reply::Decided(verdict) => {
                let over = asks && !verdict.allowed;
                let outcome = match (over, question.shadow) {
                    (false, _) => Outcome::Allowed,
                    (true, true) => Outcome::Shadow,
                    (true, false) => Outcome::Denied,
                };
                self.told(question, verdict, outcome, cost)
            }
            Reply::Local(verdict, refused) => {
                let outcome = if let Some(refusal) = refused {
                    self.tell(refusal);
                    Outcome::Error
                } else {
                    Outcome::Outage
                };
                self.told(question, verdict, outcome, cost)
            }
            Reply::Unmatched => Judged::new(Outcome::Unmatched, false),
            Reply::Released => Judged::new(Outcome::Allowed, false),
            Reply::Refused(_) | Reply::Forbidden(_) => {
                self.tell(reply);
                Judged::new(Outcome::Error, asks && self.outage == Outage::Closed)
            }
            Reply::Lost(_) => Judged::new(Outcome::Outage, asks && self.outage == Outage::Closed),
        }
    }

    /// What a verdict comes to.
    fn told(&self, question: &Question, verdict: &Verdict, outcome: Outcome, cost: Amount) -> Judged {
        let windows = self.windows(&question.call.rule, verdict);
        let over = matches!(question.call.verb, Verb::Take(_)) && !verdict.allowed;
        Judged { windows, verdict: Some(verdict.clone()), cost, ..Judged::new(outcome, over) }
    }

    /// Returns the limits that ruled a call, as far as they are known here.
    fn windows(&self, rule: &Rule, verdict: &Verdict) -> Arc<[Window]> {
        match (&verdict.policy, rule) {
            (Some(policy), _) => self.table.windows(policy),
            (None, Rule::Limits(words)) => windows(&words.join(" ")).into(),
            (None, Rule::Policies(_)) => Arc::default(),
        }
    }

    /// A line a minute of what the server refuses; of what its user may not do, one for each command.
    fn tell(&self, refusal: &Reply) {
        let why = match refusal {
            Reply::Forbidden(why) => return self.link.missing.tell(why),
            Reply::Refused(why) => why,
            _ => return,
        };
        let Ok(mut told) = self.told.lock() else { return };
        if told.is_none_or(|told| told.elapsed() >= Duration::from_mins(1)) {
            tracing::error!(why, "the server refused to decide");
            *told = Some(Instant::now());
        }
    }

    fn count(&self, domain: &str, asked: &[RequestPart], judgement: &mut Judgement) {
        if self.shadow && !judgement.allowed {
            judgement.allowed = true;
            let denied = judgement.parts.iter_mut().filter(|part| part.outcome == Outcome::Denied);
            denied.for_each(|part| part.outcome = Outcome::Shadow);
        }
        for (one, part) in asked.iter().zip(&judgement.parts) {
            let question = if let RequestPart::Server(question) = one { Some(question) } else { None };
            let metric = question.and_then(|question| question.metric.as_ref());
            let by = part.verdict.as_ref().and_then(|verdict| verdict.policy.as_deref());
            let policy = by.or_else(|| metric.map(|metric| metric.rule.as_str()));
            let ruled = by.is_some() || metric.is_some_and(|metric| !metric.brought);
            let values = metric.and_then(|metric| metric.values.as_deref());
            let units = question.map(|question| Units::of(&question.call.verb, part.outcome));
            seen::decision(domain, ruled, policy, values, part.outcome, units);
            if let (Outcome::Allowed, Some(policy), Some(governing)) = (part.outcome, policy, part.governing())
                && governing.remaining.saturating_mul(5) <= governing.limit
            {
                seen::near(policy);
            }
        }
    }
}

impl Judgement {
    fn outcome(&self) -> RequestOutcome {
        match (self.unknown, self.allowed) {
            (true, _) if self.parts.iter().any(|part| part.outcome == Outcome::Error) => RequestOutcome::Error,
            (true, _) => RequestOutcome::Outage,
            (false, true) => RequestOutcome::Allowed,
            (false, false) => RequestOutcome::Denied,
        }
    }
}

impl Judged {
    fn new(outcome: Outcome, over: bool) -> Judged {
        let (shadow, denies) = (false, false);
        Judged { outcome, over, shadow, denies, verdict: None, windows: Arc::default(), cost: Amount::ONE }
    }

    /// The limit that its answer is about.
    #[must_use]
    pub fn governing(&self) -> Option<crate::ask::Decision> {
        self.place().map(|(_, decision)| decision)
    }

    /// The window of that limit, if it is known.
    #[must_use]
    pub fn window(&self) -> Option<&Window> {
        self.place().and_then(|(place, _)| self.windows.get(place))
    }

    /// What remains of that limit, and what a call like this one costs of it, in millionths.
    #[must_use]
    pub fn left(&self) -> Option<(i64, u64)> {
        let (place, decision) = self.place()?;
        let cost = self.windows.get(place).and_then(|window| window.cost).unwrap_or(self.cost);
        // A call that looks is told how many of the usual ones remain.
        let cost = if cost == Amount::ZERO { Amount::ONE } else { cost };
        Some((decision.remaining, cost.millionths()))
    }

    fn place(&self) -> Option<(usize, crate::ask::Decision)> {
        self.verdict.as_ref().and_then(|verdict| verdict.governing(&self.windows, self.cost))
    }
}

#[cfg(test)]
mod tests;
