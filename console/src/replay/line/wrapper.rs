//! Prefixes that logging systems put before a line: Kubernetes, Docker, syslog.

use super::times::is_rfc3339;

/// Returns the line after the prefix of a logging system, or `None` if there is no prefix.
pub fn inner(line: &str) -> Option<&str> {
    kubectl(line).or_else(|| compose(line)).or_else(|| container(line)).or_else(|| syslog(line))
}

/// Parses `[pod/web-7d4/nginx] LINE`, the output of kubectl logs --prefix.
fn kubectl(line: &str) -> Option<&str> {
    line.strip_prefix("[pod/")?.split_once("] ").map(|(_, inner)| inner)
}

/// Parses `web-1  | LINE`, the output of docker compose logs.
fn compose(line: &str) -> Option<&str> {
    let (service, inner) = line.split_once("| ")?;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let service = service.trim_end();
    (!service.is_empty() && service.bytes().all(is_name)).then_some(inner)
}

/// Parses `TIME stdout F LINE`, a file of a Kubernetes node, or `TIME LINE`, the output of docker logs --timestamps.
/// The inner line is empty for a line that the node has split (`P`).
fn container(line: &str) -> Option<&str> {
    let (_, inner) = line.split_once(' ').filter(|(time, _)| is_rfc3339(time))?;
    match inner.strip_prefix("stdout ").or_else(|| inner.strip_prefix("stderr ")) {
        Some(tagged) => Some(tagged.strip_prefix("F ").unwrap_or_default()),
        // Syslog with times of RFC 3339 begins in the same way.
        None => syslog_message(inner).or(Some(inner)),
    }
}

/// Parses `<190>Sep 10 13:55:36 HOST nginx: LINE` (RFC 3164, the number is optional), or
/// `<190>1 TIME HOST nginx 12 - - LINE` (RFC 5424).
fn syslog(line: &str) -> Option<&str> {
    let numbered = line.strip_prefix('<').and_then(|rest| rest.split_once('>'));
    let (line, is_numbered) = match numbered {
        Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => (rest, true),
        _ => (line, false),
    };
    if let Some(rest) = line.strip_prefix("1 ").filter(|_| is_numbered) {
        return rfc5424(rest);
    }
    if let Some((_, rest)) = line.split_once(' ').filter(|(time, _)| is_numbered && is_rfc3339(time)) {
        return syslog_message(rest);
    }
    let mut rest = line;
    for is_part in [is_month as fn(&str) -> bool, is_day, is_time_of_day] {
        let (part, after) = rest.split_once(' ')?;
        is_part(part).then_some(())?;
        rest = after.trim_start();
    }
    syslog_message(rest)
}

/// Parses `HOST nginx[12]: LINE`. The local host's own log may lack the host.
fn syslog_message(text: &str) -> Option<&str> {
    let (first, after) = text.split_once(' ')?;
    if is_tag(first) {
        return Some(after);
    }
    let (second, after) = after.split_once(' ')?;
    is_tag(second).then_some(after)
}

/// Parses `TIME HOST APP PROCESS MESSAGE-ID DATA LINE`.
fn rfc5424(text: &str) -> Option<&str> {
    let mut rest = text;
    for _ in 0..5 {
        rest = rest.split_once(' ')?.1;
    }
    match rest.strip_prefix("- ") {
        Some(line) => Some(line),
        None => rest.strip_prefix('[')?.split_once("] ").map(|(_, line)| line),
    }
}

/// Returns `true` for the name of a program, with or without its process id: `nginx:`, `haproxy[12]:`.
fn is_tag(word: &str) -> bool {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./[]".contains(&byte);
    word.strip_suffix(':')
        .is_some_and(|name| name.starts_with(|first: char| first.is_ascii_alphabetic()) && name.bytes().all(is_name))
}

fn is_month(word: &str) -> bool {
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"].contains(&word)
}

fn is_day(word: &str) -> bool {
    word.parse::<u8>().is_ok_and(|day| (1..=31).contains(&day))
}

fn is_time_of_day(word: &str) -> bool {
    word.len() >= 8 && word.bytes().all(|byte| byte.is_ascii_digit() || b":.".contains(&byte))
}
