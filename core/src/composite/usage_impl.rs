//! Implementation of `Usage` for a composite key: its encoding and its description.

use super::component_head::{TAGGED_CHANGE, component_kind, component_serial, kind_index};
use super::extras::ExtrasDelta;
use super::idempotency::{IdempotencyRecords, Settlement};
use super::{Component, ComponentChange, ComponentIdentity, CompositeUsage, Extras, MAX_COMPONENTS};
use crate::algorithm::any::{AnyUsage, with_usage};
use crate::algorithm::fixed_window::FixedWindow;
use crate::ban::Ban;
use crate::limit::sealed::Sealed;
use crate::limit::{Identity, InfoField, Usage};
use crate::number::{Span, Timestamp};
use crate::syntax::{MAX_SPEC_NAME, is_name};
use crate::usage_kind::UsageKind;
use crate::wire::codec::{Decoder, Encoder};

/// Tag of the encoded identity of a component that no limit has claimed.
const NOTHING: u64 = 0;
/// Tag of an encoded identity that is a window.
const WINDOW: u64 = 1;
/// Tag of an encoded identity that is a name.
const NAME: u64 = 2;

impl ComponentIdentity {
    /// Encodes the identity.
    pub(super) fn encode(&self, to: &mut impl Encoder) {
        match self {
            ComponentIdentity::Nothing => to.integer(NOTHING),
            ComponentIdentity::Window(window) => {
                to.integer(WINDOW);
                to.integer(window.micros);
                to.integer(u64::from(window.options));
            }
            ComponentIdentity::Name(name) => {
                to.integer(NAME);
                to.bytes(name);
            }
        }
    }

    /// Decodes an identity.
    pub(super) fn decode(from: &mut impl Decoder) -> Option<ComponentIdentity> {
        Some(match from.integer()? {
            NOTHING => ComponentIdentity::Nothing,
            WINDOW => ComponentIdentity::Window(Identity {
                micros: from.integer()?,
                options: u32::try_from(from.integer()?).ok()?,
            }),
            NAME => ComponentIdentity::Name(from.bytes(MAX_SPEC_NAME).filter(|name| is_name(name))?),
            _ => return None,
        })
    }
}

impl AnyUsage {
    fn decode(kind: UsageKind, from: &mut impl Decoder) -> Option<AnyUsage> {
        let mut decoded = AnyUsage::unused(kind)?;
        with_usage!(&mut decoded, mut usage => decode_into(usage, from))?;
        Some(decoded)
    }
}

fn decode_into<U: Usage>(usage: &mut U, from: &mut impl Decoder) -> Option<()> {
    let version = u32::try_from(from.integer()?).ok().filter(|version| (1..=U::VERSION).contains(version))?;
    *usage = if from.flag()? { U::decode(from, version)? } else { U::default() };
    Some(())
}

fn encode_usage<U: Usage>(usage: &U, to: &mut impl Encoder) {
    to.integer(u64::from(U::VERSION));
    // An unused component is stored while its charges may be settled.
    to.integer(u64::from(!usage.is_unused()));
    if !usage.is_unused() {
        usage.encode(to);
    }
}

impl CompositeUsage {
    /// Decodes a component and adds it. Adds its settlement, if it has one, to `settlements`.
    fn decode_component(&mut self, from: &mut impl Decoder, settlements: &mut Vec<(u8, Settlement)>) -> Option<()> {
        let serial = component_serial(from.integer()?)?;
        let identity = ComponentIdentity::decode(from)?;
        let usage = AnyUsage::decode(component_kind(from.integer()?)?, from)?;
        let recovers_at = Timestamp::from_micros(from.integer()?)?;
        if from.flag()? {
            settlements.push((serial, Settlement::decode(from)?));
        }
        self.push(Component::new(serial, usage, recovers_at));
        self.set_identity(self.components.len().checked_sub(1)?, identity);
        Some(())
    }

    fn encode_component(&self, component: &Component, to: &mut impl Encoder) {
        to.integer(u64::from(component.serial()));
        component.identity(self.extras()).encode(to);
        to.integer(kind_index(component.kind()));
        with_usage!(&component.usage, usage => encode_usage(usage, to));
        to.integer(component.recovers_at.micros());
        match self.extras() {
            Some(extras) => extras.records.encode_settlement(component.serial(), to),
            None => to.integer(0),
        }
    }

    /// Returns `true` if each component is valid, and no two share a serial number or an identity.
    fn is_sound(&self) -> bool {
        let collide = |one: &Component, other: &Component| {
            one.serial() == other.serial()
                || one.kind() == other.kind()
                    && (one.kind() == UsageKind::Concurrency
                        || one.identity(self.extras()) == other.identity(self.extras()))
        };
        let mut components = self.components.iter().enumerate();
        components.all(|(index, component)| {
            component.is_sound(self.extras(), self.written)
                && self.components.iter().take(index).all(|before| !collide(before, component))
        })
    }
}

impl Sealed for CompositeUsage {}

impl Usage for CompositeUsage {
    const KIND: UsageKind = UsageKind::Limits;
    const GROWS: bool = true;
    const PROPAGATES_CHANGES: bool = true;

    fn is_unused(&self) -> bool {
        self.components.is_empty() && self.extras().is_none_or(Extras::is_empty)
    }

    fn ahead(&self, now: Timestamp) -> Span {
        self.written.since(now)
    }

    fn move_back(&mut self, now: Timestamp) {
        let back = self.ahead(now);
        for component in &mut self.components {
            component.move_back(self.extras.as_deref_mut(), now);
        }
        let extras = self.extras_mut();
        extras.records.move_back(back);
        let mut ban = extras.ban();
        ban.move_back(back);
        // A ban that had ended may have become empty. Then `set_ban` drops it.
        extras.set_ban(ban);
        let delta = extras.delta();
        (delta.moved_back, delta.only_moved) = (back, true);
        self.written = now;
    }

    fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.written.micros());
        to.integer(u64::try_from(self.components.len()).unwrap_or(0));
        for component in &self.components {
            self.encode_component(component, to);
        }
        let extras = self.extras().filter(|extras| !extras.has_no_records_or_ban_state());
        to.integer(u64::from(extras.is_some()));
        if let Some(extras) = extras {
            extras.records.encode(to);
            extras.ban().encode(to);
        }
    }

    fn decode(from: &mut impl Decoder, _version: u32) -> Option<CompositeUsage> {
        let written = Timestamp::from_micros(from.integer()?)?;
        let mut usage = CompositeUsage { written, ..CompositeUsage::default() };
        let mut settlements = Vec::new();
        for _ in 0..usize::try_from(from.integer()?).ok().filter(|count| *count <= MAX_COMPONENTS)? {
            usage.decode_component(from, &mut settlements)?;
        }
        if from.flag()? {
            let records = IdempotencyRecords::decode(from, written, settlements)?;
            let ban = Ban::decode(from, written)?;
            if records.is_empty() && ban.is_empty() {
                return None;
            }
            let extras = usage.extras_mut();
            extras.records = records;
            extras.set_ban(ban);
        } else if !settlements.is_empty() {
            return None;
        }
        (usage.is_sound() && !usage.is_unused()).then_some(usage)
    }

    fn encode_effect(&mut self, to: &mut impl Encoder) {
        let ExtrasDelta { moved_back, only_moved, ban_changed, removed_components } =
            self.extras.as_mut().map_or_else(ExtrasDelta::default, |extras| extras.take_delta());
        to.integer(TAGGED_CHANGE);
        to.integer(self.written.micros());
        to.integer(moved_back.micros());
        to.integer(u64::from(!only_moved));
        if !only_moved {
            self.encode_full_effect(ban_changed, &removed_components, to);
        }
        if let Some(extras) = &mut self.extras {
            extras.records.close();
        }
        self.extras.take_if(|extras| extras.is_unneeded());
    }

    fn discard_effect(&mut self) {
        for component in &mut self.components {
            if component.change() != ComponentChange::Nothing {
                component.set_change(ComponentChange::Nothing);
                with_usage!(&mut component.usage, mut usage => usage.discard_effect());
            }
        }
        if let Some(extras) = &mut self.extras {
            extras.take_delta();
            extras.records.discard_effect();
            extras.records.close();
        }
        self.extras.take_if(|extras| extras.is_unneeded());
    }

    fn latest_token(&self) -> u64 {
        self.leases().map_or(0, Usage::latest_token)
    }

    fn accepts_change(&self, tag: u64, from: &mut impl Decoder, latest: Timestamp) -> bool {
        tag == TAGGED_CHANGE && self.accepts_until(from, latest).is_some()
    }

    fn apply_change(&mut self, _tag: u64, from: &mut impl Decoder) {
        if let Some(written) = from.integer().and_then(Timestamp::from_micros) {
            self.apply_change_at(written, from);
        }
    }

    fn entries(&self) -> usize {
        self.extras().map_or(0, |extras| extras.records.len())
    }

    fn heap_size(&self) -> usize {
        let own_size = size_of_val(&*self.components).saturating_add(self.extras().map_or(0, Extras::size));
        self.components.iter().map(Component::heap_size).fold(own_size, usize::saturating_add)
    }

    fn free_effort(&self) -> usize {
        let components =
            self.components.iter().map(|component| with_usage!(&component.usage, usage => usage.free_effort()));
        let ids = self.extras().map_or(0, |extras| extras.records.free_effort());
        components.fold(ids.saturating_add(1), usize::saturating_add)
    }

    fn describe(&self, now: Timestamp, _recovers_at: Option<Timestamp>) -> Vec<(&'static str, InfoField)> {
        let time = self.effective_time(now);
        let mut facts = vec![("written", InfoField::Instant(self.written))];
        if !self.components.is_empty() {
            let components = self.components.iter().map(|component| component.describe(self.extras(), now));
            facts.push(("parts", InfoField::Components(components.collect())));
        }
        if let Some(extras) = self.extras() {
            let (ids, ban) = (extras.records.len(), extras.ban());
            if ids > 0 {
                facts.push(("ids", InfoField::Count(u64::try_from(ids).unwrap_or(u64::MAX))));
            }
            if ban.until() > time {
                facts.push(("banned_until", InfoField::Instant(ban.until())));
            }
            let level = ban.level(time);
            if level > 0 {
                facts.push(("ban_level", InfoField::Count(u64::from(level))));
            }
            if let Some((strikes, since)) = ban.strikes(time) {
                facts.push(("strikes", InfoField::Count(u64::from(strikes))));
                facts.push(("first_strike", InfoField::Instant(since)));
            }
        }
        facts
    }
}

impl Component {
    fn describe(&self, extras: Option<&Extras>, now: Timestamp) -> Vec<(&'static str, InfoField)> {
        let mut facts = vec![("kind", InfoField::Word(self.kind().name()))];
        match self.identity(extras) {
            ComponentIdentity::Nothing => {}
            ComponentIdentity::Window(window) => facts.extend(describe_window(window)),
            ComponentIdentity::Name(name) => facts.push(("name", InfoField::Name(name))),
        }
        facts.push(("recovers_at", InfoField::Instant(self.recovers_at)));
        facts.extend(with_usage!(&self.usage, usage => usage.describe(now, Some(self.recovers_at))));
        facts
    }
}

/// Returns the fact for RL.INFO about the window of an identity; `None` if the identity has no window.
fn describe_window(identity: Identity) -> Option<(&'static str, InfoField)> {
    let length = (identity.micros != 0).then(|| InfoField::Span(Span::from_micros(identity.micros)));
    FixedWindow::aligned_words(identity).map(InfoField::Text).or(length).map(|window| ("window", window))
}
