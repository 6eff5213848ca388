//! Plain text lines: `time key cost`, access logs, and the logs of Envoy, `HAProxy` and AWS's load balancer.

use super::forwarded::ClientRules;
use super::times::{Times, is_rfc3339};
use super::{Amount, Line, parse_cost};
use ratelimit_link::client_address::parse;
use std::borrow::Cow;

/// Types of the requests in a log of an Application Load Balancer.
const ALB_TYPES: [&str; 6] = ["http", "https", "h2", "grpcs", "ws", "wss"];

/// Parses `time key [cost]`.
pub fn words<'a>(line: &'a str, times: &mut Times, clients: &ClientRules) -> Option<Line<'a>> {
    let mut words = line.split_ascii_whitespace();
    let (time, key) = (words.next()?, words.next()?);
    let cost = words.next().map_or(Some(Amount::ONE), parse_cost)?;
    // If JSON follows the time, the JSON itself has the time of the call.
    if words.next().is_some() || key.starts_with('{') {
        return None;
    }
    Some(Line { at: times.parse(time)?, key: clients.key(key), cost })
}

/// Parses `https time load-balancer client:port target:port ...`.
pub fn alb<'a>(line: &str, times: &mut Times, clients: &ClientRules) -> Option<Line<'a>> {
    let mut words = line.split(' ');
    if !ALB_TYPES.contains(&words.next()?) {
        return None;
    }
    let time = words.next().filter(|time| is_rfc3339(time))?;
    let key = clients.resolve_peer(words.nth(1)?, None)?;
    call(times, time, key)
}

/// Parses the default formats of Envoy, `[time] "request" status flags received sent duration upstream
/// "x-forwarded-for" ...`, and of Istio, which has three more values before the received bytes.
pub fn envoy<'a>(line: &str, times: &mut Times, clients: &ClientRules) -> Option<Line<'a>> {
    let (time, rest) = line.strip_prefix('[')?.split_once(']')?;
    if !is_rfc3339(time) {
        return None;
    }
    let mut quoted = rest.split('"').skip(2);
    let mut between = || Some((quoted.next()?.split_ascii_whitespace().count(), quoted.next()?));
    let (values, first) = between()?;
    let chain = if values == 4 { between()?.1 } else { first };
    call(times, time, clients.resolve_chain(chain)?)
}

/// Parses `address identity user [time] "request" status size`, with or without further values: the common and the
/// combined log format, with the name of a host or other words before them, and `HAProxy`'s `address:port [time]`. If
/// the address is that of a trusted proxy, the last quoted value is taken as `X-Forwarded-For`, as in the log format of
/// nginx's packages.
pub fn access_log<'a>(line: &str, times: &mut Times, clients: &ClientRules) -> Option<Line<'a>> {
    for (index, _) in line.match_indices('[') {
        let (before, rest) = line.split_at_checked(index)?;
        let (time, after) = rest.get(1..)?.split_once(']')?;
        let Some(at) = calendar(time).and_then(|time| times.parse(time)) else { continue };
        let words: Vec<&str> = before.split_ascii_whitespace().collect();
        let key = if time.contains(' ') {
            client(&words, after, clients)?.into_owned()
        } else {
            // `HAProxy` writes a time without a zone, and IPv6 addresses without brackets, so that the last colon
            // precedes the port.
            clients.resolve_peer(words.last()?.rsplit_once(':')?.0, None)?
        };
        return Some(Line { at, key: key.into(), cost: Amount::ONE });
    }
    None
}

/// Returns the client of an access log, from the words before its time and the text after it.
fn client<'a>(words: &[&'a str], after: &str, clients: &ClientRules) -> Option<Cow<'a, str>> {
    let is_address = |word: &str| parse(word.trim_end_matches(',')).is_some();
    let Some(first) = words.iter().position(|word| is_address(word)) else {
        // The server has resolved the address to a host name.
        return match words {
            [host, "-", ..] if is_host(host) => Some((*host).into()),
            _ => None,
        };
    };
    let words = words.get(first..)?;
    let comma_count = words.iter().take_while(|word| word.ends_with(',')).count();
    if comma_count > 0 {
        return clients.resolve_chain(&words.get(..=comma_count)?.join(" ")).map(Cow::from);
    }
    clients.resolve_peer(words.first()?, forwarded(after)).map(Cow::from)
}

fn is_host(word: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    word.bytes().all(is_of_name) && word.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// Returns the last quoted value if it ends the line and is at least the fourth. The first three values are the
/// request, the referrer and the user agent.
fn forwarded(after: &str) -> Option<&str> {
    let values: Vec<&str> = after.trim_end().split('"').collect();
    match values.as_slice() {
        [_, _, _, _, _, _, .., forwarded, ""] if values.len() >= 9 => Some(forwarded),
        _ => None,
    }
}

/// Returns the text if it may be a date with a time, such as `10/Oct/2000:13:55:36 -0700`.
fn calendar(text: &str) -> Option<&str> {
    (text.len() >= 20 && text.as_bytes().get(2) == Some(&b'/')).then_some(text)
}

fn call<'a>(times: &mut Times, time: &str, key: String) -> Option<Line<'a>> {
    Some(Line { at: times.parse(time)?, key: key.into(), cost: Amount::ONE })
}
