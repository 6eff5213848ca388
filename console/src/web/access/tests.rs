use super::{Guard, Refused, Role, Tokens};
use axum::http::{HeaderMap, HeaderValue, Method, header};
use ratelimit_link::secrets::Secret;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn tokens(look: Option<&str>, change: Option<&str>) -> Arc<Tokens> {
    let secret = |text: &str| Secret::from(format!("{text}-0123456789"));
    Arc::new(Tokens::new(look.map(secret), change.map(secret)).expect("right"))
}

fn guard(look: Option<&str>, change: Option<&str>) -> Guard {
    let hosts = ["ops.example".to_owned(), "10.9.9.9".to_owned()];
    Guard::new(LOOPBACK, tokens(look, change), &hosts).expect("right")
}

fn with(value: &str) -> HeaderMap {
    HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(value).expect("a header"))])
}

#[test]
fn a_token_says_what_its_owner_may_do() {
    let guard = guard(Some("reads"), Some("writes"));
    for (headers, expected) in [
        (HeaderMap::new(), Err(Refused::Unknown)),
        (with("Bearer reads-0123456789"), Ok(Role::Look)),
        (with("bearer writes-0123456789"), Ok(Role::Change)),
        (with("Bearer reads-012345678"), Err(Refused::Unknown)),
        (with("Bearer reads-0123456789x"), Err(Refused::Unknown)),
        (with("Bearer "), Err(Refused::Unknown)),
        (with("reads-0123456789"), Err(Refused::Unknown)),
        (with("Basic reads-0123456789"), Err(Refused::Unknown)),
    ] {
        assert_eq!(guard.role(&headers), expected, "{headers:?}");
    }
    let mut twice = with("Bearer writes-0123456789");
    twice.append(header::AUTHORIZATION, HeaderValue::from_static("Bearer writes-0123456789"));
    assert_eq!(guard.role(&twice), Err(Refused::Unknown));
}

#[test]
fn changing_takes_the_token_for_it() {
    let put = |guard: &Guard, headers| guard.admits(&Method::PUT, "/api/policies/a", &headers);
    let both = guard(Some("reads"), Some("writes"));
    assert_eq!(put(&both, with("Bearer writes-0123456789")), Ok(Role::Change));
    assert_eq!(put(&both, with("Bearer reads-0123456789")), Err(Refused::LookOnly));
    assert_eq!(put(&both, HeaderMap::new()), Err(Refused::Unknown));
    let open = guard(None, Some("writes"));
    assert_eq!(open.admits(&Method::GET, "/api/policies", &HeaderMap::new()), Ok(Role::Look));
    assert_eq!(put(&open, HeaderMap::new()), Err(Refused::Unknown));
    assert_eq!(
        open.role(&with("Bearer wrong-0123456789")),
        Err(Refused::Unknown),
        "a slip is told, not taken for none"
    );
    let shows = guard(None, None);
    assert_eq!(put(&shows, HeaderMap::new()), Err(Refused::ReadOnly));
    assert_eq!(shows.admits(&Method::POST, "/api/check", &HeaderMap::new()), Ok(Role::Look));
    assert_eq!(shows.admits(&Method::POST, "/api/checked", &HeaderMap::new()), Err(Refused::ReadOnly));
}

#[test]
fn off_loopback_it_takes_a_token() {
    let everywhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let refused = Guard::new(everywhere, tokens(None, Some("writes")), &[]);
    assert!(refused.is_err_and(|told| told.contains("CONSOLE_TOKEN")));
    assert!(Guard::new(everywhere, tokens(Some("reads"), None), &[]).is_ok());
}

#[test]
fn it_goes_by_its_own_names() {
    let guard = guard(None, None);
    let own = Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));
    for host in ["localhost", "LOCALHOST:8090", "127.0.0.1:8090", "127.9.9.9", "[::1]:8090", "192.0.2.1:80"] {
        assert!(guard.is_named(host, own), "{host}");
    }
    assert!(
        guard.is_named("ops.example:8090", own)
            && guard.is_named("OPS.example", own)
            && guard.is_named("10.9.9.9", own)
    );
    for host in ["evil.example", "192.0.2.2", "localhost.evil.example", "", "127.0.0.1.evil.example", "[::2]", "["] {
        assert!(!guard.is_named(host, own), "{host}");
    }
}
