//! Messages of xDS and of the configurations of envoyproxy/ratelimit, like the code that `prost-build` generates from
//! `envoy/service/discovery/v3/discovery.proto` and `ratelimit/config/ratelimit/v3/rls_conf.proto`, with only the
//! fields that the gateway reads or writes.

use prost::{Enumeration, Message};

/// Subscription, ACK or NACK: envoy.service.discovery.v3.DiscoveryRequest.
#[derive(Clone, PartialEq, Message)]
pub struct DiscoveryRequest {
    /// Version of the last accepted response. Empty in the first request of a stream.
    #[prost(string, tag = "1")]
    pub version_info: String,
    #[prost(message, optional, tag = "2")]
    pub node: Option<Node>,
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// Nonce of the response that is accepted or refused.
    #[prost(string, tag = "5")]
    pub response_nonce: String,
    /// Reason for refusing the response.
    #[prost(message, optional, tag = "6")]
    pub error_detail: Option<Status>,
}

/// Client of a control plane: envoy.config.core.v3.Node.
#[derive(Clone, PartialEq, Message)]
pub struct Node {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, optional, tag = "3")]
    pub metadata: Option<prost_types::Struct>,
    #[prost(string, tag = "6")]
    pub user_agent_name: String,
    #[prost(string, tag = "7")]
    pub user_agent_version: String,
}

/// Error: google.rpc.Status.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Status {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
}

/// All resources of a type: envoy.service.discovery.v3.DiscoveryResponse.
#[derive(Clone, PartialEq, Message)]
pub struct DiscoveryResponse {
    #[prost(string, tag = "1")]
    pub version_info: String,
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<prost_types::Any>,
    #[prost(string, tag = "4")]
    pub type_url: String,
    #[prost(string, tag = "5")]
    pub nonce: String,
}

/// Configuration of a domain: ratelimit.config.ratelimit.v3.RateLimitConfig.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitConfig {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub domain: String,
    #[prost(message, repeated, tag = "3")]
    pub descriptors: Vec<RateLimitDescriptor>,
}

/// Entry of a descriptor: ratelimit.config.ratelimit.v3.RateLimitDescriptor.
#[derive(Clone, PartialEq, Message)]
#[allow(clippy::struct_excessive_bools, reason = "the fields of the protocol")]
pub struct RateLimitDescriptor {
    #[prost(string, tag = "1")]
    pub key: String,
    /// Value of the entry. Empty for every value.
    #[prost(string, tag = "2")]
    pub value: String,
    #[prost(message, optional, tag = "3")]
    pub rate_limit: Option<RateLimitPolicy>,
    /// Entries that may follow this entry.
    #[prost(message, repeated, tag = "4")]
    pub descriptors: Vec<RateLimitDescriptor>,
    #[prost(bool, tag = "5")]
    pub shadow_mode: bool,
    #[prost(bool, tag = "6")]
    pub detailed_metric: bool,
    #[prost(bool, tag = "7")]
    pub quota_mode: bool,
    /// Metadata in the response to Envoy.
    #[prost(message, optional, tag = "8")]
    pub metadata: Option<prost_types::Struct>,
}

/// Limit of a descriptor: ratelimit.config.ratelimit.v3.RateLimitPolicy.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RateLimitPolicy {
    #[prost(enumeration = "RateLimitUnit", tag = "1")]
    pub unit: i32,
    #[prost(uint32, tag = "2")]
    pub requests_per_unit: u32,
    #[prost(bool, tag = "3")]
    pub unlimited: bool,
    /// Name by which other limits replace this limit.
    #[prost(string, tag = "4")]
    pub name: String,
    #[prost(message, repeated, tag = "5")]
    pub replaces: Vec<RateLimitReplace>,
}

/// Reference to another limit: ratelimit.config.ratelimit.v3.RateLimitReplace.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RateLimitReplace {
    #[prost(string, tag = "1")]
    pub name: String,
}

/// Unit of a limit: ratelimit.config.ratelimit.v3.RateLimitUnit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum RateLimitUnit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Week = 7,
    Month = 5,
    Year = 6,
}
