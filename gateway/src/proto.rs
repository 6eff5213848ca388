//! Messages of Envoy's rate limit service, like the code that `prost-build` generates from
//! envoy/service/ratelimit/v3/rls.proto and its imports, with only the fields that the gateway reads or writes.

use prost::{Enumeration, Message};

/// Request: envoy.service.ratelimit.v3.RateLimitRequest.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitRequest {
    /// Domain of the limits.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// Descriptors, whose limits all apply to the request.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// Cost of each descriptor that has no cost itself. 0 means 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// Descriptor: envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitDescriptor {
    /// Entries, from the most general to the most specific.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
    /// Limit that applies instead of configured limits.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RateLimitOverride>,
    /// Cost, which takes precedence over the cost of the request.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<UInt64Value>,
    /// `true` if the cost is returned instead of charged.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// Entry of a descriptor: envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Entry {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

/// Limit that a descriptor brings: envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct RateLimitOverride {
    /// Requests allowed per unit.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    #[prost(enumeration = "RateLimitUnit", tag = "2")]
    pub unit: i32,
}

/// Unit of an override: envoy.type.v3.RateLimitUnit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum RateLimitUnit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
}

impl RateLimitUnit {
    /// Returns the name in proto3's JSON.
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

    /// Parses the name in proto3's JSON.
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

/// Optional number: google.protobuf.UInt64Value.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct UInt64Value {
    #[prost(uint64, tag = "1")]
    pub value: u64,
}

/// Response: envoy.service.ratelimit.v3.RateLimitResponse.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitResponse {
    /// Decision on the request.
    #[prost(enumeration = "Code", tag = "1")]
    pub overall_code: i32,
    /// Decision on each descriptor, in order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// Headers for the client.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// Dynamic metadata for later filters of Envoy.
    #[prost(message, optional, tag = "6")]
    pub dynamic_metadata: Option<prost_types::Struct>,
}

/// Decision: envoy.service.ratelimit.v3.RateLimitResponse.Code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum Code {
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

impl Code {
    /// Returns the name in proto3's JSON.
    pub fn as_str_name(self) -> &'static str {
        match self {
            Code::Unknown => "UNKNOWN",
            Code::Ok => "OK",
            Code::OverLimit => "OVER_LIMIT",
        }
    }
}

/// Decision on a descriptor: envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DescriptorStatus {
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// Governing limit.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<RateLimit>,
    /// Units that remain under the governing limit.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// Time until the usage under the governing limit is zero.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<ProtoDuration>,
}

/// Limit: envoy.service.ratelimit.v3.RateLimitResponse.RateLimit, without its name.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct RateLimit {
    /// Requests allowed per unit.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
}

/// Unit of a limit: envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum Unit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Week = 7,
    Month = 5,
    Year = 6,
}

impl Unit {
    /// Returns the name in proto3's JSON.
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

/// Header: envoy.config.core.v3.HeaderValue.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HeaderValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

/// Duration: google.protobuf.Duration.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ProtoDuration {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Fraction of a second in nanoseconds.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}
