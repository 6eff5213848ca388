//! Parent of a request's span, from the headers of the request.

use axum::http::HeaderMap;
use opentelemetry::Context;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;

/// Format of the headers that name the parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagator {
    /// `traceparent` and `tracestate` of W3C.
    TraceContext,
    /// `b3` of Zipkin, or its headers `x-b3-traceid`, `x-b3-spanid`, `x-b3-sampled` and `x-b3-flags`.
    B3,
}

/// Returns a context with the parent from the first of these formats that the headers contain, or an empty context.
pub fn parent(propagators: &[Propagator], headers: &HeaderMap) -> Context {
    let context = propagators.iter().find_map(|propagator| match propagator {
        Propagator::TraceContext => {
            let context =
                TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderExtractor(headers));
            context.span().span_context().is_valid().then_some(context)
        }
        Propagator::B3 => b3(headers).map(|parent| Context::new().with_remote_span_context(parent)),
    });
    context.unwrap_or_default()
}

fn b3(headers: &HeaderMap) -> Option<SpanContext> {
    let value = |name: &str| headers.get(name)?.to_str().ok();
    let (trace, span, sampled) = if let Some(single) = value("b3") {
        let mut fields = single.split('-');
        (fields.next()?, fields.next()?, fields.next())
    } else {
        // A trace with the debug flag is sampled.
        let sampled = if value("x-b3-flags") == Some("1") { Some("1") } else { value("x-b3-sampled") };
        (value("x-b3-traceid")?, value("x-b3-spanid")?, sampled)
    };
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if ![16, 32].contains(&trace.len()) || span.len() != 16 || !is_hex(trace) || !is_hex(span) {
        return None;
    }
    let flags = TraceFlags::default().with_sampled(matches!(sampled, Some("1" | "d" | "true")));
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    Some(SpanContext::new(trace, span, flags, true, TraceState::default())).filter(SpanContext::is_valid)
}

#[cfg(test)]
mod tests {
    use super::{Propagator, parent};
    use axum::http::{HeaderMap, HeaderName, HeaderValue};
    use opentelemetry::trace::TraceContextExt as _;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    /// Returns the trace, the span and `is_sampled` of the parent that the headers name.
    fn find_parent(propagator: Propagator, headers: &[(&'static str, &str)]) -> Option<(String, String, bool)> {
        let header = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::try_from(*value).unwrap())
        };
        let headers: HeaderMap = headers.iter().map(header).collect();
        let context = parent(&[propagator], &headers);
        let span = context.span().span_context().clone();
        span.is_valid().then(|| (span.trace_id().to_string(), span.span_id().to_string(), span.is_sampled()))
    }

    fn expected(trace: &str, is_sampled: bool) -> (String, String, bool) {
        (trace.to_owned(), SPAN.to_owned(), is_sampled)
    }

    #[test]
    fn parent_of_w3c_is_found() {
        let parent = |value: &str| find_parent(Propagator::TraceContext, &[("traceparent", value)]);
        assert_eq!(parent(&format!("00-{TRACE}-{SPAN}-01")), Some(expected(TRACE, true)));
        assert_eq!(parent(&format!("00-{TRACE}-{SPAN}-00")), Some(expected(TRACE, false)));
        for malformed in ["", "00", &format!("00-{TRACE}-0000000000000000-01"), &format!("ff-{TRACE}-{SPAN}-01")] {
            assert_eq!(parent(malformed), None, "{malformed}");
        }
    }

    #[test]
    fn parent_of_zipkin_is_found() {
        let parent = |value: &str| find_parent(Propagator::B3, &[("b3", value)]);
        assert_eq!(parent(&format!("{TRACE}-{SPAN}-1-05e3ac9a4f6e3b90")), Some(expected(TRACE, true)));
        assert_eq!(parent(&format!("{TRACE}-{SPAN}-d")), Some(expected(TRACE, true)));
        assert_eq!(parent(&format!("{TRACE}-{SPAN}-0")), Some(expected(TRACE, false)));
        assert_eq!(parent(&format!("{SPAN}-{SPAN}")), Some(expected(&format!("0000000000000000{SPAN}"), false)));
        for malformed in ["0", "1-2-1", &format!("{TRACE}-{SPAN}a-1"), &format!("{TRACE}-+{}-1", &SPAN[1..])] {
            assert_eq!(parent(malformed), None, "{malformed}");
        }
        let separate_headers = [("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN), ("x-b3-sampled", "1")];
        assert_eq!(find_parent(Propagator::B3, &separate_headers), Some(expected(TRACE, true)));
        assert_eq!(find_parent(Propagator::TraceContext, &separate_headers), None);
    }
}
