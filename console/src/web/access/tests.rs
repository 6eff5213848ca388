use super::{AccessError, Guard, Role, Tokens};
use axum::http::{HeaderMap, HeaderValue, Method, header};
use ratelimit_link::secrets::Secret;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn tokens(look: Option<&str>, change: Option<&str>) -> Arc<Tokens> {
    let secret = |text: &str| Secret::from_text(format!("{text}-0123456789")).expect("a secret");
    Arc::new(Tokens::new(look.map(secret), change.map(secret)).expect("valid tokens"))
}

fn guard(look: Option<&str>, change: Option<&str>) -> Guard {
    let hosts = ["ops.example".to_owned(), "10.9.9.9".to_owned()];
    Guard::new(LOOPBACK, tokens(look, change), &hosts).expect("valid tokens")
}

fn authorization(value: &str) -> HeaderMap {
    HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(value).expect("a header"))])
}

#[test]
fn user_has_the_role_of_the_token() {
    let guard = guard(Some("reads"), Some("writes"));
    for (headers, expected) in [
        (HeaderMap::new(), Err(AccessError::Unknown)),
        (authorization("Bearer reads-0123456789"), Ok(Role::Look)),
        (authorization("bearer writes-0123456789"), Ok(Role::Change)),
        (authorization("Bearer reads-012345678"), Err(AccessError::Unknown)),
        (authorization("Bearer reads-0123456789x"), Err(AccessError::Unknown)),
        (authorization("Bearer "), Err(AccessError::Unknown)),
        (authorization("reads-0123456789"), Err(AccessError::Unknown)),
        (authorization("Basic reads-0123456789"), Err(AccessError::Unknown)),
    ] {
        assert_eq!(guard.user(&headers).map(|user| user.role), expected, "{headers:?}");
    }
    let mut duplicate = authorization("Bearer writes-0123456789");
    duplicate.append(header::AUTHORIZATION, HeaderValue::from_static("Bearer writes-0123456789"));
    assert_eq!(guard.user(&duplicate), Err(AccessError::Unknown));
}

#[test]
fn changes_require_the_write_token() {
    let put = |guard: &Guard, headers| guard.authorize(&Method::PUT, "/api/policies/a", &headers).map(|user| user.role);
    let with_both_tokens = guard(Some("reads"), Some("writes"));
    assert_eq!(put(&with_both_tokens, authorization("Bearer writes-0123456789")), Ok(Role::Change));
    assert_eq!(put(&with_both_tokens, authorization("Bearer reads-0123456789")), Err(AccessError::LookOnly));
    assert_eq!(put(&with_both_tokens, HeaderMap::new()), Err(AccessError::Unknown));
    let without_read_token = guard(None, Some("writes"));
    assert_eq!(
        without_read_token.authorize(&Method::GET, "/api/policies", &HeaderMap::new()).map(|user| user.role),
        Ok(Role::Look)
    );
    assert_eq!(put(&without_read_token, HeaderMap::new()), Err(AccessError::Unknown));
    assert_eq!(
        without_read_token.user(&authorization("Bearer wrong-0123456789")),
        Err(AccessError::Unknown),
        "an unknown token is not treated as no token"
    );
    let read_only = guard(None, None);
    assert_eq!(put(&read_only, HeaderMap::new()), Err(AccessError::ReadOnly));
    assert_eq!(
        read_only.authorize(&Method::POST, "/api/check", &HeaderMap::new()).map(|user| user.role),
        Ok(Role::Look)
    );
    assert_eq!(
        read_only.authorize(&Method::POST, "/api/checked", &HeaderMap::new()).map(|user| user.role),
        Err(AccessError::ReadOnly)
    );
}

#[test]
fn listener_off_loopback_requires_a_token() {
    let everywhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let result = Guard::new(everywhere, tokens(None, Some("writes")), &[]);
    assert!(result.is_err_and(|error| error.contains("CONSOLE_TOKEN")));
    assert!(Guard::new(everywhere, tokens(Some("reads"), None), &[]).is_ok());
}

#[test]
fn only_own_host_names_are_accepted() {
    let guard = guard(None, None);
    let local = Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));
    for host in ["localhost", "LOCALHOST:8090", "127.0.0.1:8090", "127.9.9.9", "[::1]:8090", "192.0.2.1:80"] {
        assert!(guard.is_own_host(host, local), "{host}");
    }
    assert!(
        guard.is_own_host("ops.example:8090", local)
            && guard.is_own_host("OPS.example", local)
            && guard.is_own_host("10.9.9.9", local)
    );
    for host in [
        "evil.example",
        "192.0.2.2",
        "localhost.evil.example",
        "",
        "127.0.0.1.evil.example",
        "[::2]",
        "[",
        "[::1]8090",
        "[::1].evil.example",
    ] {
        assert!(!guard.is_own_host(host, local), "{host}");
    }
}
