//! HTTP client of Prometheus and of gateways.

use axum::body::{self, Body, Bytes};
use axum::http::uri::{Authority, Scheme};
use axum::http::{HeaderValue, Request, StatusCode, Uri, header};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use percent_encoding::percent_decode_str;
use ratelimit_link::certificate::client_config;
use ratelimit_link::secrets::Secret;
use std::error::Error;
use std::path::Path;
use std::time::Duration;
use tokio::time::timeout;

/// HTTP server that is read with GET requests.
pub struct HttpTarget {
    scheme: Scheme,
    authority: Authority,
    /// Path that precedes the paths of requests, without a slash at its end.
    base: String,
    credentials: Option<Credentials>,
    limits: HttpLimits,
    client: Client<HttpsConnector<HttpConnector>, Body>,
}

/// Bounds of a request.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// Time until the whole response has been received.
    pub timeout: Duration,
    /// Maximum number of bytes of the body of a response.
    pub body_bytes: usize,
}

/// Server that an option of the command line names.
#[derive(Clone, Copy, Debug)]
pub struct NamedTarget<'a> {
    /// Name of the option, such as `--prometheus`.
    pub option: &'a str,
    /// Value of the option.
    pub url: &'a str,
    /// Prefix of the variables `..._PASSWORD` and `..._TOKEN`, such as `RATELIMIT_CONSOLE_PROMETHEUS`.
    pub prefix: &'a str,
    /// File with the authorities that verify the server's certificate, instead of those of the system.
    pub authority: Option<&'a Path>,
}

/// Credentials of a server, sent with each request.
enum Credentials {
    Basic(String, Secret),
    Bearer(Secret),
}

/// Response with its body.
#[derive(Debug)]
pub struct HttpResponse {
    pub status: StatusCode,
    pub body: Bytes,
}

impl HttpTarget {
    /// Creates a client of the server that an option names. A user may be in the URL; the password is in the variable
    /// `..._PASSWORD`, or in the URL if it is not on the command line. A token is in the variable `..._TOKEN`.
    ///
    /// # Errors
    /// If the URL is malformed, if it has a password on the command line, where other accounts can read it, if there
    /// are both a user and a token, or if a file cannot be read. The error contains no secret.
    pub fn new(named: NamedTarget, limits: HttpLimits) -> Result<HttpTarget, String> {
        let NamedTarget { option, url, prefix, authority } = named;
        let is_on_command_line = || std::env::args().any(|word| word.contains(url));
        let (password, token) = (format!("{prefix}_PASSWORD"), format!("{prefix}_TOKEN"));
        let (location, user) = parse_url(url).map_err(|why| format!("{option}: {why}"))?;
        let credentials = match (user, Secret::find(&token)?) {
            (Some(_), Some(_)) => return Err(format!("{option} has a user, and {token} is set; one must be unset")),
            (Some((_, Some(_))), None) if is_on_command_line() => {
                return Err(format!("{option}: the password belongs in {password}"));
            }
            (Some((user, Some(secret))), None) => Some(Credentials::Basic(user, secret)),
            (Some((user, None)), None) => {
                let secret = Secret::find(&password)?;
                Some(Credentials::Basic(user, secret.ok_or_else(|| format!("{option} has a user without {password}"))?))
            }
            (None, token) => token.map(Credentials::Bearer),
        };
        let (scheme, authority_of_url, base) = location;
        let is_https = scheme == Scheme::HTTPS;
        let tls = client_config(authority, None, is_https).map_err(|why| format!("{option}: {why}"))?;
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(1).build(connector);
        Ok(HttpTarget { scheme, authority: authority_of_url, base, credentials, limits, client })
    }

    /// Returns the URL without credentials, for the page.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://{}{}", self.scheme, self.authority, self.base)
    }

    /// Requests a path, with its query, below the path of the URL. Redirects are not followed, since they could lead
    /// the credentials elsewhere.
    ///
    /// # Errors
    /// If the server cannot be reached, does not respond in time or sends too many bytes. The error says why, without
    /// the server's name.
    pub async fn get(&self, path: &str) -> Result<HttpResponse, String> {
        let uri = Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone());
        let uri = uri.path_and_query(format!("{}{path}", self.base)).build().map_err(|error| error.to_string())?;
        let mut request = Request::get(uri);
        if let Some(credentials) = &self.credentials {
            request = request.header(header::AUTHORIZATION, credentials.header()?);
        }
        let request = request.body(Body::empty()).map_err(|error| error.to_string())?;
        let response = async {
            let response = self.client.request(request).await.map_err(|error| innermost(&error))?;
            let (parts, body) = response.into_parts();
            let body = body::to_bytes(Body::new(body), self.limits.body_bytes).await;
            Ok(HttpResponse { status: parts.status, body: body.map_err(|error| innermost(&error))? })
        };
        timeout(self.limits.timeout, response).await.unwrap_or_else(|_| Err("no response in time".to_owned()))
    }
}

impl Credentials {
    /// Returns the value of the header `Authorization`. A file is read at each request.
    fn header(&self) -> Result<HeaderValue, String> {
        let text = match self {
            Credentials::Basic(user, secret) => {
                format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{}", secret.latest())))
            }
            Credentials::Bearer(secret) => format!("Bearer {}", secret.latest()),
        };
        let mut value = HeaderValue::from_str(&text).map_err(|_| "the token has control characters".to_owned())?;
        value.set_sensitive(true);
        Ok(value)
    }
}

/// Scheme, host with port, and path.
type Location = (Scheme, Authority, String);
/// Name and password.
type User = (String, Option<Secret>);

/// Parses a URL into its location, and its user if it has one. An empty password counts as none.
fn parse_url(url: &str) -> Result<(Location, Option<User>), String> {
    let malformed = || "the URL must be http://host:port or https://host:port".to_owned();
    let uri: Uri = url.parse().map_err(|_| malformed())?;
    let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else { return Err(malformed()) };
    if !["http", "https"].contains(&scheme.as_str()) || authority.host().is_empty() || uri.query().is_some() {
        return Err(malformed());
    }
    let decoded = |text: &str| percent_decode_str(text).decode_utf8().map(String::from).map_err(|_| malformed());
    let (user, host) = match authority.as_str().rsplit_once('@') {
        Some((user, host)) => {
            let (user, password) = user.split_once(':').map_or((user, None), |(user, password)| (user, Some(password)));
            (Some((decoded(user)?, password.map(decoded).transpose()?.and_then(Secret::from_text))), host)
        }
        None => (None, authority.as_str()),
    };
    let authority = host.parse().map_err(|_| malformed())?;
    Ok(((scheme.clone(), authority, uri.path().trim_end_matches('/').to_owned()), user))
}

/// Returns the message of the error that caused all others.
fn innermost(error: &(dyn Error + 'static)) -> String {
    let sources = std::iter::successors(Some(error), |error| (*error).source());
    sources.last().map_or_else(String::new, ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::{HttpLimits, HttpTarget, NamedTarget, parse_url};
    use std::time::Duration;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    /// Creates a target with an option whose variables are not set.
    fn target(url: &str) -> Result<HttpTarget, String> {
        let named = NamedTarget { option: "--target", url, prefix: "UNSET_TARGET", authority: None };
        HttpTarget::new(named, HttpLimits { timeout: Duration::from_secs(5), body_bytes: 8 })
    }

    /// Serves one response. Returns the address of the server, and a task that returns the request.
    async fn respond(response: &'static str) -> (String, JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("an address").to_string();
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = vec![];
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.expect("a request"));
            }
            stream.write_all(response.as_bytes()).await.expect("a client");
            String::from_utf8(request).expect("text")
        });
        (at, served)
    }

    #[test]
    fn url_is_split_into_location_and_user() {
        let ((scheme, authority, base), user) = parse_url("https://an%40na:p%3Aw@[::1]:9090/prom/").expect("a URL");
        assert_eq!((scheme.as_str(), authority.as_str(), base.as_str()), ("https", "[::1]:9090", "/prom"));
        let (user, password) = user.expect("a user");
        assert_eq!((user.as_str(), password.expect("a password").read()), ("an@na", Ok("p:w".to_owned())));
        for malformed in ["prometheus:9090", "/metrics", "ftp://host", "http://host/?a=1", "http://user@:1", ""] {
            assert!(parse_url(malformed).is_err(), "{malformed}");
        }
    }

    #[test]
    fn user_without_password_is_rejected() {
        for url in ["http://anna@host", "http://anna:@host"] {
            let error = target(url).err().expect("an error");
            assert_eq!(error, "--target has a user without UNSET_TARGET_PASSWORD");
        }
    }

    #[tokio::test]
    async fn request_has_credentials_and_path_of_the_url() {
        let (at, served) = respond("HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nnot").await;
        let target = target(&format!("http://anna:secret@{at}/prom/")).expect("a target");
        assert_eq!(target.url(), format!("http://{at}/prom"));
        let response = target.get("/api?a=1").await.expect("a response");
        assert_eq!((response.status.as_u16(), response.body.as_ref()), (404, b"not".as_slice()));
        let request = served.await.expect("a request").to_lowercase();
        assert!(request.starts_with("get /prom/api?a=1 http/1.1\r\n"), "{request}");
        assert!(request.contains("authorization: basic yw5uytpzzwnyzxq=\r\n"), "{request}");
    }

    #[tokio::test]
    async fn long_body_is_rejected() {
        let (at, _served) = respond("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123456789").await;
        let error = target(&format!("http://{at}")).expect("a target").get("/").await.expect_err("too long");
        assert_eq!(error, "length limit exceeded");
    }

    #[tokio::test(start_paused = true)]
    async fn server_that_does_not_respond_is_a_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("an address");
        let error = target(&format!("http://{at}")).expect("a target").get("/").await.expect_err("silence");
        assert_eq!(error, "no response in time");
    }

    #[tokio::test]
    async fn refused_connection_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("an address");
        drop(listener);
        let error = target(&format!("http://{at}")).expect("a target").get("/").await.expect_err("refused");
        assert!(error.starts_with("Connection refused"), "{error}");
    }
}
