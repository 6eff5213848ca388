//! What Envoy is answered.

use crate::headers;
use crate::judge::{Judged, Judgement, RequestPart};
use crate::proto::{Code, DescriptorStatus, HeaderValue, ProtoDuration, RateLimit, RateLimitResponse, Unit};

/// The answer to a request.
pub fn response(asked: &[RequestPart], judgement: &Judgement) -> RateLimitResponse {
    let header = |(name, value): (&str, String)| HeaderValue { key: name.to_owned(), value };
    RateLimitResponse {
        overall_code: code(!judgement.allowed),
        statuses: asked.iter().zip(&judgement.parts).map(|(asked, part)| status(asked, part)).collect(),
        response_headers_to_add: headers::fields(judgement).into_iter().map(header).collect(),
        dynamic_metadata: None,
    }
}

fn code(over: bool) -> i32 {
    i32::from(if over { Code::OverLimit } else { Code::Ok })
}

fn status(asked: &RequestPart, part: &Judged) -> DescriptorStatus {
    let mut status = DescriptorStatus { code: code(part.over && !part.shadow), ..DescriptorStatus::default() };
    if matches!(asked, RequestPart::Unlimited) {
        status.limit_remaining = u32::MAX;
    }
    if let Some(governing) = part.governing() {
        let unit =
            part.window().filter(|window| window.whole && !window.held).map_or(Unit::Unknown, |it| unit(it.seconds));
        let (requests_per_unit, unit) = (bounded(governing.limit), i32::from(unit));
        status.current_limit = Some(RateLimit { requests_per_unit, unit });
        status.limit_remaining = bounded(governing.remaining);
        let reset = governing.reset_ms.max(0);
        let nanos = i32::try_from(reset % 1000 * 1_000_000).unwrap_or_default();
        status.duration_until_reset = Some(ProtoDuration { seconds: reset / 1000, nanos });
    }
    status
}

/// At most what the field holds.
fn bounded(number: i64) -> u32 {
    u32::try_from(number.max(0)).unwrap_or(u32::MAX)
}

/// Envoy's name of a window, if it has one.
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
