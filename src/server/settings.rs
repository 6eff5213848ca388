//! Settings `ratelimit.*`: module arguments on every server, and CONFIG on servers that support it for modules.

use ratelimit_core::UsageKind;
use ratelimit_core::algorithm::count_min::SketchSize;
use ratelimit_core::wire::args::whole;
use ratelimit_core::wire::error::{Error, Expected, MustBe, Needed, Reason, Syntax};
use std::ffi::CStr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

const ON: i64 = 1;
const OFF: i64 = 0;

/// Setting whose value is an integer.
pub struct Setting {
    /// Name without the prefix `ratelimit.`.
    pub name: &'static CStr,
    /// Range of valid values.
    pub range: RangeInclusive<i64>,
    /// `true` if the value is `yes` or `no` (`ON` or `OFF`).
    pub is_switch: bool,
    /// `true` if the setting can be set only when the module is loaded.
    pub is_load_only: bool,
    /// Callback for a new value if the setting is a size in bytes, which may be written with a unit; otherwise `None`.
    pub set_size: Option<fn(SketchSize)>,
    /// Description of valid values, for error messages.
    pub must_be: MustBe,
    value: AtomicI64,
}

impl Setting {
    /// Returns the value.
    pub fn get(&self) -> i64 {
        self.value.load(Relaxed)
    }

    /// Sets the value, which must be in range.
    pub fn set(&self, value: i64) {
        self.value.store(value, Relaxed);
        let size = u64::try_from(value).ok().and_then(SketchSize::new);
        if let (Some(set_size), Some(size)) = (self.set_size, size) {
            set_size(size);
        }
    }

    const fn number(name: &'static CStr, range: RangeInclusive<i64>, default: i64, must_be: MustBe) -> Setting {
        let value = AtomicI64::new(default);
        Setting { name, range, is_switch: false, is_load_only: false, set_size: None, must_be, value }
    }

    const fn count(name: &'static CStr, default: i64, default_text: &'static str) -> Setting {
        let must_be = MustBe::number("a whole number", " from 1 to 10000000", default_text);
        Setting::number(name, 1..=10_000_000, default, must_be)
    }

    const fn switch(name: &'static CStr, default: i64) -> Setting {
        let must_be = MustBe::other("yes or no", "no");
        Setting { is_switch: true, ..Setting::number(name, OFF..=ON, default, must_be) }
    }

    const fn load_only(self) -> Setting {
        Setting { is_load_only: true, ..self }
    }

    fn parse(&self, text: &[u8]) -> Option<i64> {
        let value = if self.is_switch {
            match text.to_ascii_lowercase().as_slice() {
                b"yes" => ON,
                b"no" => OFF,
                _ => return None,
            }
        } else if self.set_size.is_some() {
            i64::try_from(SketchSize::parse(text)?.bytes()).ok()?
        } else {
            i64::try_from(whole(text, u64::MAX)?).ok()?
        };
        self.range.contains(&value).then_some(value)
    }

    fn name_str(&self) -> &'static str {
        self.name.to_str().unwrap_or_default()
    }
}

/// Maximum number of log entries per key.
pub static MAX_LOG_ENTRIES: Setting = Setting::count(c"max-log-entries", 100_000, "100000");

/// Maximum number of leases per key.
pub static MAX_LEASES: Setting = Setting::count(c"max-leases", 100_000, "100000");

/// Maximum number of idempotency keys per key.
pub static MAX_IDS: Setting = Setting::count(c"max-ids", 100_000, "100000");

/// Maximum number of waiters per key.
pub static MAX_BLOCKED: Setting = Setting::count(c"max-blocked", 10_000, "10000");

/// Switch that registers CL.THROTTLE and converts keys of redis-cell.
pub static CELL_COMPAT: Setting = Setting::switch(c"cell-compat", OFF).load_only();

/// Maximum number of policies.
pub static MAX_POLICIES: Setting =
    Setting::number(c"max-policies", 1..=65_536, 4096, MustBe::number("a whole number", " from 1 to 65536", "4096"));

/// Switch that enables policies on Redis before 7.2; other servers always have them. On a server that needs the switch,
/// every snapshot then contains data of this module, even if there is no policy.
pub static POLICIES: Setting = Setting::switch(c"policies", OFF).load_only();

/// Switch of the exchange of policies between the primaries of a cluster.
pub static POLICY_GOSSIP: Setting = Setting::switch(c"policy-gossip", ON);

/// Switch of the keyspace event `rl.denied` for keys that deny a call.
pub static DENIAL_EVENTS: Setting = Setting::switch(c"denial-events", OFF);

/// Maximum number of keys that RL.TOP tracks; 0 turns it off.
pub static TOP_KEYS: Setting =
    Setting::number(c"top-keys", 0..=65_536, 1024, MustBe::number("a whole number", " from 0 to 65536", "1024"));

/// Total size in bytes of the cells of a sketch that a call without SIZE creates.
pub static SKETCH_SIZE: Setting = Setting {
    set_size: Some(SketchSize::set_as_default),
    ..Setting::number(
        c"sketch-size",
        65_536..=268_435_456,
        1_048_576,
        MustBe::other("a size from 64kb to 256mb", "1mb"),
    )
};

/// All settings.
pub static ALL: [&Setting; 11] = [
    &MAX_LOG_ENTRIES,
    &MAX_LEASES,
    &MAX_IDS,
    &MAX_BLOCKED,
    &CELL_COMPAT,
    &MAX_POLICIES,
    &POLICIES,
    &POLICY_GOSSIP,
    &DENIAL_EVENTS,
    &TOP_KEYS,
    &SKETCH_SIZE,
];

/// Returns an error if a key with this number of waiters has no room for another.
pub fn check_blocked(waiters: usize) -> Result<(), Error> {
    let max = usize::try_from(MAX_BLOCKED.get()).unwrap_or(usize::MAX);
    let setting = MAX_BLOCKED.name_str();
    if waiters < max { Ok(()) } else { Err(Error::TooManyEntries { max, setting }) }
}

/// Returns the maximum number of entries of a key of this kind, and the name of the setting.
pub fn max_entries(kind: UsageKind) -> Option<(usize, &'static str)> {
    let setting = match kind {
        UsageKind::SlidingLog => &MAX_LOG_ENTRIES,
        UsageKind::Concurrency => &MAX_LEASES,
        UsageKind::Limits => &MAX_IDS,
        _ => return None,
    };
    Some((usize::try_from(setting.get()).unwrap_or(usize::MAX), setting.name_str()))
}

const PREFIX: &[u8] = b"ratelimit.";
const ARGUMENTS_SYNTAX: Syntax = Syntax { word: "name value", arguments: "[name value ...]" };

/// Reads the module's arguments: `name value` pairs, the name in any case, with or without the prefix `ratelimit.`.
pub fn read_arguments(arguments: &[&[u8]]) -> Result<(), Error> {
    for pair in arguments.chunks(2) {
        let [name, rest @ ..] = pair else { continue };
        let bare_name = match name.split_at_checked(PREFIX.len()) {
            Some((prefix, bare_name)) if prefix.eq_ignore_ascii_case(PREFIX) => bare_name,
            _ => name,
        };
        let setting = ALL
            .into_iter()
            .find(|setting| bare_name.eq_ignore_ascii_case(setting.name_str().as_bytes()))
            .ok_or_else(|| {
                let names = ALL.map(Setting::name_str).to_vec();
                Error::unexpected(
                    name,
                    Reason::Needed(Needed::instead_of(bare_name, Expected::Setting, names, Vec::new())),
                )
            })?;
        let word = rest.first().ok_or(Error::Missing { argument: setting.name_str(), syntax: &ARGUMENTS_SYNTAX })?;
        setting
            .set(setting.parse(word).ok_or_else(|| Error::out_of_range(setting.name_str(), &setting.must_be, word))?);
    }
    Ok(())
}
