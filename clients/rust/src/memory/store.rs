//! Keys of one process, and the replies to calls on them.

use std::collections::HashMap;

use ratelimit_core::algorithm::leases::Token;
use ratelimit_core::syntax::{
    Block, CompositeRequest, Idempotency, KeyRequest, ManyKeysRequest, Purpose, Spec, SpecOptions, holders,
};
use ratelimit_core::wire::args::Args;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Decision, Timestamp, Verdict};
use redis::Value;

use super::key::{Key, ParsedCall, Visit, needs_server};

/// Expired keys are removed when there are more keys than twice `keys_after_sweep` plus this number.
const SWEEP_MARGIN: usize = 1000;

#[derive(Default)]
pub(super) struct Store {
    keys: HashMap<Vec<u8>, Key>,
    /// Number of keys after the last removal of expired keys.
    keys_after_sweep: usize,
    /// Fencing token that was created last.
    last_token: u64,
}

impl Store {
    /// Returns the reply to a call, or an error text.
    pub(super) fn reply(&mut self, words: &[&[u8]], now: Timestamp) -> Result<Value, String> {
        let name = words.first().map(|word| String::from_utf8_lossy(word).to_ascii_uppercase()).unwrap_or_default();
        let mut args = Args::new(&words);
        match name.as_str() {
            "RL.TAKE" | "RL.PEEK" => self.reply_for_one_key(&mut args, name == "RL.PEEK", now),
            "RL.MTAKE" | "RL.MPEEK" => self.reply_for_several_keys(&mut args, name == "RL.MPEEK", now),
            "RL.ACQUIRE" => self.acquire(&mut args, now),
            "RL.RELEASE" => self.release(&mut args, now),
            "DEL" => {
                let key = words.get(1).copied().unwrap_or_default();
                let deleted = self.find(key, now).is_some();
                self.keys.remove(key);
                Ok(Value::Int(i64::from(deleted)))
            }
            "RL.BAN" => Err(needs_server("bans")),
            "RL.SKETCH" => Err(needs_server("sketches")),
            _ if name.starts_with("RL.POLICY") || name == "RL.LIMIT" || name == "RL.DELAY" => {
                Err(needs_server("policies"))
            }
            _ => Err(format!("ERR a limiter in memory does not know '{name}'")),
        }
    }

    fn find(&mut self, name: &[u8], now: Timestamp) -> Option<&Key> {
        if self.keys.get(name)?.has_expired(now) {
            self.keys.remove(name);
        }
        self.keys.get(name)
    }

    /// Evaluates a call on each of its keys, and charges all of them or none. Returns `true` if the call is allowed,
    /// and the outcome for each key.
    fn evaluate<'a>(
        &mut self,
        calls_by_key: Vec<(&'a [u8], ParsedCall<'a>)>,
        is_peek: bool,
        now: Timestamp,
    ) -> Result<(bool, Vec<KeyOutcome<'a>>), String> {
        let mut visits = Vec::with_capacity(calls_by_key.len());
        for (name, key_call) in calls_by_key {
            visits.push((name, Visit::new(self.find(name, now), key_call, now)?));
        }
        let allowed = is_allowed(visits.iter().map(|(_, visit)| visit));
        let outcomes = visits.into_iter().map(|(name, visit)| {
            let changes = !is_peek && visit.changes(allowed);
            let mut key = if is_peek { None } else { self.keys.remove(name) };
            let clock_moved_back = key.as_mut().is_some_and(|key| key.follow_clock(visit.request(), now));
            if changes {
                key = visit.commit(key, clock_moved_back, now);
            }
            if let Some(key) = key.filter(|key| !key.is_unused()) {
                self.keys.insert(name.to_vec(), key);
            }
            let answer = visit.answer(self.keys.get(name), now, changes);
            KeyOutcome { visit, decision: answer.decision, each: answer.each }
        });
        let outcomes = outcomes.collect();
        self.sweep(now);
        Ok((allowed, outcomes))
    }

    fn sweep(&mut self, now: Timestamp) {
        if self.keys.len() > 2 * self.keys_after_sweep + SWEEP_MARGIN {
            self.keys.retain(|_, key| !key.has_expired(now));
            self.keys_after_sweep = self.keys.len();
        }
    }

    fn reply_for_one_key(&mut self, args: &mut Args, is_peek: bool, now: Timestamp) -> Result<Value, String> {
        let key = args.key().map_err(error_text)?;
        let name = args.name(key);
        let request = if is_peek { KeyRequest::peek(args, None) } else { KeyRequest::take(args, None) };
        let call = ParsedCall::of(request.map_err(error_text)?, Purpose::Charge)?;
        let (_, outcomes) = self.evaluate(vec![(name, call)], is_peek, now)?;
        outcomes.first().map(KeyOutcome::reply).ok_or_else(|| error_text(Error::Internal))
    }

    fn reply_for_several_keys(&mut self, args: &mut Args, is_peek: bool, now: Timestamp) -> Result<Value, String> {
        let mut request = ManyKeysRequest::default();
        let parsed = if is_peek { request.peek(args, None) } else { request.take(args, None) };
        parsed.map_err(error_text)?;
        let ManyKeysRequest { keys, idempotency, purpose } = request;
        let mut call = Vec::with_capacity(keys.len());
        for (key, request) in keys {
            let mut key_call = ParsedCall::of(request, purpose)?;
            let is_named = key_call.request.specs.iter().any(|spec| spec.name.is_some());
            if idempotency != Idempotency::Every || is_named {
                key_call.created_kind = None;
            }
            key_call.request = CompositeRequest { idempotency, ..key_call.request };
            call.push((args.name(key), key_call));
        }
        let (allowed, outcomes) = self.evaluate(call, is_peek, now)?;
        let sets_wait = |outcome: &&KeyOutcome| match (allowed, purpose) {
            (true, _) => outcome.decision.verdict.allowed(),
            (false, Purpose::Settle) => true,
            (false, _) => outcome.visit.denies(),
        };
        let wait = outcomes.iter().filter(sets_wait).map(|outcome| outcome.decision.verdict).max();
        let rows = outcomes.iter().map(|outcome| Value::Array(row(&outcome.decision))).collect();
        Ok(Value::Array(vec![Value::Int(i64::from(allowed)), wait.map_or(Value::Int(0), wait_ms), Value::Array(rows)]))
    }

    fn acquire(&mut self, args: &mut Args, now: Timestamp) -> Result<Value, String> {
        let (key, mut options) = (args.key().map_err(error_text)?, SpecOptions::default());
        let name = args.name(key);
        let (parsed, acquire_options) = Spec::acquire(args, &mut options).map_err(error_text)?;
        if acquire_options.block != Block::No {
            return Err("ERR a limiter in memory does not wait: BLOCK needs a server".to_owned());
        }
        let mut call = ParsedCall::of(
            KeyRequest::build_single_with_options(args, &parsed, &options).map_err(error_text)?,
            Purpose::Charge,
        )?;
        if acquire_options.fence {
            self.last_token = now.micros().max(self.last_token.saturating_add(1));
            let fence = Token::new(self.last_token);
            call.request.specs.iter_mut().for_each(|spec| spec.fence = fence);
        }
        let holder = call.request.specs.first().map_or(&[][..], |spec| spec.holder_or_item);
        let (_, outcomes) = self.evaluate(vec![(name, call)], false, now)?;
        let mut integers = outcomes.first().map(|outcome| row(&outcome.decision)).unwrap_or_default();
        if acquire_options.fence {
            let token = self.keys.get(name).and_then(|key| key.token(holder, now)).map_or(0, Token::get);
            let allowed = outcomes.iter().all(|outcome| outcome.decision.verdict.allowed());
            integers.push(integer(if allowed { token } else { 0 }));
        }
        Ok(Value::Array(integers))
    }

    fn release(&mut self, args: &mut Args, now: Timestamp) -> Result<Value, String> {
        let key = args.key().map_err(error_text)?;
        let name = args.name(key);
        let holders = holders(args).map_err(error_text)?;
        let _ = self.find(name, now);
        let Some(key) = self.keys.get_mut(name) else { return Ok(Value::Int(0)) };
        let released = key.release(&holders, now)?;
        if key.is_unused() {
            self.keys.remove(name);
        }
        Ok(Value::Int(i64::try_from(released).unwrap_or(i64::MAX)))
    }
}

/// Outcome of a call at one key.
struct KeyOutcome<'a> {
    visit: Visit<'a>,
    decision: Decision,
    each: Vec<Decision>,
}

impl KeyOutcome<'_> {
    fn reply(&self) -> Value {
        let request = self.visit.request();
        if !request.each {
            return Value::Array(row(&self.decision));
        }
        let rows = self.each.iter().zip(&request.specs).map(|(decision, spec)| {
            let name = spec.name.map(|name| Value::BulkString(name.to_vec()));
            Value::Array(row(decision).into_iter().chain(name).collect())
        });
        let verdict = self.decision.verdict;
        Value::Array(vec![Value::Int(i64::from(verdict.allowed())), wait_ms(verdict), Value::Array(rows.collect())])
    }
}

/// Returns `true` if a call may be committed: a settlement if any key has recorded its id, a refund always, any other
/// call if no key denies it.
fn is_allowed<'v, 'a: 'v>(mut visits: impl Iterator<Item = &'v Visit<'a>> + Clone) -> bool {
    match visits.clone().next().map(|visit| visit.request().purpose) {
        Some(Purpose::Settle) => visits.any(Visit::has_record),
        Some(Purpose::Refund) => true,
        _ => !visits.any(Visit::denies),
    }
}

/// Encodes a decision: `allowed, limit, remaining, wait_ms, reset_ms`, and with UPTO the units granted.
fn row(decision: &Decision) -> Vec<Value> {
    let Decision { verdict, limit, remaining, reset, granted } = decision;
    let mut row = vec![
        Value::Int(i64::from(verdict.allowed())),
        integer(limit.whole_units()),
        integer(remaining.whole_units()),
        wait_ms(*verdict),
        integer(reset.ceil_millis()),
    ];
    row.extend(granted.map(|granted| integer(granted.whole_units())));
    row
}

fn wait_ms(verdict: Verdict) -> Value {
    match verdict {
        Verdict::Allowed(time) | Verdict::After(time) => integer(time.ceil_millis()),
        Verdict::Never => Value::Int(-1),
    }
}

fn integer(number: u64) -> Value {
    Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn error_text(error: Error) -> String {
    error.to_string()
}
