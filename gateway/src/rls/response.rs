//! Responses to Envoy.

use crate::evaluation::{PartDecision, RequestDecision, RequestPart};
use crate::headers::ResponseHeaders;
use crate::proto::{Code, DescriptorStatus, HeaderValue, ProtoDuration, RateLimit, RateLimitResponse, Unit};

/// Returns the response for the decision on a request.
pub fn response(parts: &[RequestPart], decision: &RequestDecision, headers: &ResponseHeaders) -> RateLimitResponse {
    let header = |(name, value): (&str, String)| HeaderValue { key: name.to_owned(), value };
    RateLimitResponse {
        overall_code: code(!decision.allowed),
        statuses: parts.iter().zip(&decision.parts).map(|(part, decision)| status(part, decision)).collect(),
        response_headers_to_add: headers.fields(decision).into_iter().map(header).collect(),
        dynamic_metadata: None,
    }
}

fn code(is_over: bool) -> i32 {
    i32::from(if is_over { Code::OverLimit } else { Code::Ok })
}

fn status(part: &RequestPart, decision: &PartDecision) -> DescriptorStatus {
    let mut status =
        DescriptorStatus { code: code(decision.is_over && !decision.shadow), ..DescriptorStatus::default() };
    if matches!(part, RequestPart::Unlimited) {
        status.limit_remaining = u32::MAX;
    }
    if let Some(governing) = decision.governing() {
        let limit = decision.governing_limit().filter(|limit| limit.is_window && !limit.is_concurrency);
        let unit = limit.map_or(Unit::Unknown, |limit| unit(limit.recovery_seconds));
        let (requests_per_unit, unit) = (saturate(governing.limit), i32::from(unit));
        status.current_limit = Some(RateLimit { requests_per_unit, unit });
        status.limit_remaining = saturate(governing.remaining);
        let reset = governing.reset_ms.max(0);
        let nanos = i32::try_from(reset % 1000 * 1_000_000).unwrap_or_default();
        status.duration_until_reset = Some(ProtoDuration { seconds: reset / 1000, nanos });
    }
    status
}

/// Converts to `u32`. A number out of range becomes the nearest number in range.
fn saturate(number: i64) -> u32 {
    u32::try_from(number.max(0)).unwrap_or(u32::MAX)
}

/// Returns Envoy's unit for the length of a window.
fn unit(seconds: u64) -> Unit {
    match seconds {
        1 => Unit::Second,
        60 => Unit::Minute,
        3600 => Unit::Hour,
        86_400 => Unit::Day,
        604_800 => Unit::Week,
        2_592_000 => Unit::Month,
        31_536_000 => Unit::Year,
        _ => Unit::Unknown,
    }
}
