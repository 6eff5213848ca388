//! Tokens of the console, which are reloaded at SIGHUP, and the delay of responses to rejected tokens.

use super::ignore_reload_result;
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

/// Variable of the tokens for reading: `token` or `name:token`, separated by commas or line breaks.
pub const LOOK_VARIABLE: &str = "RATELIMIT_CONSOLE_TOKEN";
/// Variable of the tokens for changes.
pub const CHANGE_VARIABLE: &str = "RATELIMIT_CONSOLE_WRITE_TOKEN";
/// Maximum length of the name of a token, in bytes.
const MAX_NAME: usize = 64;
/// Minimum length of a token, in bytes.
const MIN_LENGTH: usize = 16;
/// Delay of the response to a rejected token.
const DELAY: Duration = Duration::from_secs(1);
/// Maximum number of responses that are delayed concurrently. Further responses wait until one of them is sent.
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

/// Holder of a token: its permission, and the name that the setting gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Permission of the token.
    pub role: Role,
    /// Name of the token, for the audit log and the page.
    pub name: Option<Arc<str>>,
}

/// Tokens and their sources.
pub struct Tokens {
    look: Option<Secret>,
    change: Option<Secret>,
    known: ArcSwap<Vec<KnownToken>>,
}

/// Hash of a token. Hashes are compared in constant time.
type Hash = [u8; 32];

/// Token that the console accepts.
struct KnownToken {
    hash: Hash,
    user: User,
}

impl Tokens {
    /// Reads the tokens of both roles from their variables, or from the files that the variables with `_FILE` name.
    ///
    /// # Errors
    /// Returns the errors of [`Secret::find`] and [`Tokens::new`].
    pub fn find() -> Result<Tokens, String> {
        Tokens::new(Secret::find(LOOK_VARIABLE)?, Secret::find(CHANGE_VARIABLE)?)
    }

    /// Reads only the tokens for reading.
    ///
    /// # Errors
    /// Returns the errors of [`Tokens::find`].
    pub fn find_for_reading() -> Result<Tokens, String> {
        Tokens::new(Secret::find(LOOK_VARIABLE)?, None)
    }

    /// Creates tokens from their secrets.
    ///
    /// # Errors
    /// If a token cannot be read, is too short, or cannot be sent as a header, or if two are the same. The error names
    /// the variable.
    pub fn new(look: Option<Secret>, change: Option<Secret>) -> Result<Tokens, String> {
        let tokens = Tokens { look, change, known: ArcSwap::default() };
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

    /// Returns the user of a token, or `None` if it is unknown.
    #[must_use]
    pub fn user(&self, token: &[u8]) -> Option<User> {
        let known = self.known.load();
        let hash: Hash = Sha256::digest(token).into();
        // The token is always compared with all known ones, so that the time does not depend on it.
        let is_equal = |known: &KnownToken| bool::from(known.hash.ct_eq(&hash));
        let found = known.iter().fold(None, |found, known| if is_equal(known) { Some(known) } else { found });
        found.map(|known| known.user.clone())
    }

    /// Reloads tokens of files when the files change, and at SIGHUP.
    ///
    /// # Errors
    /// If a token is invalid now.
    pub fn watch(tokens: &Arc<Tokens>) -> Result<(), String> {
        if tokens.files().next().is_some() {
            reload::load_and_watch(Arc::<Tokens>::clone(tokens), ignore_reload_result)
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
        let mut known: Vec<KnownToken> = vec![];
        for (secret, setting, role) in
            [(&self.look, LOOK_VARIABLE, Role::Look), (&self.change, CHANGE_VARIABLE, Role::Change)]
        {
            let Some(secret) = secret else { continue };
            for entry in secret.read()?.split([',', '\n']) {
                let (name, token) = parse(entry.strip_suffix('\r').unwrap_or(entry), setting)?;
                let hash = Hash::from(Sha256::digest(token));
                if known.iter().any(|known| known.hash == hash) {
                    return Err(format!("{setting} must not repeat a token of {LOOK_VARIABLE} or {CHANGE_VARIABLE}"));
                }
                known.push(KnownToken { hash, user: User { role, name: name.map(Arc::from) } });
            }
        }
        self.known.store(Arc::new(known));
        Ok(())
    }
}

/// Parses a token, or `name:token`.
fn parse<'a>(entry: &'a str, setting: &str) -> Result<(Option<&'a str>, &'a str), String> {
    let (name, token) = entry.split_once(':').map_or((None, entry), |(name, token)| (Some(name), token));
    let is_name = |name: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
        (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_part)
    };
    if name.is_some_and(|name| !is_name(name)) {
        return Err(format!("{setting} must have names of up to {MAX_NAME} letters, digits and -_.@ before a colon"));
    }
    if token.len() < MIN_LENGTH {
        return Err(format!(
            "{setting} must have at least {MIN_LENGTH} bytes, such as those of `openssl rand -hex 16`"
        ));
    }
    // A header cannot contain other bytes, except for spaces, which it loses at its ends.
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("{setting} must consist of ASCII letters, digits and punctuation"));
    }
    Ok((name, token))
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
    /// Logs a rejected token, and waits before the response to it. Requests with a valid token do not call this.
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
        CHANGE_VARIABLE, DELAY, LOG_INTERVAL, LOOK_VARIABLE, MAX_DELAYED, RefusalLog, Refusals, Reloadable, Role,
        Secret, Tokens,
    };
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;
    use tokio::time::Instant;

    const READS: &str = "reads-0123456789";
    const WRITES: &str = "writes-0123456789";

    fn tokens(look: Option<&str>, change: Option<&str>) -> Result<Tokens, String> {
        let secret = |text: &str| Secret::from_text(text.to_owned()).expect("a secret");
        Tokens::new(look.map(secret), change.map(secret))
    }

    fn role(tokens: &Tokens, token: &str) -> Option<Role> {
        tokens.user(token.as_bytes()).map(|user| user.role)
    }

    #[test]
    fn user_has_the_name_of_the_token() {
        let change = "anna:anna-0123456789abc,bert:bert-0123456789:bc\r\nanna:anna-new-0123456789";
        let tokens = tokens(Some(READS), Some(change)).expect("valid tokens");
        let user = |token: &str| {
            tokens.user(token.as_bytes()).map(|user| (user.role, user.name.as_deref().map(str::to_owned)))
        };
        let named = |name: &str| Some((Role::Change, Some(name.to_owned())));
        assert_eq!(user("anna-0123456789abc"), named("anna"));
        assert_eq!(user("bert-0123456789:bc"), named("bert"));
        assert_eq!(user("anna-new-0123456789"), named("anna"), "a name may have several tokens");
        assert_eq!(user(READS), Some((Role::Look, None)));
        assert_eq!([change, "anna:anna-0123456789abc"].map(user), [None, None]);
    }

    #[test]
    fn malformed_names_and_repeated_tokens_are_rejected() {
        for wrong in
            [":writes-0123456789", "a b:writes-0123456789", "anna:short", "writes-0123456789,", "a:b:writes-01"]
        {
            assert!(
                tokens(None, Some(wrong)).is_err_and(|error| error.starts_with(&format!("{CHANGE_VARIABLE} must"))),
                "{wrong}"
            );
        }
        assert!(tokens(None, Some(&format!("a:{WRITES},b:{WRITES}"))).is_err_and(|error| error.contains("repeat")));
    }

    #[test]
    fn user_has_the_role_of_the_token() {
        let tokens = tokens(Some(READS), Some(WRITES)).expect("valid tokens");
        let roles = [READS, WRITES, "", "reads-012345678", "reads-01234567890"].map(|text| role(&tokens, text));
        assert_eq!(roles, [Some(Role::Look), Some(Role::Change), None, None, None]);
    }

    #[test]
    fn error_names_the_setting_of_an_invalid_token() {
        for wrong in ["1", "123456789012345", "1234567890 123456", "1234567890123456 ", "ab\u{e9}4567890123456"] {
            assert!(
                tokens(Some(wrong), None).is_err_and(|error| error.starts_with(&format!("{LOOK_VARIABLE} must"))),
                "{wrong}"
            );
            assert!(
                tokens(None, Some(wrong)).is_err_and(|error| error.starts_with(&format!("{CHANGE_VARIABLE} must"))),
                "{wrong}"
            );
        }
        assert!(tokens(Some(READS), Some(READS)).is_err_and(|error| error.starts_with(CHANGE_VARIABLE)));
        assert!(tokens(None, None).is_ok_and(|tokens| tokens.are_read_only() && !tokens.are_needed()));
    }

    #[test]
    fn invalid_file_keeps_the_last_token() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        std::fs::write(&file, format!("{WRITES}\n")).expect("written");
        let tokens = Tokens::new(None, Some(Secret::from_file(CHANGE_VARIABLE, file.clone()).expect("a secret")))
            .expect("valid tokens");
        for wrong in ["\n", "short\n"] {
            std::fs::write(&file, wrong).expect("written");
            assert!(tokens.read().is_err());
            assert_eq!(role(&tokens, WRITES), Some(Role::Change));
        }
        std::fs::write(&file, format!("{READS}\n")).expect("written");
        tokens.read().expect("valid tokens");
        assert_eq!([READS, WRITES].map(|token| role(&tokens, token)), [Some(Role::Change), None]);
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
