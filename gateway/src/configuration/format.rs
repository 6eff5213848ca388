//! The words of the files. Unknown ones are refused.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_saphyr::Spanned;
use std::collections::BTreeMap;

/// One document: a domain, or the rules of HTTP.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    pub domain: Option<Spanned<String>>,
    pub descriptors: Option<Vec<DescriptorEntry>>,
    pub http: Option<HttpSection>,
}

/// An entry of a descriptor, and what may stand below it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools, reason = "the words of the file")]
pub struct DescriptorEntry {
    pub key: Spanned<String>,
    #[serde(default)]
    pub value: String,
    pub rate_limit: Option<RateLimitEntry>,
    #[serde(default)]
    pub descriptors: Option<Vec<DescriptorEntry>>,
    #[serde(default)]
    pub shadow_mode: bool,
    #[serde(default)]
    pub quota_mode: bool,
    #[serde(default)]
    pub share_threshold: bool,
    #[serde(default)]
    pub detailed_metric: bool,
    #[serde(default)]
    pub value_to_metric: bool,
    #[serde(default, rename = "metadata")]
    pub _metadata: Option<IgnoredAny>,
}

/// What is allowed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimitEntry {
    pub unit: Option<Spanned<String>>,
    pub requests_per_unit: Option<u32>,
    #[serde(default)]
    pub unlimited: bool,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub replaces: Vec<Replaces>,
    pub policy: Option<OneOrMore>,
    pub limit: Option<Spanned<String>>,
    #[serde(default, rename = "metadata")]
    pub _metadata: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replaces {
    pub name: String,
}

/// A name, or a list of them.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl OneOrMore {
    pub fn into_vec(self) -> Vec<String> {
        match self {
            OneOrMore::One(name) => vec![name],
            OneOrMore::More(names) => names,
        }
    }
}

/// The rules of forward auth.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpSection {
    pub trusted: Option<Vec<Spanned<String>>>,
    pub rules: Option<Vec<RuleEntry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleEntry {
    pub method: Option<OneOrMore>,
    pub path: Option<String>,
    #[serde(default)]
    pub header: BTreeMap<String, String>,
    pub policy: Option<OneOrMore>,
    pub limit: Option<Spanned<String>>,
    pub key: Spanned<String>,
    pub cost: Option<Spanned<String>>,
}
