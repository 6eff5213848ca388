//! The messages of Envoy's rate limit service, in so far as the gateway reads or writes them: what `prost-build` makes of
//! envoy/service/ratelimit/v3/rls.proto and what it imports. A message may have more fields: those are passed over.

use prost::{Enumeration, Message};

/// A request: envoy.service.ratelimit.v3.RateLimitRequest.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitRequest {
    /// Whose limits are asked about.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// What is limited.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// What the request costs; 0: 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// A part of a request: envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitDescriptor {
    /// What it is about.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
    /// A limit that it brings itself.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RateLimitOverride>,
    /// What it costs, whatever the request says.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<UInt64Value>,
    /// Whether that is given back.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// A name and a value: envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Entry {
    /// The name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// A limit of a descriptor: envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct RateLimitOverride {
    /// So much in each unit.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The unit.
    #[prost(enumeration = "RateLimitUnit", tag = "2")]
    pub unit: i32,
}

/// The unit of an override: envoy.type.v3.RateLimitUnit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum RateLimitUnit {
    /// None.
    Unknown = 0,
    /// A second.
    Second = 1,
    /// A minute.
    Minute = 2,
    /// An hour.
    Hour = 3,
    /// A day.
    Day = 4,
    /// A month.
    Month = 5,
    /// A year.
    Year = 6,
}

impl RateLimitUnit {
    /// Name in proto3's JSON.
    pub fn as_str_name(self) -> &'static str {
        match self {
            RateLimitUnit::Unknown => "UNKNOWN",
            RateLimitUnit::Second => "SECOND",
            RateLimitUnit::Minute => "MINUTE",
            RateLimitUnit::Hour => "HOUR",
            RateLimitUnit::Day => "DAY",
            RateLimitUnit::Month => "MONTH",
            RateLimitUnit::Year => "YEAR",
        }
    }

    /// The unit that proto3's JSON calls so.
    pub fn from_str_name(name: &str) -> Option<RateLimitUnit> {
        Some(match name {
            "UNKNOWN" => RateLimitUnit::Unknown,
            "SECOND" => RateLimitUnit::Second,
            "MINUTE" => RateLimitUnit::Minute,
            "HOUR" => RateLimitUnit::Hour,
            "DAY" => RateLimitUnit::Day,
            "MONTH" => RateLimitUnit::Month,
            "YEAR" => RateLimitUnit::Year,
            _ => return None,
        })
    }
}

/// A number that may be missing: google.protobuf.UInt64Value.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct UInt64Value {
    /// The number.
    #[prost(uint64, tag = "1")]
    pub value: u64,
}

/// An answer: envoy.service.ratelimit.v3.RateLimitResponse.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitResponse {
    /// Whether the request passes.
    #[prost(enumeration = "Code", tag = "1")]
    pub overall_code: i32,
    /// What each descriptor came to, in their order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// Headers for the client.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// Dynamic metadata for later filters of Envoy.
    #[prost(message, optional, tag = "6")]
    pub dynamic_metadata: Option<prost_types::Struct>,
}

/// Whether something passes: envoy.service.ratelimit.v3.RateLimitResponse.Code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum Code {
    /// Nobody knows.
    Unknown = 0,
    /// It does.
    Ok = 1,
    /// It does not.
    OverLimit = 2,
}

impl Code {
    /// What proto3's JSON calls it.
    pub fn as_str_name(self) -> &'static str {
        match self {
            Code::Unknown => "UNKNOWN",
            Code::Ok => "OK",
            Code::OverLimit => "OVER_LIMIT",
        }
    }
}

/// What a descriptor came to: envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DescriptorStatus {
    /// Whether it passes.
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// The limit that governs.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<RateLimit>,
    /// What remains of it.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// When it is as good as never used.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<ProtoDuration>,
}

/// A limit: envoy.service.ratelimit.v3.RateLimitResponse.RateLimit. Its name is never told.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct RateLimit {
    /// So much in each unit.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The unit.
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
}

/// The unit of a limit: envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum Unit {
    /// None of these.
    Unknown = 0,
    /// A second.
    Second = 1,
    /// A minute.
    Minute = 2,
    /// An hour.
    Hour = 3,
    /// A day.
    Day = 4,
    /// A week.
    Week = 7,
    /// A month.
    Month = 5,
    /// A year.
    Year = 6,
}

impl Unit {
    /// What proto3's JSON calls it.
    pub fn as_str_name(self) -> &'static str {
        match self {
            Unit::Unknown => "UNKNOWN",
            Unit::Second => "SECOND",
            Unit::Minute => "MINUTE",
            Unit::Hour => "HOUR",
            Unit::Day => "DAY",
            Unit::Week => "WEEK",
            Unit::Month => "MONTH",
            Unit::Year => "YEAR",
        }
    }
}

/// A header: envoy.config.core.v3.HeaderValue.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HeaderValue {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// A span of time: google.protobuf.Duration.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ProtoDuration {
    /// Whole seconds.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// What is left, in nanoseconds.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}
