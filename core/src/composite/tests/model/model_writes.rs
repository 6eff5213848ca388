//! Changes of the model by a call, and the reply.

use super::*;

impl Model {
    /// Ends a change: removes recovered components.
    pub(super) fn finish(&mut self, now: Timestamp) {
        self.written = now;
        self.components.retain(|component| !component.must_be_dropped(now));
        for component in self.components.iter_mut().filter(|component| is_unused(&component.usage)) {
            component.usage = AnyUsage::unused(component.usage.kind()).unwrap();
        }
    }

    pub(super) fn write(
        &mut self,
        call: &CompositeRequest,
        found: &[Option<usize>],
        evaluations: &[Evaluation],
        outcome: &Outcome,
        now: Timestamp,
        expires_at: Option<u64>,
    ) {
        let records_id = matches!(call.idempotency, Idempotency::Once { .. }) && matches!(outcome, Outcome::Passes);
        if self.is_plain {
            let stays_plain = call.specs.iter().zip(found).zip(evaluations).all(|((spec, number), evaluation)| {
                evaluation.change == Change::Nothing || (number.is_some() && spec.name.is_none())
            });
            let charges = matches!(outcome, Outcome::Passes | Outcome::Repeated(..));
            if stays_plain && !records_id && charges {
                self.move_back(now);
                for ((spec, number), evaluation) in call.specs.iter().zip(found).zip(evaluations) {
                    if let Some(number) = number.filter(|_| evaluation.change != Change::Nothing) {
                        self.change(spec, number, evaluation.change, now);
                    }
                }
                return;
            }
            if call.purpose == Purpose::Settle {
                // A plain key has no record of the id, but may hold its lease.
                self.move_back(now);
                for spec in call.specs.iter().filter(|spec| spec.is_held_by_id()) {
                    self.release_leases(spec.holder_or_item, now);
                }
                return;
            }
            self.convert(expires_at, now);
        }
        self.move_back(now);
        self.sweep(now);
        match outcome {
            Outcome::Passes | Outcome::Repeated(..) => {
                let mut charges = Vec::new();
                for ((spec, number), evaluation) in call.specs.iter().zip(found).zip(evaluations) {
                    let number = match (evaluation.change, number) {
                        (Change::Nothing, _) | (Change::Refund(_), None) => continue,
                        (_, Some(number)) => *number,
                        (Change::Charge(_), None) => {
                            self.created_count += 1;
                            let mut component = Component::unclaimed(self.usage(spec, None));
                            component.number = self.created_count;
                            self.components.push(component);
                            self.created_count
                        }
                    };
                    self.change(spec, number, evaluation.change, now);
                    let component = self.component(number);
                    if component.identity == ComponentIdentity::Nothing {
                        component.identity = identity(spec);
                    }
                    if let Change::Charge(cost) = evaluation.change
                        && records_id
                        && spec.limit.kind() != UsageKind::Concurrency
                    {
                        component.unsettled_count += 1;
                        let settlement = &mut component.settlement;
                        let charge = with_usage!(&component.usage, usage => settlement.charge(usage, 0, cost)).unwrap();
                        charges.push((number, charge));
                    }
                }
                if let (Idempotency::Once { id, ttl }, Outcome::Passes) = (call.idempotency, outcome) {
                    let enforced = call.specs.iter().zip(evaluations).filter(|(spec, _)| !spec.shadow);
                    let holds = enforced.filter_map(|(_, evaluation)| match evaluation.verdict {
                        Verdict::Allowed(hold) => Some(hold),
                        _ => None,
                    });
                    let hold_until = now.plus(holds.max().unwrap_or_default()).min(Timestamp::MAX);
                    let record = Id {
                        expires_at: now.plus(ttl.span()).min(Timestamp::MAX),
                        hold_until,
                        settled: false,
                        forced: is_forced(call, evaluations),
                        granted: granted_by(call, evaluations),
                        charges,
                    };
                    self.ids.insert(id.to_vec(), record);
                }
            }
            Outcome::Settles => self.settle(call, found, now),
            Outcome::Denied { .. } => self.strike(call.ban.unwrap(), now),
            Outcome::Settled | Outcome::Unknown => {}
            Outcome::Banned | Outcome::LostLease => unreachable!(),
        }
        if call.purpose == Purpose::Settle {
            for spec in call.specs.iter().filter(|spec| spec.is_held_by_id()) {
                self.release_leases(spec.holder_or_item, now);
            }
        }
        self.finish(now);
    }

    pub(super) fn settle(&mut self, call: &CompositeRequest, found: &[Option<usize>], now: Timestamp) {
        let Idempotency::Settle { id, amount } = call.idempotency else { unreachable!() };
        let id = self.ids.get_mut(id).unwrap();
        id.settled = true;
        for (number, charge) in std::mem::take(&mut id.charges) {
            let mut specs = call.specs.iter().zip(found);
            let spec = specs.find(|(spec, found)| **found == Some(number) && !spec.has_own_cost);
            let component = self.component(number);
            component.unsettled_count -= 1;
            let Some((spec, _)) = spec.filter(|_| amount != charge.cost) else {
                component.settlement.forget(&charge);
                continue;
            };
            let settlement = &mut component.settlement;
            with_usage!(&mut component.usage, mut usage => {
                settlement.settle(usage, &charge, charge.cost.minus(amount));
                usage.encode_effect(&mut Discard);
            });
            if amount > charge.cost {
                let extra = Change::Charge(amount.minus(charge.cost));
                with_limit!(spec, limit => self::charge(limit, &mut component.usage, settlement, extra, now));
            }
            component.set_charged_by(spec, now);
        }
    }

    pub(super) fn change(&mut self, spec: &Spec, number: usize, change: Change, now: Timestamp) {
        let component = self.component(number);
        let settlement = &mut component.settlement;
        with_limit!(spec, limit => charge(limit, &mut component.usage, settlement, change, now));
        component.set_charged_by(spec, now);
    }

    /// Converts a plain key. Its usage recovers when the plain key would have expired.
    pub(super) fn convert(&mut self, expires_at: Option<u64>, now: Timestamp) {
        self.is_plain = false;
        self.components.retain(|component| !is_unused(&component.usage));
        let Some(component) = self.components.first_mut() else { return };
        // The expiry may be newer than the clock, so it is compared with `now` directly.
        let time_left = Span::from_micros(expires_at.unwrap().saturating_sub(now.floor_millis()) * 1000);
        let (moves_back, recovery) =
            with_usage!(&component.usage, usage => (usage.is_after(now), usage.recovery_source()));
        component.move_back(now);
        let reported = match recovery {
            RecoverySource::Usage if moves_back => reported_reset(&component.usage, now),
            _ => Span::ZERO,
        };
        component.recovers_at = now.plus(time_left.max(reported)).min(Timestamp::MAX);
        // The limit of the former plain key is not stored.
        (component.charged_by, component.is_far, component.had_recovered) = (Vec::new(), false, false);
        self.written = now;
    }

    pub(super) fn answer(
        &self,
        call: &CompositeRequest,
        found: &[Option<usize>],
        evaluations: &[Evaluation],
        outcome: &Outcome,
        now: Timestamp,
        changed: bool,
    ) -> Answer {
        // The call may have created or removed components.
        let found = if changed { self.find(call) } else { found.to_vec() };
        let mut each = Vec::new();
        for (n, (spec, evaluation)) in call.specs.iter().zip(evaluations).enumerate() {
            let usage = self.usage(spec, found[n]);
            let is_applied = changed && evaluation.change != Change::Nothing;
            let mut decision = with_limit!(spec, limit => decision(limit, &usage, now, evaluation, is_applied));
            decision.limit = spec.limit.limit().plus(spec.keep);
            match outcome {
                Outcome::Passes if call.purpose == Purpose::Refund => decision.verdict = Verdict::Allowed(Span::ZERO),
                Outcome::Settles | Outcome::Settled => decision.verdict = Verdict::Allowed(Span::ZERO),
                Outcome::Unknown => decision.verdict = Verdict::Never,
                // A limit in shadow mode reports its own decision.
                Outcome::Repeated(id, _) if spec.shadow => {
                    if let (Some(requested), true) = (upto(spec.request), decision.verdict.allowed()) {
                        decision.granted = Some(id.granted.unwrap_or(requested));
                    }
                }
                Outcome::LostLease => {
                    if !spec.shadow && !spec.is_held_by_id() {
                        decision.verdict = Verdict::Allowed(Span::ZERO);
                    }
                }
                Outcome::Repeated(id, hold) => {
                    // A repetition that forces some limits reports denials by these only.
                    let forces = |spec: &Spec| spec.request.is_forced();
                    let reports_denial = id.forced && (forces(spec) || !call.specs.iter().any(forces));
                    if !reports_denial || evaluation.verdict.allowed() {
                        decision.verdict = Verdict::Allowed(*hold);
                    }
                    if let Some(requested) = upto(spec.request) {
                        decision.granted = id.granted.or(decision.verdict.allowed().then_some(requested));
                    }
                }
                Outcome::Passes | Outcome::Denied { .. } | Outcome::Banned => {}
            }
            if upto(spec.request).is_some() {
                decision.granted = decision.granted.or(Some(Amount::ZERO));
            }
            each.push(decision);
        }
        let denies = |n: &usize| match outcome {
            Outcome::Denied { .. } | Outcome::Banned => !evaluations[*n].forced && !evaluations[*n].verdict.allowed(),
            _ => !each[*n].verdict.allowed(),
        };
        let cost = |n: usize| {
            let cost = match call.specs[n].request {
                Request::Take(cost)
                | Request::UpTo(cost)
                | Request::Force(cost)
                | Request::ForceUpTo(cost)
                | Request::Within(cost, _) => cost.millionths(),
                Request::Refund(_) | Request::PeekPastLimit => 0,
            };
            u128::from(if cost == 0 { Amount::ONE.millionths() } else { cost })
        };
        let enforced: Vec<usize> = (0..each.len()).filter(|n| !call.specs[*n].shadow).collect();
        let denying: Vec<usize> = enforced.iter().copied().filter(denies).collect();
        let (mut verdict, governing) = if let Some(longest) = denying.iter().map(|n| each[*n].verdict).max() {
            (longest, denying.iter().find(|n| each[**n].verdict == longest).copied())
        } else {
            let first = enforced.iter().copied().reduce(|first, n| {
                let remaining = |n: usize| u128::from(each[n].remaining.millionths());
                if remaining(n) * cost(first) < remaining(first) * cost(n) { n } else { first }
            });
            // If all limits are in shadow mode, the call is granted.
            let unlimited =
                if matches!(outcome, Outcome::Unknown) { Verdict::Never } else { Verdict::Allowed(Span::ZERO) };
            (enforced.iter().map(|n| each[*n].verdict).max().unwrap_or(unlimited), first)
        };
        let unlimited = (Amount::MAX_ARGUMENT, Amount::MAX_ARGUMENT, Span::ZERO);
        let (limit, mut remaining, reset) = governing.map_or(unlimited, |n| {
            let Decision { limit, remaining, reset, .. } = each[n];
            (limit, remaining, reset)
        });
        // Under a ban, nothing remains, and the wait is the longer of the ban's and the limits'.
        let forced = is_forced(call, evaluations);
        let reports_ban = match outcome {
            Outcome::Banned | Outcome::Denied { .. } => true,
            Outcome::Passes => forced && call.purpose != Purpose::Refund,
            _ => false,
        };
        let banned = self.banned_until.since(now.max(if changed { now } else { self.written }));
        if reports_ban && banned != Span::ZERO {
            remaining = Amount::ZERO;
            verdict = match verdict {
                Verdict::Allowed(_) => Verdict::After(banned),
                Verdict::After(wait) => Verdict::After(wait.max(banned)),
                Verdict::Never => Verdict::Never,
            };
        }
        // The charged amount is reported, even if the verdict is a denial because of another limit's FORCE.
        let granted = requested_upto(call).and_then(|requested| match outcome {
            Outcome::Passes => granted_by(call, evaluations),
            Outcome::Repeated(id, _) => id.granted.or(verdict.allowed().then_some(requested)).or(Some(Amount::ZERO)),
            _ => Some(Amount::ZERO),
        });
        let decision = Decision { verdict, limit, remaining, reset, granted };
        let (banned, repeated) = (matches!(outcome, Outcome::Banned), matches!(outcome, Outcome::Repeated(..)));
        Answer { decision, each: each.into_iter().collect(), shadow_denied: false, banned, repeated }
    }

    /// Releases the leases of a holder.
    pub fn release(&mut self, holder: &[u8], now: Timestamp) {
        self.move_back(now);
        if self.release_leases(holder, now) > 0 {
            self.sweep(now);
            self.finish(now);
        }
    }

    pub fn ban(&mut self, duration: Span, now: Timestamp, expires_at: Option<u64>) {
        if self.is_missing() {
            *self = Model::default();
        } else if self.is_plain {
            self.convert(expires_at, now);
        }
        self.move_back(now);
        self.sweep(now);
        if duration == Span::ZERO {
            (self.banned_until, self.strikes, self.levels) = Default::default();
        } else if now.plus(duration) > self.banned_until {
            self.end_ban(now.plus(duration), self.levels.len());
        }
        self.finish(now);
    }

    /// Releases the leases of a holder and returns their number.
    pub(super) fn release_leases(&mut self, holder: &[u8], now: Timestamp) -> usize {
        let Some(component) =
            self.components.iter_mut().find(|component| component.usage.kind() == UsageKind::Concurrency)
        else {
            return 0;
        };
        let leases = crate::algorithm::leases::ConcurrencyUsage::of_mut(&mut component.usage).unwrap();
        let released = leases.release(&[holder], now);
        if released > 0 {
            component.recovers_at = now.plus(leases.time_to_recovery(now)).min(Timestamp::MAX);
            leases.encode_effect(&mut Discard);
        }
        released
    }

    pub(super) fn move_back(&mut self, now: Timestamp) {
        if self.is_plain {
            let is_after = |component: &&mut Component| with_usage!(&component.usage, usage => usage.is_after(now));
            self.components.iter_mut().filter(is_after).for_each(|component| component.move_back(now));
            return;
        }
        let back = self.written.since(now);
        if back == Span::ZERO {
            return;
        }
        let Model { components, ids, .. } = self;
        for component in components {
            for (_, charge) in ids.values_mut().flat_map(|id| &mut id.charges).filter(|(n, _)| *n == component.number) {
                with_usage!(&component.usage, usage => if usage.is_after(now) { charge.move_back(usage, now); });
            }
            component.move_back(now);
        }
        for id in self.ids.values_mut() {
            (id.expires_at, id.hold_until) = (id.expires_at.minus(back), id.hold_until.minus(back));
        }
        self.banned_until = self.banned_until.minus(back);
        self.strikes.1.iter_mut().for_each(|strike| *strike = strike.minus(back));
        self.levels.iter_mut().for_each(|level| *level = level.minus(back));
        self.written = now;
    }

    /// Removes the state that has expired by `now`.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        let expired: Vec<Vec<u8>> =
            self.ids.iter().filter(|(_, id)| id.expires_at <= now).map(|(id, _)| id.clone()).collect();
        for id in expired {
            for (number, charge) in self.ids.remove(&id).unwrap().charges {
                let component = self.component(number);
                component.settlement.forget(&charge);
                component.unsettled_count -= 1;
            }
        }
        self.levels.retain(|level| *level > now);
        if self.banned_until <= now && self.levels.is_empty() {
            self.banned_until = Timestamp::EPOCH;
        }
        if self.strikes.1.first().is_some_and(|first| first.plus(self.strikes.0) <= now) {
            self.strikes = Default::default();
        }
    }
}

impl Model {
    /// Counts a strike, and bans the key if the rule's number of strikes is reached.
    pub(super) fn strike(&mut self, rule: BanRule, now: Timestamp) {
        let is_in_window = self.strikes.1.first().is_some_and(|first| now < first.plus(rule.window.span()));
        if !is_in_window {
            self.strikes.1.clear();
        }
        self.strikes.0 = rule.window.span();
        self.strikes.1.push(now);
        if self.strikes.1.len() >= usize::try_from(rule.strikes).unwrap() {
            let (mut level, mut length) = (self.levels.len(), rule.block.span());
            if let Some(longest) = rule.longest {
                // The ban is doubled once for each level that is left.
                for _ in 0..level {
                    length = length.plus(length).min(longest.span());
                }
                let is_shorter = |length: &Span| *length < longest.span();
                let doubled = std::iter::successors(Some(rule.block.span()), |length| Some(length.plus(*length)));
                level = (level + 1).min(doubled.take_while(is_shorter).count() + 1);
                self.longest = longest.span();
            }
            self.end_ban(now.plus(length), level);
            self.strikes = Default::default();
        }
    }

    /// Sets the end of the ban, and the levels that expire after it.
    pub(super) fn end_ban(&mut self, until: Timestamp, level: usize) {
        self.banned_until = until.min(Timestamp::MAX);
        let expiry = |number: usize| self.banned_until.plus(self.longest.times(u64::try_from(number).unwrap()));
        self.levels = (1..=level).map(expiry).collect();
    }
}
