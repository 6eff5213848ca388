//! State of a key, and evaluation and charging of a call by the core, which the module on the server runs as well.

use ratelimit_core::algorithm::leases::{ConcurrencyUsage, Token};
use ratelimit_core::composite::{Answer, CompositeEvaluation, CompositeUsage, MAX_COMPONENTS, StoredUsage};
use ratelimit_core::expiry::{Expiry, StepBack};
use ratelimit_core::syntax::{CompositeRequest, KeyRequest, Purpose};
use ratelimit_core::wire::error::Error;
use ratelimit_core::{AnyUsage, PlainUsage, RecoverySource, Span, Timestamp, Usage, UsageKind, with_usage};

/// Value of a key, with its expiry.
pub(super) struct Key {
    stored: Stored,
    /// Expiry in milliseconds since 1970.
    expires_at: u64,
}

enum Stored {
    /// Usage of one limit alone.
    Plain(AnyUsage),
    /// Usage of several limits, or data such as idempotency keys, which only a composite key can store.
    Composite(CompositeUsage),
}

impl Stored {
    fn reset(&self, request: &CompositeRequest, now: Timestamp) -> Span {
        match self {
            Stored::Plain(any) => with_usage!(any, usage => request.reset_of_plain(usage, now)),
            Stored::Composite(usage) => usage.reset(now),
        }
    }

    fn ahead(&self, now: Timestamp) -> Span {
        match self {
            Stored::Plain(any) => with_usage!(any, usage => usage.ahead(now)),
            Stored::Composite(usage) => usage.ahead(now),
        }
    }

    fn move_back(&mut self, now: Timestamp) -> RecoverySource {
        match self {
            Stored::Plain(any) => with_usage!(any, mut usage => {
                usage.move_back(now);
                usage.recovery_source()
            }),
            Stored::Composite(usage) => {
                usage.move_back(now);
                usage.recovery_source()
            }
        }
    }

    fn is_unused(&self) -> bool {
        match self {
            Stored::Plain(any) => with_usage!(any, usage => usage.is_unused()),
            Stored::Composite(usage) => usage.is_unused(),
        }
    }

    /// Drops the recorded effect, because there are no replicas.
    fn discard_effect(&mut self) {
        match self {
            Stored::Plain(any) => with_usage!(any, mut usage => usage.discard_effect()),
            Stored::Composite(usage) => usage.discard_effect(),
        }
    }
}

impl Key {
    /// Returns `true` if the key has expired.
    pub(super) fn has_expired(&self, now: Timestamp) -> bool {
        now.floor_millis() > self.expires_at
    }

    /// Returns `true` if nothing is stored.
    pub(super) fn is_unused(&self) -> bool {
        self.stored.is_unused()
    }

    /// Moves all timestamps back if the clock moved back to `now`. Returns `true` if the clock moved back.
    pub(super) fn follow_clock(&mut self, request: &CompositeRequest, now: Timestamp) -> bool {
        let moved_back = self.stored.ahead(now);
        if moved_back == Span::ZERO {
            return false;
        }
        let previous_now = now.plus(moved_back);
        let range_before = Expiry::of(previous_now, self.stored.reset(request, previous_now));
        let recovery = self.stored.move_back(now);
        let range_after = Expiry::of(now, self.stored.reset(request, now));
        self.stored.discard_effect();
        let step = StepBack { now, moved_back, recovery, range_before, range_after };
        self.expires_at = step.expiry(Some(self.expires_at));
        true
    }

    /// Releases the leases of these holders. Returns the number of leases that were held.
    pub(super) fn release(&mut self, holders: &[&[u8]], now: Timestamp) -> Result<usize, String> {
        if self.stored.ahead(now) != Span::ZERO {
            self.stored.move_back(now);
            self.stored.discard_effect();
        }
        let (released, reset) = match &mut self.stored {
            Stored::Composite(usage) => (usage.release(holders, now), usage.reset(now)),
            Stored::Plain(any) => {
                let kind = any.kind();
                let leases = ConcurrencyUsage::of_mut(any).ok_or_else(|| wrong_type(kind, UsageKind::Concurrency))?;
                (leases.release(holders, now), leases.time_to_recovery(now))
            }
        };
        if released > 0 {
            self.stored.discard_effect();
            self.expires_at = Expiry::of(now, reset).after_charge(Some(self.expires_at), false);
        }
        Ok(released)
    }

    /// Returns the fencing token of a holder's lease.
    pub(super) fn token(&self, holder: &[u8], now: Timestamp) -> Option<Token> {
        match &self.stored {
            Stored::Plain(any) => ConcurrencyUsage::of(any)?.lease_token(holder, now),
            Stored::Composite(usage) => usage.leases()?.lease_token(holder, now),
        }
    }
}

/// Call at a key, evaluated.
pub(super) struct Visit<'a> {
    request: CompositeRequest<'a>,
    evaluation: CompositeEvaluation,
    /// Type of the plain key that the call creates if the key is missing. `None`: a composite key.
    created_kind: Option<UsageKind>,
}

impl<'a> Visit<'a> {
    /// Evaluates a call at a key, which may be missing.
    pub(super) fn new(key: Option<&Key>, call: ParsedCall<'a>, now: Timestamp) -> Result<Self, String> {
        let ParsedCall { request, created_kind } = call;
        if let (Some(Key { stored: Stored::Plain(any), .. }), [spec]) = (key, request.specs.as_slice())
            && any.kind() != spec.limit.kind()
        {
            return Err(wrong_type(any.kind(), spec.limit.kind()));
        }
        let (evaluation, has_room) = with_stored_usage(key, created_kind, |stored| {
            let evaluation = CompositeEvaluation::at(&request, stored, now);
            let has_room = !evaluation.has_too_many_components(stored, now);
            (evaluation, has_room)
        });
        if evaluation.allows() && !has_room {
            return Err(Error::TooManyComponents { max: MAX_COMPONENTS }.to_string());
        }
        Ok(Self { request, evaluation, created_kind })
    }

    pub(super) fn request(&self) -> &CompositeRequest<'a> {
        &self.request
    }

    pub(super) fn denies(&self) -> bool {
        self.evaluation.denies()
    }

    pub(super) fn has_record(&self) -> bool {
        self.evaluation.has_record()
    }

    /// Returns `true` if committing changes the key. `allowed` is `true` if all keys of the call allow it.
    pub(super) fn changes(&self, allowed: bool) -> bool {
        (allowed || self.request.purpose == Purpose::Settle) && self.evaluation.changes()
    }

    /// Returns the decision, with the current state of the key.
    pub(super) fn answer(&self, key: Option<&Key>, now: Timestamp, charged: bool) -> Answer {
        with_stored_usage(key, self.created_kind, |stored| self.evaluation.answer(&self.request, stored, now, charged))
    }

    /// Applies the changes and returns the new value, or `None` if the key becomes unused. No timestamp in the key may
    /// be later than `now`.
    pub(super) fn commit(&self, key: Option<Key>, clock_moved_back: bool, now: Timestamp) -> Option<Key> {
        let (request, evaluation) = (&self.request, &self.evaluation);
        let previous_expiry = key.as_ref().map(|key| key.expires_at);
        let stored = match key {
            Some(key) => key.stored,
            None => match self.created_kind.and_then(AnyUsage::unused) {
                Some(unused) => Stored::Plain(unused),
                None => Stored::Composite(CompositeUsage::default()),
            },
        };
        let mut stored = match stored {
            Stored::Plain(mut any) if evaluation.stays_plain(request) => {
                with_usage!(&mut any, mut usage => evaluation.charge_plain(request, usage, now));
                Stored::Plain(any)
            }
            Stored::Plain(mut any) => {
                let change = |usage: &mut CompositeUsage| usage.charge(request, evaluation, now);
                let (usage, ()) = with_usage!(&mut any, mut plain => {
                    CompositeUsage::convert(plain, previous_expiry, now, change)
                });
                Stored::Composite(usage)
            }
            Stored::Composite(mut usage) => {
                usage.charge(request, evaluation, now);
                Stored::Composite(usage)
            }
        };
        stored.discard_effect();
        let reset = stored.reset(request, now);
        let expires_at = Expiry::of(now, reset).after_charge(previous_expiry, clock_moved_back);
        (!stored.is_unused()).then_some(Key { stored, expires_at })
    }
}

/// Parsed call on one key.
pub(super) struct ParsedCall<'a> {
    pub(super) request: CompositeRequest<'a>,
    /// Type of the plain key that the call creates if the key is missing. `None`: a composite key.
    pub(super) created_kind: Option<UsageKind>,
}

impl<'a> ParsedCall<'a> {
    /// Parses a request. `call_purpose` is the purpose of a call on several keys.
    pub(super) fn of(request: KeyRequest<'a>, call_purpose: Purpose) -> Result<Self, String> {
        let call = match request {
            KeyRequest::One(spec) => {
                let request = CompositeRequest::of_one(spec);
                let purpose = if call_purpose == Purpose::Charge { request.purpose } else { call_purpose };
                Self { created_kind: Some(spec.limit.kind()), request: CompositeRequest { purpose, ..request } }
            }
            KeyRequest::Composite(request) => Self { request: *request, created_kind: None },
            KeyRequest::Policy(_) => return Err(needs_server("policies")),
        };
        if call.request.ban.is_some() {
            return Err(needs_server("bans"));
        }
        if call.request.specs.iter().any(|spec| spec.limit.kind().stands_alone()) {
            return Err(needs_server("sketches"));
        }
        Ok(call)
    }
}

/// Calls `evaluate` with the value of a key, or with an unused value if the key is missing.
fn with_stored_usage<T>(
    key: Option<&Key>,
    created_kind: Option<UsageKind>,
    evaluate: impl FnOnce(StoredUsage) -> T,
) -> T {
    match (key.map(|key| &key.stored), created_kind) {
        (Some(Stored::Plain(any)), _) => with_usage!(any, usage => evaluate(StoredUsage::plain(usage))),
        (Some(Stored::Composite(usage)), _) => evaluate(StoredUsage::Composite(usage)),
        (None, Some(kind)) => evaluate(StoredUsage::missing(kind)),
        (None, None) => evaluate(StoredUsage::Composite(&CompositeUsage::default())),
    }
}

pub(super) fn needs_server(what: &str) -> String {
    format!("ERR a limiter in memory has no {what}: they need a server with the module")
}

fn wrong_type(holds: UsageKind, needs: UsageKind) -> String {
    Error::WrongType { holds: holds.name(), needs: needs.name() }.to_string()
}
