//! Where the server is: `redis://host:port`, several with commas, `rediss://`, `redis-sentinel://hosts/name`.

use crate::secrets::Secret;
use std::path::PathBuf;

/// The user and password with which the gateway logs in at the server. They are never shown.
#[derive(Clone, Default)]
pub struct Credentials {
    /// The user; none: `default`.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
}

/// Where the server is, and how it is spoken to.
#[derive(Clone)]
pub struct Address {
    /// Hosts and ports, the first that serves is taken.
    pub hosts: Vec<(String, u16)>,
    /// Of Sentinel: the name of the primary, which the hosts are asked for.
    pub primary: Option<String>,
    /// Whether by TLS.
    pub tls: bool,
    /// Which database.
    pub database: i64,
    /// As whom.
    pub credentials: Credentials,
    /// Of Sentinel: as whom its hosts are asked.
    pub sentinel_credentials: Credentials,
    /// A file with the certificates that are trusted instead of the system's.
    pub authority: Option<PathBuf>,
    /// The files with this client's own certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl Address {
    /// Reads it.
    ///
    /// # Errors
    /// What is wrong with it. The text is not repeated: it may hold a password.
    pub fn parse(text: &str) -> Result<Address, String> {
        let (scheme, rest) =
            text.split_once("://").ok_or("must begin with redis://, rediss:// or redis-sentinel://")?;
        let (tls, sentinel) = match scheme {
            "redis" | "valkey" => (false, false),
            "rediss" | "valkeys" => (true, false),
            "redis-sentinel" => (false, true),
            "rediss-sentinel" => (true, true),
            _ => return Err("must begin with redis://, rediss:// or redis-sentinel://".to_owned()),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        let credentials = user.map_or(Ok(Credentials::default()), credentials)?;
        let port = if sentinel { 26_379 } else { 6379 };
        let hosts = hosts.split(',').map(|host| host_and_port(host, port)).collect::<Result<Vec<_>, _>>()?;
        let (name, database) = if sentinel { path.split_once('/').unwrap_or((path, "")) } else { ("", path) };
        if sentinel && name.is_empty() {
            return Err("redis-sentinel:// must end with the name of the primary, such as /mymaster".to_owned());
        }
        let database = if database.is_empty() { Ok(0) } else { database.parse::<u16>() };
        let database = database.map_err(|_| "the database behind the hosts must be a number".to_owned())?;
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

    /// The files that TLS takes: certificates and a key.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let identity = self.identity.iter().flat_map(|(certificate, key)| [certificate, key]);
        self.authority.iter().chain(identity).filter(|_| self.tls).cloned().collect()
    }
}

fn credentials(text: &str) -> Result<Credentials, String> {
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    let (user, password) = (decoded(user)?, decoded(password)?);
    let password = (!password.is_empty()).then(|| Secret::from(password));
    Ok(Credentials { user: (!user.is_empty()).then_some(user), password })
}

fn host_and_port(text: &str, default: u16) -> Result<(String, u16), String> {
    let wrong = || "each host must be such as localhost:6379 or [::1]:6379".to_owned();
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map(|(host, port)| (host, port.strip_prefix(':'))).ok_or_else(wrong)?,
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Ok(default), |port| port.parse().map_err(|_| wrong()))?;
    if host.is_empty() { Err(wrong()) } else { Ok((host.to_owned(), port)) }
}

/// Text in which `%XX` stands for a byte.
fn decoded(text: &str) -> Result<String, String> {
    let wrong = || "a % in the user or the password must be %25".to_owned();
    let mut bytes = text.bytes();
    let mut out = vec![];
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digits = [bytes.next().ok_or_else(wrong)?, bytes.next().ok_or_else(wrong)?];
            let digits = std::str::from_utf8(&digits).map_err(|_| wrong())?;
            out.push(u8::from_str_radix(digits, 16).map_err(|_| wrong())?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::Address;

    #[test]
    fn one_host_and_several_and_sentinels() {
        let one = Address::parse("redis://127.0.0.1").expect("an address");
        assert_eq!((one.hosts, one.tls, one.database), (vec![("127.0.0.1".to_owned(), 6379)], false, 0));
        let several = Address::parse("rediss://me:p%40ss@a:1,[::1]:2/3").expect("an address");
        assert_eq!(several.hosts, [("a".to_owned(), 1), ("::1".to_owned(), 2)]);
        assert_eq!((several.tls, several.database), (true, 3));
        assert_eq!(several.credentials.user.as_deref(), Some("me"));
        let password = several.credentials.password.expect("a password");
        assert_eq!(password.read().as_deref(), Ok("p@ss"));
        let sentinel = Address::parse("redis-sentinel://a,b:5/mymaster").expect("an address");
        assert_eq!(sentinel.hosts, [("a".to_owned(), 26_379), ("b".to_owned(), 5)]);
        assert_eq!(sentinel.primary.as_deref(), Some("mymaster"));
    }

    #[test]
    fn wrong_addresses_are_refused_without_their_text() {
        for text in [
            "",
            "localhost",
            "http://a",
            "redis://",
            "redis://a:secret",
            "redis://a/x",
            "redis-sentinel://a",
            "redis://u:%zz@a",
        ] {
            let told = Address::parse(text).err().expect(text);
            assert!(!told.contains("secret") && !told.contains("zz"), "{told}");
        }
    }
}
