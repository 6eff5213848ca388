//! What a component is known by, and how most of it fits into five bytes.

use crate::limit::Identity;
use crate::syntax::Spec;

/// What a component is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ComponentIdentity {
    /// Nothing yet: a plain key's usage.
    Nothing,
    /// Its window, or the like.
    Window(Identity),
    /// Its name.
    Name(Box<[u8]>),
}

/// What identifies a component, in five bytes, aligned to one, so that it fits beside the tag of a usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShortIdentity {
    /// Nothing yet.
    Nothing,
    /// A window of whole seconds.
    Seconds([u8; 4]),
    /// A window of whole seconds whose bounds are multiples of it in UTC.
    AlignedSeconds([u8; 4]),
    /// A window of less than 72 minutes that is no number of seconds.
    Micros([u8; 4]),
    /// A window of a calendar, as a number.
    Words([u8; 4]),
    /// Anything else, which the key keeps apart by the component's serial number.
    Long,
}

/// What [`Identity::words`] are of a window whose bounds are multiples of it in UTC.
const ALIGNED: u32 = 1;

const SECOND: u64 = 1_000_000;

impl ComponentIdentity {
    /// What the limit of a spec is known by.
    pub(super) fn of(spec: &Spec) -> ComponentIdentity {
        spec.name.map_or_else(
            || ComponentIdentity::Window(spec.limit.identity()),
            |name| ComponentIdentity::Name(name.into()),
        )
    }

    /// Whether it is that name, or without one that window.
    pub(super) fn is(&self, name: Option<&[u8]>, window: Identity) -> bool {
        match (self, name) {
            (ComponentIdentity::Name(own), Some(name)) => **own == *name,
            (ComponentIdentity::Window(own), None) => *own == window,
            _ => false,
        }
    }

    /// It in short; [`ShortIdentity::Long`] if it does not fit.
    pub(super) fn short(&self) -> ShortIdentity {
        match self {
            ComponentIdentity::Nothing => ShortIdentity::Nothing,
            ComponentIdentity::Window(window) => ShortIdentity::of(*window),
            ComponentIdentity::Name(_) => ShortIdentity::Long,
        }
    }

    /// How many bytes it holds beside itself.
    pub(super) fn heap_size(&self) -> usize {
        if let ComponentIdentity::Name(name) = self { name.len() } else { 0 }
    }
}

impl ShortIdentity {
    /// A window in short; [`ShortIdentity::Long`] if it does not fit.
    #[inline(always)]
    pub(super) fn of(Identity { micros, words }: Identity) -> ShortIdentity {
        let (seconds, rest) = (micros / SECOND, micros % SECOND);
        let fits = |number: u64| u32::try_from(number).ok().map(u32::to_le_bytes);
        match (rest, words) {
            (0, 0) if micros != 0 => fits(seconds).map_or(ShortIdentity::Long, ShortIdentity::Seconds),
            (0, ALIGNED) if micros != 0 => fits(seconds).map_or(ShortIdentity::Long, ShortIdentity::AlignedSeconds),
            (0, _) if micros == 0 => ShortIdentity::Words(words.to_le_bytes()),
            (_, 0) => fits(micros).map_or(ShortIdentity::Long, ShortIdentity::Micros),
            _ => ShortIdentity::Long,
        }
    }

    /// Whether it is short for that window. It multiplies where [`of`](ShortIdentity::of) divides.
    #[inline(always)]
    pub(super) fn is(self, Identity { micros, words }: Identity) -> bool {
        let number = |bytes| u64::from(u32::from_le_bytes(bytes));
        match self {
            ShortIdentity::Seconds(own) => words == 0 && micros == number(own).wrapping_mul(SECOND),
            ShortIdentity::AlignedSeconds(own) => words == ALIGNED && micros == number(own).wrapping_mul(SECOND),
            ShortIdentity::Micros(own) => words == 0 && micros == number(own),
            ShortIdentity::Words(own) => micros == 0 && words == u32::from_le_bytes(own),
            ShortIdentity::Nothing | ShortIdentity::Long => false,
        }
    }

    /// What it is short for; `None` of [`ShortIdentity::Long`], which does not say.
    pub(super) fn whole(self) -> Option<ComponentIdentity> {
        let window = |micros, words| ComponentIdentity::Window(Identity { micros, words });
        let micros = |seconds| u64::from(u32::from_le_bytes(seconds)).saturating_mul(SECOND);
        Some(match self {
            ShortIdentity::Nothing => ComponentIdentity::Nothing,
            ShortIdentity::Seconds(seconds) => window(micros(seconds), 0),
            ShortIdentity::AlignedSeconds(seconds) => window(micros(seconds), ALIGNED),
            ShortIdentity::Micros(micros) => window(u32::from_le_bytes(micros).into(), 0),
            ShortIdentity::Words(words) => window(0, u32::from_le_bytes(words)),
            ShortIdentity::Long => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_short_says_what_it_is_short_for(
            micros in prop_oneof![0..10_u64, 0..u64::MAX, (0..400_000_000_u64).prop_map(|n| n * SECOND)],
            words in prop_oneof![0..3_u32, any::<u32>()],
        ) {
            let window = Identity { micros, words };
            let short = ShortIdentity::of(window);
            let whole = short.whole().unwrap_or(ComponentIdentity::Window(window));
            prop_assert_eq!(whole, ComponentIdentity::Window(window));
            prop_assert_eq!(short.is(window), short != ShortIdentity::Long);
            let others = [(micros ^ 1, words), (micros, words ^ 1), (micros.wrapping_add(SECOND), words), (words.into(), 0)];
            for (micros, words) in others {
                let other = Identity { micros, words };
                prop_assert!(other == window || !short.is(other));
            }
        }
    }

    #[test]
    fn the_windows_of_every_day_are_short() {
        let words = u32::from_le_bytes([2, 1, 0x10, 0]);
        for (micros, words) in [(60 * SECOND, 0), (3650 * 86400 * SECOND, 0), (60 * SECOND, 1), (1500, 0), (0, words)] {
            assert_ne!(ShortIdentity::of(Identity { micros, words }), ShortIdentity::Long);
        }
        assert_eq!(ShortIdentity::of(Identity { micros: 60 * SECOND, words }), ShortIdentity::Long);
        assert_eq!(size_of::<ShortIdentity>(), 5);
    }
}
