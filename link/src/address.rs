//! Server addresses:
//!
//! * `redis://user:password@host:port/database`, also with several hosts, separated by commas; all but the host may be
//!   omitted. `rediss://` uses TLS. `valkey://` and `valkeys://` mean the same as `redis://` and `rediss://`;
//! * `redis-sentinel://user:password@hosts/name/database`: the hosts of Sentinels, and the name of the primary.
//!   `rediss-sentinel://` uses TLS;
//! * `unix://user:password@/path` of a socket.

use crate::secrets::Secret;
use std::path::PathBuf;

/// User and password for a server. They are never printed.
#[derive(Clone, Default)]
pub struct Credentials {
    /// User, or `None` for the user `default`.
    pub user: Option<String>,
    /// Password, if the user has one.
    pub password: Option<Secret>,
}

/// Address of a server, with its credentials and TLS files.
#[derive(Clone)]
pub struct Address {
    /// Hosts and ports of servers, or of Sentinels if `primary` is set, in order of preference. A host that is an
    /// absolute path is a Unix socket; its port is ignored.
    pub hosts: Vec<(String, u16)>,
    /// Name under which the Sentinels know the primary.
    pub primary: Option<String>,
    /// `true` if connections use TLS.
    pub tls: bool,
    /// Number of the database.
    pub database: i64,
    /// Credentials for the server.
    pub credentials: Credentials,
    /// Credentials for the Sentinels.
    pub sentinel_credentials: Credentials,
    /// File with the authorities that TLS trusts instead of those of the system.
    pub authority: Option<PathBuf>,
    /// Files with the client certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl Address {
    /// Parses a URL in one of the forms that this module lists.
    ///
    /// # Errors
    /// If the URL is malformed. The error does not contain the text, which may hold a password.
    pub fn parse(text: &str) -> Result<Address, String> {
        let unknown_scheme = "must begin with redis://, rediss://, redis-sentinel:// or unix://";
        let (scheme, rest) = text.split_once("://").ok_or(unknown_scheme)?;
        if scheme == "unix" {
            return Address::parse_socket(rest);
        }
        let (tls, sentinel) = match scheme {
            "redis" | "valkey" => (false, false),
            "rediss" | "valkeys" => (true, false),
            "redis-sentinel" => (false, true),
            "rediss-sentinel" => (true, true),
            _ => return Err(unknown_scheme.to_owned()),
        };
        let (user_and_hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match user_and_hosts.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, user_and_hosts),
        };
        let credentials = user.map_or(Ok(Credentials::default()), parse_credentials)?;
        let port = if sentinel { 26_379 } else { 6379 };
        let hosts = hosts.split(',').map(|host| parse_host(host, port)).collect::<Result<Vec<_>, _>>()?;
        let (name, database) = if sentinel { path.split_once('/').unwrap_or((path, "")) } else { ("", path) };
        if sentinel && name.is_empty() {
            return Err("redis-sentinel:// must end with the name of the primary, such as /mymaster".to_owned());
        }
        let database = if database.is_empty() { Some(0) } else { parse_digits(database) };
        let database = database.ok_or("the database after the hosts must be a number from 0 to 65535, such as /3")?;
        Ok(Address {
            hosts,
            primary: sentinel.then(|| name.to_owned()),
            tls,
            database: database.into(),
            credentials,
            sentinel_credentials: Credentials::default(),
            authority: None,
            identity: None,
        })
    }

    /// Parses the user, the password and the path of a Unix socket.
    fn parse_socket(text: &str) -> Result<Address, String> {
        let start = text.find('/').ok_or("unix:// must be followed by the absolute path of a socket")?;
        let (user, path) = text.split_at(start);
        let user = match user.strip_suffix('@') {
            Some(user) => Some(user),
            None if user.is_empty() => None,
            None => return Err("unix:// must be followed by the absolute path of a socket".to_owned()),
        };
        Ok(Address {
            hosts: vec![(path.to_owned(), 0)],
            primary: None,
            tls: false,
            database: 0,
            credentials: user.map_or(Ok(Credentials::default()), parse_credentials)?,
            sentinel_credentials: Credentials::default(),
            authority: None,
            identity: None,
        })
    }

    /// Returns the files of authorities, certificate and key that connections to the address read. Empty without TLS.
    #[must_use]
    pub fn tls_files(&self) -> Vec<PathBuf> {
        let identity = self.identity.iter().flat_map(|(certificate, key)| [certificate, key]);
        self.authority.iter().chain(identity).filter(|_| self.tls).cloned().collect()
    }
}

fn parse_credentials(text: &str) -> Result<Credentials, String> {
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    let (user, password) = (percent_decode(user)?, percent_decode(password)?);
    let password = Secret::from_text(password);
    Ok(Credentials { user: (!user.is_empty()).then_some(user), password })
}

fn parse_host(text: &str, default_port: u16) -> Result<(String, u16), String> {
    let malformed = || "each host must be such as localhost:6379 or [::1]:6379".to_owned();
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or_else(malformed)?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match port.strip_prefix(':') {
        Some(port) => parse_digits(port),
        None => port.is_empty().then_some(default_port),
    };
    match port {
        Some(port) if !host.is_empty() => Ok((host.to_owned(), port)),
        _ => Err(malformed()),
    }
}

/// Parses a number from 0 to 65535 without a sign.
fn parse_digits(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Replaces each `%XX` by its byte.
fn percent_decode(text: &str) -> Result<String, String> {
    let malformed = || "a % in the user or the password must be %25".to_owned();
    let mut bytes = text.bytes();
    let mut out = vec![];
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digits = [bytes.next().ok_or_else(malformed)?, bytes.next().ok_or_else(malformed)?];
            let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
            let byte = std::str::from_utf8(&digits).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok());
            out.push(byte.filter(|_| is_hex).ok_or_else(malformed)?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).map_err(|_| malformed())
}

#[cfg(test)]
mod tests {
    use super::Address;

    #[test]
    fn urls_of_hosts_and_sentinels_are_parsed() {
        let single = Address::parse("redis://127.0.0.1").expect("an address");
        assert_eq!((single.hosts, single.tls, single.database), (vec![("127.0.0.1".to_owned(), 6379)], false, 0));
        let several = Address::parse("rediss://me:p%40ss@a:1,[::1]:2/3").expect("an address");
        assert_eq!(several.hosts, [("a".to_owned(), 1), ("::1".to_owned(), 2)]);
        assert_eq!((several.tls, several.database), (true, 3));
        assert_eq!(several.credentials.user.as_deref(), Some("me"));
        let password = several.credentials.password.expect("a password");
        assert_eq!(password.read().as_deref(), Ok("p@ss"));
        let sentinel = Address::parse("redis-sentinel://a,b:5/mymaster").expect("an address");
        assert_eq!(sentinel.hosts, [("a".to_owned(), 26_379), ("b".to_owned(), 5)]);
        assert_eq!(sentinel.primary.as_deref(), Some("mymaster"));
        let socket = Address::parse("unix://me:secret@/run/redis.sock").expect("an address");
        assert_eq!((socket.hosts, socket.tls), (vec![("/run/redis.sock".to_owned(), 0)], false));
        assert_eq!(socket.credentials.user.as_deref(), Some("me"));
        assert!(Address::parse("unix:///run/redis.sock").is_ok_and(|socket| socket.credentials.user.is_none()));
    }

    #[test]
    fn host_in_brackets_may_have_a_port() {
        for (text, port) in
            [("redis://[::1]", 6379), ("redis://[::1]:6380", 6380), ("redis-sentinel://[::1]/m", 26_379)]
        {
            let address = Address::parse(text).expect(text);
            assert_eq!(address.hosts, [("::1".to_owned(), port)], "{text}");
        }
    }

    #[test]
    fn error_of_a_database_names_the_range() {
        for database in ["70000", "x", "-1"] {
            let error = Address::parse(&format!("redis://a/{database}")).err().expect(database);
            assert_eq!(error, "the database after the hosts must be a number from 0 to 65535, such as /3");
        }
        assert!(Address::parse("redis://a/65535").is_ok_and(|address| address.database == 65_535));
    }

    #[test]
    fn error_of_a_malformed_url_does_not_repeat_it() {
        for text in [
            "",
            "localhost",
            "http://a",
            "redis://",
            "redis://a:secret",
            "redis://[::1]6380",
            "redis://[::1]garbage",
            "redis://[::1]x:6380",
            "redis://[::1",
            "redis://[::1]:",
            "redis://a:+1",
            "redis://a/x",
            "redis://a/+3",
            "redis://a/70000",
            "redis-sentinel://a",
            "unix://redis.sock",
            "unix://a:secret/redis.sock",
            "redis://u:%zz@a",
            "redis://u:%+f@a",
            "redis://u:%f@a",
        ] {
            let error = Address::parse(text).err().expect(text);
            assert!(!error.contains("secret") && !error.contains("zz"), "{error}");
        }
    }
}
