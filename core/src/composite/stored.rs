//! A key with several limits as a usage: what is stored of it, and what is propagated of a call.

use super::{Changed, Component, ComponentIdentity, CompositeDelta, CompositeUsage, Extras, MAX_COMPONENTS, forget};
use crate::algorithm::any::{AnyUsage, Single, with_usage};
use crate::algorithm::bucket::BucketUsage;
use crate::algorithm::fixed_window::FixedWindow;
use crate::ban::Ban;
use crate::composite::idempotency::{Charge, IdempotencyChange, IdempotencyTable, Settlement};
use crate::effect::Discard;
use crate::kind::Kind;
use crate::limit::{Identity, InfoField, Usage};
use crate::number::{Span, Timestamp};
use crate::syntax::{MAX_NAME, is_name};
use crate::wire::codec::{CHANGE, Decoder, Encoder, WHOLE};

/// What a component is known by, as it is stored.
const NOTHING: u64 = 0;
const WINDOW: u64 = 1;
const NAME: u64 = 2;

/// The most components that one call can change.
const MOST_CHANGED: u64 = 8;

/// [`MAX_COMPONENTS`], as it is read.
const MOST_COMPONENTS: u64 = 16;

/// How many components there can be at once, while a call goes on: those that there were, and those that it makes.
const MOST_SERIALS: u32 = 24;

impl ComponentIdentity {
    fn encode(&self, to: &mut impl Encoder) {
        match self {
            ComponentIdentity::Nothing => to.integer(NOTHING),
            ComponentIdentity::Window(known) => {
                to.integer(WINDOW);
                to.integer(known.micros);
                to.integer(u64::from(known.words));
            }
            ComponentIdentity::Name(name) => {
                to.integer(NAME);
                to.bytes(name);
            }
        }
    }

    fn decode(from: &mut impl Decoder) -> Option<ComponentIdentity> {
        Some(match from.integer()? {
            NOTHING => ComponentIdentity::Nothing,
            WINDOW => ComponentIdentity::Window(Identity {
                micros: from.integer()?,
                words: u32::try_from(from.integer()?).ok()?,
            }),
            NAME => ComponentIdentity::Name(from.bytes(MAX_NAME).filter(|name| is_name(name))?),
            _ => return None,
        })
    }
}

/// The number of a kind in what is stored: its place among the kinds, which never changes.
fn encode_kind(kind: Kind, to: &mut impl Encoder) {
    to.integer(u64::try_from(kind.index()).unwrap_or(u64::MAX));
}

fn decode_kind(from: &mut impl Decoder) -> Option<Kind> {
    let index = usize::try_from(from.integer()?).ok()?;
    Kind::ALL.get(index).copied().filter(|kind| *kind != Kind::Limits)
}

impl AnyUsage {
    fn decode(kind: Kind, from: &mut impl Decoder) -> Option<AnyUsage> {
        let mut any = AnyUsage::unused(kind)?;
        with_usage!(&mut any, mut usage => decode_into(usage, from))?;
        Some(any)
    }
}

fn decode_into<U: Usage>(usage: &mut U, from: &mut impl Decoder) -> Option<()> {
    let version = u32::try_from(from.integer()?).ok().filter(|version| (1..=U::VERSION).contains(version))?;
    *usage = match from.integer()? {
        0 => U::default(),
        1 => U::decode(from, version)?,
        _ => return None,
    };
    Some(())
}

fn encode_usage<U: Usage>(usage: &U, to: &mut impl Encoder) {
    to.integer(u64::from(U::VERSION));
    // One that nothing is used of may have to stay, for charges that may be settled.
    to.integer(u64::from(!usage.is_unused()));
    if !usage.is_unused() {
        usage.encode(to);
    }
}

impl Component {
    fn encode(&self, to: &mut impl Encoder) {
        to.integer(u64::from(self.serial));
        self.identity.encode(to);
        encode_kind(self.usage.kind(), to);
        with_usage!(&self.usage, usage => encode_usage(usage, to));
        to.integer(self.recovers_at.micros());
        // One that is idle is as good as none.
        let settlement = self.settlement.as_ref().filter(|settlement| !settlement.is_idle());
        to.integer(u64::from(settlement.is_some()));
        if let Some(settlement) = settlement {
            settlement.encode(to);
        }
    }

    fn decode(from: &mut impl Decoder) -> Option<Component> {
        let serial = u32::try_from(from.integer()?).ok()?;
        let identity = ComponentIdentity::decode(from)?;
        let usage = AnyUsage::decode(decode_kind(from)?, from)?;
        let recovers_at = Timestamp::from_micros(from.integer()?)?;
        let settlement = if decode_flag(from)? { Some(Box::new(Settlement::decode(from)?)) } else { None };
        Some(Component { serial, identity, usage, recovers_at, settlement })
    }
}

impl CompositeUsage {
    /// Whether no two components could be found by one limit, and every charge that may be settled is in the track of
    /// its component.
    fn is_sound(&mut self) -> bool {
        let alike = |one: &Component, other: &Component| {
            one.serial == other.serial
                || one.usage.kind() == other.usage.kind()
                    && (one.identity == other.identity || one.usage.kind() == Kind::Concurrency)
        };
        let mut components = self.components.iter().enumerate();
        let differ = components
            .all(|(place, component)| self.components.iter().take(place).all(|before| !alike(before, component)));
        let components = &mut self.components;
        let counted = self.extras.iter().flat_map(|extras| extras.ids.charges()).all(|charge| {
            let component = components.iter_mut().find(|component| component.serial == charge.component);
            component
                .and_then(|component| component.settlement.as_mut())
                .is_some_and(|settlement| settlement.count(charge))
        });
        // Now it is known which may be settled.
        let stay = self.components.iter().all(|component| component.is_sound(self.written));
        let tracks = self.components.iter().filter_map(|component| component.settlement.as_ref());
        let sound = tracks.into_iter().all(|settlement| settlement.is_sound() && !settlement.is_idle());
        differ && stay && counted && sound
    }
}

/// What the effect of a call on a component says before what its usage reads.
struct ComponentHead {
    serial: u32,
    kind: Kind,
    /// What it is known by from now on, if that is new.
    identity: Option<ComponentIdentity>,
    recovers_at: Timestamp,
    /// The version of its usage's encoding.
    version: u32,
    /// Whether anything is used; if not, nothing of the usage follows.
    used: bool,
}

impl ComponentHead {
    /// Whether the component has not recovered yet.
    fn stays(&self, now: Timestamp) -> bool {
        self.used && now < self.recovers_at
    }

    /// Of a component that the call has left nothing of.
    fn encode_gone(serial: u32, kind: Kind, to: &mut impl Encoder) {
        to.integer(u64::from(serial));
        encode_kind(kind, to);
        // Known by what it was, recovered, in any version, not used, with no track.
        for field in [0, 0, 1, 0, 0] {
            to.integer(field);
        }
    }

    fn decode(from: &mut impl Decoder) -> Option<ComponentHead> {
        Some(ComponentHead {
            serial: u32::try_from(from.integer()?).ok()?,
            kind: decode_kind(from)?,
            identity: if decode_flag(from)? { Some(ComponentIdentity::decode(from)?) } else { None },
            recovers_at: Timestamp::from_micros(from.integer()?)?,
            version: u32::try_from(from.integer()?).ok()?,
            used: decode_flag(from)?,
        })
    }
}

fn decode_flag(from: &mut impl Decoder) -> Option<bool> {
    match from.integer()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// Of a call at `now`.
fn accepts_usage<U: Usage>(usage: &U, from: &mut impl Decoder, head: &ComponentHead, now: Timestamp) -> bool {
    (1..=U::VERSION).contains(&head.version) && (!head.used || usage.accepts_effect_until(from, head.version, now))
}

/// `None` if it cannot be read.
fn accepts_track(settlement: Option<&Settlement>, from: &mut impl Decoder, settled: Option<&Charge>) -> Option<bool> {
    let unused = Settlement::default();
    Some(!decode_flag(from)? || settlement.unwrap_or(&unused).accepts_effect(from, settled))
}

fn apply_usage<U: Usage>(usage: &mut U, from: &mut impl Decoder, head: &ComponentHead) {
    if head.used {
        usage.apply_effect(from, head.version);
    } else {
        *usage = U::default();
    }
}

impl CompositeUsage {
    /// Whether what follows is a change that some call on this can have made.
    fn accepts_change(&self, from: &mut impl Decoder, latest: Timestamp) -> Option<()> {
        let written = Timestamp::from_micros(from.integer()?).filter(|written| *written <= latest)?;
        let moved_back = Span::from_micros(from.integer()?);
        if moved_back != Span::ZERO {
            if written.plus(moved_back) != self.written {
                return None;
            }
            // Rare, and a copy is what shows where all would be.
            let mut moved = self.clone();
            moved.move_back(written);
            return moved.accepts_rest(from, written);
        }
        if written < self.written { None } else { self.accepts_rest(from, written) }
    }

    /// Whether what follows is a change that some call can have made of a plain key, which was `plain`, as it converted
    /// it to this at `now`.
    pub(super) fn accepts_conversion_at<U: Single>(
        &self,
        now: Timestamp,
        plain: Option<&U>,
        from: &mut impl Decoder,
    ) -> Option<()> {
        // With the clock all of it has moved before, and no call converts a key to change nothing.
        let moved_back = Span::from_micros(from.integer()?);
        let changes = moved_back == Span::ZERO && decode_flag(from)?;
        if changes { self.accepts_begun(from, now, plain) } else { None }
    }

    fn accepts_rest(&self, from: &mut impl Decoder, written: Timestamp) -> Option<()> {
        if decode_flag(from)? { self.accepts_begun(from, written, None::<&BucketUsage>) } else { Some(()) }
    }

    /// Whether what follows is a change that some call can have made, of which more is told than that the clock has
    /// gone back. If `plain` is there, it has what the first component remembers.
    fn accepts_begun<U: Single>(&self, from: &mut impl Decoder, written: Timestamp, plain: Option<&U>) -> Option<()> {
        let id_change = IdempotencyChange::decode(from, written)?;
        let no_ids = IdempotencyTable::default();
        let ids = self.extras.as_ref().map_or(&no_ids, |extras| &extras.ids);
        if !ids.accepts(&id_change, written, Span::ZERO) {
            return None;
        }
        let settled = match &id_change {
            IdempotencyChange::Settled(id) => ids.find(id, written)?.charges,
            IdempotencyChange::Nothing | IdempotencyChange::RecordedCall(..) => &[],
        };
        let mut changed: Vec<ComponentHead> = Vec::new();
        for _ in 0..from.integer().filter(|components| *components <= MOST_CHANGED)? {
            let head = ComponentHead::decode(from)?;
            let charge = settled.iter().find(|charge| charge.component == head.serial);
            let accepted = match self.component(head.serial) {
                Some(component) if component.usage.kind() == head.kind => {
                    (head.identity.is_none() || component.identity == ComponentIdentity::Nothing)
                        && match plain {
                            Some(plain) => accepts_usage(plain, from, &head, written),
                            None => with_usage!(&component.usage, usage => accepts_usage(usage, from, &head, written)),
                        }
                        && accepts_track(component.settlement.as_deref(), from, charge)?
                }
                None if self.is_free(head.serial) && head.identity.is_some() => {
                    let unused = AnyUsage::unused(head.kind)?;
                    with_usage!(&unused, usage => accepts_usage(usage, from, &head, written))
                        && accepts_track(None, from, None)?
                }
                _ => false,
            };
            if !accepted || !self.is_first(&head, &changed) {
                return None;
            }
            changed.push(head);
        }
        let new = changed.iter().filter(|head| self.component(head.serial).is_none()).count();
        let stays = |_, component: &Component| {
            changed.iter().any(|head| head.serial == component.serial && head.stays(written))
        };
        if new > 0 && self.components_with(new, stays, written) > MAX_COMPONENTS {
            return None;
        }
        if let IdempotencyChange::RecordedCall(_, call) = &id_change {
            let is_charged = |component: u32| {
                changed.iter().any(|head| head.serial == component && head.kind != Kind::Concurrency && head.used)
            };
            call.charges.iter().all(|(component, _)| is_charged(*component)).then_some(())?;
        }
        if decode_flag(from)? { Ban::decode(from, written).map(|_| ()) } else { Some(()) }
    }

    /// Whether its serial number is one that a new component can get. It need not be the smallest that is free here: of
    /// components that the call has made and that have gone at once, nothing is told.
    fn is_free(&self, serial: u32) -> bool {
        self.component(serial).is_none() && serial < MOST_SERIALS
    }

    /// Whether no other component, and none that the effect has named before, is known by the same.
    fn is_first(&self, head: &ComponentHead, before: &[ComponentHead]) -> bool {
        let alike = |kind: Kind, identity: &ComponentIdentity| {
            let own = head.identity.as_ref();
            own.is_some_and(|own| kind == head.kind && (own == identity || kind == Kind::Concurrency))
        };
        let others = self.components.iter().filter(|component| component.serial != head.serial);
        others.into_iter().all(|component| !alike(component.usage.kind(), &component.identity))
            && before.iter().all(|other| {
                other.serial != head.serial
                    && other.identity.as_ref().is_none_or(|identity| !alike(other.kind, identity))
            })
    }

    /// Makes a change that was accepted.
    fn change(&mut self, from: &mut impl Decoder) -> Option<()> {
        let written = Timestamp::from_micros(from.integer()?)?;
        self.change_at(written, from)
    }

    /// Makes the change of an effect that was written at `written`, from its flags on; `None` if it is cut short.
    pub(super) fn change_at(&mut self, written: Timestamp, from: &mut impl Decoder) -> Option<()> {
        if from.integer()? != 0 {
            self.move_back(written);
        }
        if !decode_flag(from)? {
            self.encode_effect(&mut Discard);
            return Some(());
        }
        let id_change = IdempotencyChange::decode(from, written)?;
        let coming = if let IdempotencyChange::RecordedCall(id, _) = &id_change { Some(&**id) } else { None };
        self.begin(written, coming);
        let settled = match &id_change {
            IdempotencyChange::Settled(id) => self.extras.as_mut().and_then(|extras| extras.ids.settle(id, written)),
            IdempotencyChange::Nothing | IdempotencyChange::RecordedCall(..) => None,
        };
        let settled = settled.unwrap_or_default();
        let mut tracked = Vec::new();
        for _ in 0..from.integer()? {
            self.change_component(from, &settled, &mut tracked)?;
        }
        // Of some charges nothing was settled, or nothing is left.
        for charge in settled.iter().filter(|charge| !tracked.contains(&charge.component)) {
            forget(&mut self.components, charge);
        }
        if let IdempotencyChange::RecordedCall(id, call) = id_change {
            let mut charges = Vec::with_capacity(call.charges.len());
            for (serial, cost) in call.charges.iter().copied() {
                let component = self.component_mut(serial)?;
                let settlement = component.settlement.get_or_insert_default();
                charges.extend(with_usage!(&component.usage, usage => settlement.charge(usage, serial, cost)));
            }
            self.extras.get_or_insert_default().ids.remember(&id, call.with(charges.into()));
        }
        if decode_flag(from)? {
            self.extras.get_or_insert_default().ban = Ban::decode(from, written)?;
        }
        self.end(written);
        // Nothing of it is to be propagated.
        self.encode_effect(&mut Discard);
        Some(())
    }

    /// A component is `tracked` if its track changes, too.
    fn change_component(&mut self, from: &mut impl Decoder, settled: &[Charge], tracked: &mut Vec<u32>) -> Option<()> {
        let mut head = ComponentHead::decode(from)?;
        if self.component(head.serial).is_none() {
            let serial = head.serial;
            let usage = AnyUsage::unused(head.kind)?;
            let component = Component {
                serial,
                identity: ComponentIdentity::Nothing,
                usage,
                recovers_at: Timestamp::EPOCH,
                settlement: None,
            };
            self.push(component);
        }
        let component = self.component_mut(head.serial)?;
        if let Some(identity) = head.identity.take() {
            component.identity = identity;
        }
        component.recovers_at = head.recovers_at;
        with_usage!(&mut component.usage, mut usage => apply_usage(usage, from, &head));
        if decode_flag(from)? {
            tracked.push(head.serial);
            let charge = settled.iter().find(|charge| charge.component == head.serial);
            component.settlement.get_or_insert_default().apply_effect(from, charge);
        }
        Some(())
    }
}

fn encode_effect_of<U: Usage>(usage: &mut U, to: &mut impl Encoder) {
    to.integer(u64::from(U::VERSION));
    to.integer(u64::from(!usage.is_unused()));
    if usage.is_unused() {
        usage.encode_effect(&mut Discard);
    } else {
        usage.encode_effect(to);
    }
}

impl Usage for CompositeUsage {
    const KIND: Kind = Kind::Limits;
    const GROWS: bool = true;

    fn is_unused(&self) -> bool {
        self.components.is_empty() && self.extras.is_none()
    }

    fn ahead(&self, now: Timestamp) -> Span {
        self.written.since(now)
    }

    fn move_back(&mut self, now: Timestamp) {
        let back = self.ahead(now);
        for component in &mut self.components {
            component.move_back(self.extras.as_mut().map(|extras| &mut extras.ids), now);
        }
        if let Some(extras) = &mut self.extras {
            extras.ids.move_back(back);
            extras.ban.move_back(back);
        }
        // Of a ban that was over, nothing may be left before the epoch.
        self.extras.take_if(|extras| extras.is_empty());
        self.written = now;
        self.delta.moved_back = back;
    }

    fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.written.micros());
        to.integer(u64::try_from(self.components.len()).unwrap_or(0));
        for component in &self.components {
            component.encode(to);
        }
        to.integer(u64::from(self.extras.is_some()));
        if let Some(extras) = &self.extras {
            extras.ids.encode(to);
            extras.ban.encode(to);
        }
    }

    fn decode(from: &mut impl Decoder, _version: u32) -> Option<CompositeUsage> {
        let written = Timestamp::from_micros(from.integer()?)?;
        let mut usage = CompositeUsage { written, ..CompositeUsage::default() };
        for _ in 0..from.integer().filter(|components| *components <= MOST_COMPONENTS)? {
            usage.push(Component::decode(from)?);
        }
        usage.extras = match from.integer()? {
            0 => None,
            1 => {
                let extras = Extras { ids: IdempotencyTable::decode(from, written)?, ban: Ban::decode(from, written)? };
                Some(Box::new(extras)).filter(|extras| !extras.is_empty())?.into()
            }
            _ => return None,
        };
        (usage.is_sound() && !usage.is_unused()).then_some(usage)
    }

    fn encode_effect(&mut self, to: &mut impl Encoder) {
        let CompositeDelta { moved_back, begun, changed, ban } = std::mem::take(&mut self.delta);
        to.integer(CHANGE);
        to.integer(self.written.micros());
        to.integer(moved_back.micros());
        to.integer(u64::from(begun));
        if !begun {
            return;
        }
        match &mut self.extras {
            Some(extras) => extras.ids.encode_effect(to),
            None => IdempotencyTable::encode_no_effect(to),
        }
        let of_others = |change: &&Changed| !change.is_new || self.component(change.serial).is_some();
        to.integer(u64::try_from(changed.iter().filter(of_others).count()).unwrap_or(0));
        for Changed { serial, kind, is_new, named } in changed {
            let Some(component) = self.component_mut(serial) else {
                if !is_new {
                    ComponentHead::encode_gone(serial, kind, to);
                }
                continue;
            };
            to.integer(u64::from(serial));
            encode_kind(kind, to);
            to.integer(u64::from(named));
            if named {
                component.identity.encode(to);
            }
            to.integer(component.recovers_at.micros());
            with_usage!(&mut component.usage, mut usage => encode_effect_of(usage, to));
            to.integer(u64::from(component.settlement.is_some()));
            if let Some(settlement) = &mut component.settlement {
                settlement.encode_effect(to);
            }
        }
        to.integer(u64::from(ban));
        if ban {
            self.extras.as_ref().map_or(Ban::default(), |extras| extras.ban).encode(to);
        }
    }

    fn encode_whole_effect(&self, to: &mut impl Encoder) {
        to.integer(WHOLE);
        self.encode(to);
    }

    fn accepts_effect_until(&self, from: &mut impl Decoder, version: u32, latest: Timestamp) -> bool {
        match from.integer() {
            Some(WHOLE) => CompositeUsage::decode(from, version).is_some_and(|usage| !usage.is_after(latest)),
            Some(CHANGE) => self.accepts_change(from, latest).is_some(),
            _ => false,
        }
    }

    fn apply_effect(&mut self, from: &mut impl Decoder, version: u32) {
        match from.integer() {
            Some(WHOLE) => *self = CompositeUsage::decode(from, version).unwrap_or_default(),
            _ => {
                self.change(from);
            }
        }
    }

    fn entries(&self) -> usize {
        self.extras.as_ref().map_or(0, |extras| extras.ids.len())
    }

    fn heap_size(&self) -> usize {
        let components = self.components.capacity().saturating_mul(size_of::<Component>());
        let of_components = self.components.iter().map(Component::heap_size).fold(0, usize::saturating_add);
        let extras =
            self.extras.as_ref().map_or(0, |extras| extras.ids.heap_size().saturating_add(size_of::<Extras>()));
        components.saturating_add(of_components).saturating_add(extras)
    }

    fn effort(&self) -> usize {
        let of_components =
            self.components.iter().map(|component| with_usage!(&component.usage, usage => usage.effort()));
        let ids = self.extras.as_ref().map_or(0, |extras| extras.ids.len());
        of_components.fold(ids.saturating_add(1), usize::saturating_add)
    }

    fn describe(&self, now: Timestamp) -> Vec<(&'static str, InfoField)> {
        // As of when it was written, if the clock has gone back.
        let at = now.max(self.written);
        let mut facts = vec![("written", InfoField::Instant(self.written))];
        if !self.components.is_empty() {
            facts.push((
                "parts",
                InfoField::Components(self.components.iter().map(|component| component.describe(now)).collect()),
            ));
        }
        if let Some(extras) = &self.extras {
            if !extras.ids.is_empty() {
                facts.push(("ids", InfoField::Count(u64::try_from(extras.ids.len()).unwrap_or(u64::MAX))));
            }
            if extras.ban.until() > at {
                facts.push(("banned_until", InfoField::Instant(extras.ban.until())));
            }
            if let Some((strikes, since)) = extras.ban.strikes(at) {
                facts.push(("strikes", InfoField::Count(u64::from(strikes))));
                facts.push(("first_strike", InfoField::Instant(since)));
            }
        }
        facts
    }
}

impl Component {
    fn heap_size(&self) -> usize {
        let name = if let ComponentIdentity::Name(name) = &self.identity { name.len() } else { 0 };
        let extras = with_usage!(&self.usage, usage => usage.heap_size());
        let settlement = self
            .settlement
            .as_ref()
            .map_or(0, |settlement| settlement.heap_size().saturating_add(size_of::<Settlement>()));
        [name, self.usage.boxed_size(), extras, settlement].into_iter().fold(0, usize::saturating_add)
    }

    fn describe(&self, now: Timestamp) -> Vec<(&'static str, InfoField)> {
        let mut facts = vec![("kind", InfoField::Word(self.usage.kind().name()))];
        match &self.identity {
            ComponentIdentity::Nothing => {}
            ComponentIdentity::Window(known) => facts.extend(describe_window(*known)),
            ComponentIdentity::Name(name) => facts.push(("name", InfoField::Name(name.clone()))),
        }
        facts.push(("recovers_at", InfoField::Instant(self.recovers_at)));
        facts.extend(with_usage!(&self.usage, usage => usage.describe(now)));
        facts
    }
}

/// What a window is known by, in the words of a call.
fn describe_window(known: Identity) -> Option<(&'static str, InfoField)> {
    let length = (known.micros != 0).then(|| InfoField::Span(Span::from_micros(known.micros)));
    FixedWindow::words_of(known).map(InfoField::Text).or(length).map(|window| ("window", window))
}
