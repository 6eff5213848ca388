//! Conversion of the resources of a response to a configuration. Files with the same limits have an equal
//! configuration.

use super::messages::{
    DiscoveryResponse, RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, RateLimitUnit,
};
use crate::configuration::{Config, DescriptorEntry, RateLimitEntry, Replaces, without_line};
use crate::rls::to_json;
use prost::Message as _;
use prost_types::{Any, Struct};
use serde_json::{Map, Value};
use std::collections::HashMap;

/// Type of the resources.
pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// Reads the configuration of a response; `merges_domains` allows a domain in several resources.
///
/// # Errors
/// If a resource cannot be decoded or is malformed: the first error, with the name of the resource.
pub fn read(response: &DiscoveryResponse, merges_domains: bool) -> Result<Config, String> {
    check_type(&response.type_url)?;
    let mut config = Config::from_control_plane(merges_domains);
    for (index, resource) in response.resources.iter().enumerate() {
        let resource = decode(resource).map_err(|error| format!("resource {index}: {error}"))?;
        let name = if resource.name.is_empty() { format!("resource {index}") } else { resource.name };
        config.add_domain(&name, &without_line(resource.domain), convert_descriptors(resource.descriptors))?;
    }
    Ok(config)
}

fn decode(resource: &Any) -> Result<RateLimitConfig, String> {
    check_type(&resource.type_url)?;
    RateLimitConfig::decode(resource.value.as_slice()).map_err(|error| error.to_string())
}

fn check_type(type_url: &str) -> Result<(), String> {
    if type_url == TYPE_URL {
        return Ok(());
    }
    Err(format!("the type must be {TYPE_URL}, not '{}'", type_url.escape_debug()))
}

fn convert_descriptors(descriptors: Vec<RateLimitDescriptor>) -> Vec<DescriptorEntry> {
    merge(descriptors).into_iter().map(convert_descriptor).collect()
}

/// Merges descriptors with the same key and value, unless both have a limit: such a duplicate is reported as an error
/// later. Envoy Gateway sends a descriptor for each rule on a network: a rule for the whole network, and a rule for
/// each address in it.
fn merge(descriptors: Vec<RateLimitDescriptor>) -> Vec<RateLimitDescriptor> {
    let mut merged: Vec<RateLimitDescriptor> = Vec::with_capacity(descriptors.len());
    let mut indexes: HashMap<(String, String), usize> = HashMap::new();
    for mut descriptor in descriptors {
        let index = *indexes.entry((descriptor.key.clone(), descriptor.value.clone())).or_insert(merged.len());
        match merged.get_mut(index) {
            Some(first) if first.rate_limit.is_none() || descriptor.rate_limit.is_none() => {
                // The merged descriptor has the options of the descriptor with the limit.
                if descriptor.rate_limit.is_some() {
                    std::mem::swap(first, &mut descriptor);
                }
                first.descriptors.append(&mut descriptor.descriptors);
            }
            _ => merged.push(descriptor),
        }
    }
    merged
}

fn convert_descriptor(descriptor: RateLimitDescriptor) -> DescriptorEntry {
    DescriptorEntry {
        key: without_line(descriptor.key),
        value: descriptor.value,
        rate_limit: descriptor.rate_limit.map(convert_limit),
        descriptors: Some(convert_descriptors(descriptor.descriptors)),
        shadow_mode: descriptor.shadow_mode,
        quota_mode: descriptor.quota_mode,
        share_threshold: false,
        detailed_metric: descriptor.detailed_metric,
        value_to_metric: false,
        metadata: descriptor.metadata.as_ref().map(convert_metadata),
    }
}

fn convert_limit(policy: RateLimitPolicy) -> RateLimitEntry {
    let replaces = |RateLimitReplace { name }| Some(Replaces { name: Some(name) });
    RateLimitEntry {
        unit: Some(without_line(unit_name(policy.unit))),
        requests_per_unit: Some(policy.requests_per_unit),
        unlimited: policy.unlimited,
        name: policy.name,
        replaces: policy.replaces.into_iter().map(replaces).collect(),
        ..RateLimitEntry::default()
    }
}

/// Returns the name of a unit as in files, or the number of an unknown unit.
fn unit_name(number: i32) -> String {
    RateLimitUnit::try_from(number).map_or_else(|_| number.to_string(), |unit| format!("{unit:?}").to_lowercase())
}

fn convert_metadata(metadata: &Struct) -> Map<String, Value> {
    match to_json(metadata) {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests;
