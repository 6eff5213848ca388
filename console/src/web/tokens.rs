//! Tokens of the console, which are reloaded at SIGHUP, and the delay of responses to rejected tokens.

use super::uncounted;
use arc_swap::ArcSwap;
use ratelimit_link::file_stamp::FileStamp;
use ratelimit_link::reload::{self, Reloadable};
use ratelimit_link::secrets::Secret;
use sha2::{Digest, Sha256};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

/// Variable of the token for reading.
pub const LOOK: &str = "RATELIMIT_CONSOLE_TOKEN";
/// Variable of the token for changes.
pub const CHANGE: &str = "RATELIMIT_CONSOLE_WRITE_TOKEN";
/// Minimum length of a token, in bytes.
const MIN_LENGTH: usize = 16;
/// Delay of the response to a rejected token.
const DELAY: Duration = Duration::from_secs(1);
/// Maximum number of responses that are delayed concurrently. Others are delayed one after another.
const MAX_DELAYED: usize = 64;
/// Minimum time between two log lines about rejected tokens.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Permission of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Read.
    Look,
    /// Read, and change limits.
    Change,
}

impl Role {
    /// Returns the name of the role for the page and the log.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Role::Look => "look",
            Role::Change => "change",
        }
    }
}

/// Tokens and their sources.
pub struct Tokens {
    look: Option<Secret>,
    change: Option<Secret>,
    hashes: ArcSwap<Hashes>,
}

/// Hash of a token. Hashes are compared in constant time.
type Hash = [u8; 32];

#[derive(Default)]
struct Hashes {
    look: Option<Hash>,
    change: Option<Hash>,
}

impl Tokens {
    /// Reads both tokens from their variables, or from the files that those name.
    ///
    /// # Errors
    /// As for [`Secret::find`] and [`Tokens::new`].
    pub fn find() -> Result<Tokens, String> {
        Tokens::new(Secret::find(LOOK)?, Secret::find(CHANGE)?)
    }

    /// Reads only the token for reading.
    ///
    /// # Errors
    /// As for [`Tokens::find`].
    pub fn find_look() -> Result<Tokens, String> {
        Tokens::new(Secret::find(LOOK)?, None)
    }

    /// Creates tokens from their secrets.
    ///
    /// # Errors
    /// If one cannot be read, is too short, or cannot be sent as a header, or if both are the same. The error names the
    /// setting.
    pub fn new(look: Option<Secret>, change: Option<Secret>) -> Result<Tokens, String> {
        let tokens = Tokens { look, change, hashes: ArcSwap::default() };
        tokens.read()?;
        Ok(tokens)
    }

    /// Returns `true` if a token is required for reading.
    #[must_use]
    pub fn are_needed(&self) -> bool {
        self.look.is_some()
    }

    /// Returns `true` if no token allows changes.
    #[must_use]
    pub fn are_read_only(&self) -> bool {
        self.change.is_none()
    }

    /// Returns the role of a token, or `None` if it is unknown.
    #[must_use]
    pub fn role(&self, token: &[u8]) -> Option<Role> {
        let hashes = self.hashes.load();
        let given: Hash = Sha256::digest(token).into();
        let is = |hash: Option<Hash>| hash.is_some_and(|hash| bool::from(hash.ct_eq(&given)));
        // Always compared with both, so that the time does not depend on the token.
        match (is(hashes.change), is(hashes.look)) {
            _ if token.is_empty() => None,
            (true, _) => Some(Role::Change),
            (_, true) => Some(Role::Look),
            _ => None,
        }
    }

    /// Reloads tokens of files when the files change, and at SIGHUP.
    ///
    /// # Errors
    /// If a token is invalid now.
    pub fn watch(tokens: &Arc<Tokens>) -> Result<(), String> {
        if tokens.files().next().is_some() {
            reload::load_and_watch(Arc::<Tokens>::clone(tokens), uncounted)
        } else {
            Ok(())
        }
    }

    fn files(&self) -> impl Iterator<Item = &Path> {
        [&self.look, &self.change].into_iter().flatten().filter_map(Secret::file)
    }
}

impl Reloadable for Tokens {
    fn name(&self) -> &'static str {
        "the console's tokens"
    }

    fn stamp(&self) -> FileStamp {
        FileStamp::read(self.files().map(Path::to_owned))
    }

    fn read(&self) -> Result<(), String> {
        let load =
            |token: &Option<Secret>, name| token.as_ref().map(|token| validated(token.read()?, name)).transpose();
        let (look, change) = (load(&self.look, LOOK)?, load(&self.change, CHANGE)?);
        if look.is_some() && look == change {
            return Err(format!("{CHANGE} must be another token than {LOOK}"));
        }
        let hash = |token: String| Hash::from(Sha256::digest(token));
        self.hashes.store(Arc::new(Hashes { look: look.map(hash), change: change.map(hash) }));
        Ok(())
    }
}

fn validated(token: String, name: &str) -> Result<String, String> {
    if token.len() < MIN_LENGTH {
        return Err(format!("{name} must have at least {MIN_LENGTH} bytes, such as those of `openssl rand -hex 16`"));
    }
    // A header cannot contain other bytes, or loses spaces at its ends.
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("{name} must consist of ASCII letters, digits and punctuation"));
    }
    Ok(token)
}

/// Delay and log of rejected tokens.
pub struct Refusals {
    permits: Semaphore,
    log: Mutex<RefusalLog>,
}

impl Default for Refusals {
    fn default() -> Refusals {
        Refusals { permits: Semaphore::new(MAX_DELAYED), log: Mutex::default() }
    }
}

impl Refusals {
    /// Logs a rejected token and delays its response. Requests with a valid token are not delayed.
    pub async fn delay(&self, peer: IpAddr) {
        let refused = self.log.lock().unwrap_or_else(PoisonError::into_inner).count(Instant::now());
        if let Some(refused) = refused {
            tracing::warn!(%peer, refused, "the console refused a token");
        }
        // Never fails: the semaphore is never closed.
        let _permit = self.permits.acquire().await;
        sleep(DELAY).await;
    }
}

/// Rejected tokens that have not been logged yet.
#[derive(Default)]
struct RefusalLog {
    refused: u64,
    last: Option<Instant>,
}

impl RefusalLog {
    /// Counts a rejected token. Returns the number since the last log line if another line is due.
    fn count(&mut self, now: Instant) -> Option<u64> {
        self.refused += 1;
        if self.last.is_some_and(|last| now.duration_since(last) < LOG_INTERVAL) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.refused))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        CHANGE, DELAY, LOG_INTERVAL, LOOK, MAX_DELAYED, RefusalLog, Refusals, Reloadable, Role, Secret, Tokens,
    };
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;
    use tokio::time::Instant;

    const READS: &str = "reads-0123456789";
    const WRITES: &str = "writes-0123456789";

    fn tokens(look: Option<&str>, change: Option<&str>) -> Result<Tokens, String> {
        let secret = |text: &str| Secret::from(text.to_owned());
        Tokens::new(look.map(secret), change.map(secret))
    }

    #[test]
    fn role_is_that_of_the_token() {
        let tokens = tokens(Some(READS), Some(WRITES)).expect("valid tokens");
        let roles =
            [READS, WRITES, "", "reads-012345678", "reads-01234567890"].map(|text| tokens.role(text.as_bytes()));
        assert_eq!(roles, [Some(Role::Look), Some(Role::Change), None, None, None]);
    }

    #[test]
    fn error_names_the_setting_of_an_invalid_token() {
        for wrong in ["", "123456789012345", "1234567890 123456", "1234567890123456 ", "ab\u{e9}4567890123456"] {
            assert!(
                tokens(Some(wrong), None).is_err_and(|error| error.starts_with(&format!("{LOOK} must"))),
                "{wrong}"
            );
            assert!(
                tokens(None, Some(wrong)).is_err_and(|error| error.starts_with(&format!("{CHANGE} must"))),
                "{wrong}"
            );
        }
        assert!(tokens(Some(READS), Some(READS)).is_err_and(|error| error.starts_with(CHANGE)));
        assert!(tokens(None, None).is_ok_and(|tokens| tokens.are_read_only() && !tokens.are_needed()));
    }

    #[test]
    fn invalid_file_keeps_the_last_token() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        std::fs::write(&file, format!("{WRITES}\n")).expect("written");
        let tokens =
            Tokens::new(None, Some(Secret::from_file(CHANGE, file.clone()).expect("a secret"))).expect("valid tokens");
        for wrong in ["\n", "short\n"] {
            std::fs::write(&file, wrong).expect("written");
            assert!(tokens.read().is_err());
            assert_eq!(tokens.role(WRITES.as_bytes()), Some(Role::Change));
        }
        std::fs::write(&file, format!("{READS}\n")).expect("written");
        tokens.read().expect("valid tokens");
        assert_eq!([READS, WRITES].map(|token| tokens.role(token.as_bytes())), [Some(Role::Change), None]);
    }

    #[tokio::test(start_paused = true)]
    async fn responses_to_rejected_tokens_are_delayed() {
        let (refusals, peer) = (Refusals::default(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        let started = Instant::now();
        refusals.delay(peer).await;
        assert_eq!(started.elapsed(), DELAY);
        futures_util::future::join_all((0..=MAX_DELAYED).map(|_| refusals.delay(peer))).await;
        assert_eq!(started.elapsed(), DELAY * 3);
    }

    #[tokio::test(start_paused = true)]
    async fn log_has_at_most_one_line_a_second() {
        let (mut log, started) = (RefusalLog::default(), Instant::now());
        let lines: Vec<u64> =
            (0..30).filter_map(|step| log.count(started + Duration::from_millis(100) * step)).collect();
        assert_eq!(lines, [1, 10, 10]);
        assert_eq!(log.count(started + LOG_INTERVAL * 60), Some(10));
    }
}
