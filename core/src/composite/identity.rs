//! Identity of a component, and a short form of five bytes for common identities.

use crate::limit::Identity;
use crate::syntax::Spec;

/// Identity of a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ComponentIdentity {
    /// No identity yet: the usage of a former plain key.
    Nothing,
    /// Window, or other parameters that tell limits of one kind apart.
    Window(Identity),
    /// Name.
    Name(Box<[u8]>),
}

/// Identity of a component in five bytes, aligned to one byte, so that it fits beside the tag of a usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShortIdentity {
    /// No identity yet.
    Nothing,
    /// Window in whole seconds.
    Seconds([u8; 4]),
    /// Window in whole seconds that is aligned in UTC.
    AlignedSeconds([u8; 4]),
    /// Window of less than 2^32 microseconds (71 minutes) that is not a whole number of seconds.
    Micros([u8; 4]),
    /// [`Identity::options`] of a calendar window, or of a limit without a window.
    Options([u8; 4]),
    /// Any other identity, which the key stores by the serial number of the component.
    Long,
}

/// [`Identity::options`] of a window that is aligned in UTC.
const ALIGNED: u32 = 1;

const SECOND: u64 = 1_000_000;

impl ComponentIdentity {
    /// Returns the identity for the limit of a spec.
    pub(super) fn of(spec: &Spec) -> ComponentIdentity {
        spec.name.map_or_else(
            || ComponentIdentity::Window(spec.limit.identity()),
            |name| ComponentIdentity::Name(name.into()),
        )
    }

    /// Returns `true` if the identity is `name` or, without a name, `window`.
    pub(super) fn matches(&self, name: Option<&[u8]>, window: Identity) -> bool {
        match (self, name) {
            (ComponentIdentity::Name(stored), Some(name)) => **stored == *name,
            (ComponentIdentity::Window(stored), None) => *stored == window,
            _ => false,
        }
    }

    /// Returns the short form; [`ShortIdentity::Long`] if it does not fit.
    pub(super) fn short(&self) -> ShortIdentity {
        match self {
            ComponentIdentity::Nothing => ShortIdentity::Nothing,
            ComponentIdentity::Window(window) => ShortIdentity::of(*window),
            ComponentIdentity::Name(_) => ShortIdentity::Long,
        }
    }

    /// Returns the heap memory in bytes.
    pub(super) fn heap_size(&self) -> usize {
        if let ComponentIdentity::Name(name) = self { name.len() } else { 0 }
    }
}

impl ShortIdentity {
    /// Returns the short form of a window; [`ShortIdentity::Long`] if it does not fit.
    #[inline(always)]
    pub(super) fn of(Identity { micros, options }: Identity) -> ShortIdentity {
        let (seconds, rest) = (micros / SECOND, micros % SECOND);
        let fits = |number: u64| u32::try_from(number).ok().map(u32::to_le_bytes);
        match (rest, options) {
            (0, 0) if micros != 0 => fits(seconds).map_or(ShortIdentity::Long, ShortIdentity::Seconds),
            (0, ALIGNED) if micros != 0 => fits(seconds).map_or(ShortIdentity::Long, ShortIdentity::AlignedSeconds),
            (0, _) if micros == 0 => ShortIdentity::Options(options.to_le_bytes()),
            (_, 0) => fits(micros).map_or(ShortIdentity::Long, ShortIdentity::Micros),
            _ => ShortIdentity::Long,
        }
    }

    /// Returns `true` if this is the short form of `window`. Faster than a comparison with [`of`](ShortIdentity::of),
    /// which divides.
    #[inline(always)]
    pub(super) fn matches(self, Identity { micros, options }: Identity) -> bool {
        let number = |bytes| u64::from(u32::from_le_bytes(bytes));
        match self {
            ShortIdentity::Seconds(stored) => options == 0 && micros == number(stored).wrapping_mul(SECOND),
            ShortIdentity::AlignedSeconds(stored) => {
                options == ALIGNED && micros == number(stored).wrapping_mul(SECOND)
            }
            ShortIdentity::Micros(stored) => options == 0 && micros == number(stored),
            ShortIdentity::Options(stored) => micros == 0 && options == u32::from_le_bytes(stored),
            ShortIdentity::Nothing | ShortIdentity::Long => false,
        }
    }

    /// Returns the full identity; `None` for [`ShortIdentity::Long`].
    pub(super) fn full_identity(self) -> Option<ComponentIdentity> {
        let window = |micros, options| ComponentIdentity::Window(Identity { micros, options });
        let micros = |seconds| u64::from(u32::from_le_bytes(seconds)).saturating_mul(SECOND);
        Some(match self {
            ShortIdentity::Nothing => ComponentIdentity::Nothing,
            ShortIdentity::Seconds(seconds) => window(micros(seconds), 0),
            ShortIdentity::AlignedSeconds(seconds) => window(micros(seconds), ALIGNED),
            ShortIdentity::Micros(micros) => window(u32::from_le_bytes(micros).into(), 0),
            ShortIdentity::Options(options) => window(0, u32::from_le_bytes(options)),
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
        fn short_identity_round_trips(
            micros in prop_oneof![0..10_u64, 0..u64::MAX, (0..400_000_000_u64).prop_map(|seconds| seconds * SECOND)],
            options in prop_oneof![0..3_u32, any::<u32>()],
        ) {
            let window = Identity { micros, options };
            let short = ShortIdentity::of(window);
            let full = short.full_identity().unwrap_or(ComponentIdentity::Window(window));
            prop_assert_eq!(full, ComponentIdentity::Window(window));
            prop_assert_eq!(short.matches(window), short != ShortIdentity::Long);
            let others = [(micros ^ 1, options), (micros, options ^ 1), (micros.wrapping_add(SECOND), options), (options.into(), 0)];
            for (micros, options) in others {
                let other = Identity { micros, options };
                prop_assert!(other == window || !short.matches(other));
            }
        }
    }

    #[test]
    fn common_windows_have_a_short_identity() {
        let options = u32::from_le_bytes([2, 1, 0x10, 0]);
        for (micros, options) in
            [(60 * SECOND, 0), (3650 * 86400 * SECOND, 0), (60 * SECOND, 1), (1500, 0), (0, options)]
        {
            assert_ne!(ShortIdentity::of(Identity { micros, options }), ShortIdentity::Long);
        }
        assert_eq!(ShortIdentity::of(Identity { micros: 60 * SECOND, options }), ShortIdentity::Long);
        assert_eq!(size_of::<ShortIdentity>(), 5);
    }
}
