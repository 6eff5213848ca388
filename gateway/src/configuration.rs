//! Configuration by files or by a control plane: the limits of domains in the format of envoyproxy/ratelimit. Files
//! also have the rules of forward auth.

mod domain;
mod dump;
mod format;
mod forward;
mod import;
mod source;

pub use domain::{Domain, MatchedRule, MetricName, RuleLimit};
pub use format::{DescriptorEntry, RateLimitEntry, Replaces};
pub use forward::{HttpRule, HttpRules};
pub use import::ImportedPolicies;
pub use source::ConfigSource;

use serde_saphyr::{Location, Spanned};
use std::collections::HashMap;

/// Content of all configuration files, or of all resources of a control plane.
#[derive(Debug, Default)]
pub struct Config {
    /// Rules by domain. Policies of the server apply to all other domains.
    pub domains: HashMap<String, Domain>,
    /// `true` if a file has a domain, or if a control plane has sent its configuration, even one without domains.
    pub covers_domains: bool,
    /// Rules of forward auth.
    pub http: HttpRules,
    /// `true` if a domain may be in several files or resources.
    merges_domains: bool,
    /// File or resource of each domain.
    sources: HashMap<String, String>,
}

impl Config {
    /// Creates an empty configuration for files; `merges_domains` allows a domain in several files.
    #[must_use]
    pub fn new(merges_domains: bool) -> Config {
        Config { merges_domains, ..Config::default() }
    }

    /// Creates an empty configuration for a control plane; `merges_domains` allows a domain in several resources.
    #[must_use]
    pub fn from_control_plane(merges_domains: bool) -> Config {
        Config { covers_domains: true, ..Config::new(merges_domains) }
    }

    /// Adds the content of a file, which may have several documents.
    ///
    /// # Errors
    /// If the file is malformed: its first error, with the file and, if the error is at a value, its line.
    pub fn add(&mut self, file: &str, text: &str) -> Result<(), String> {
        for document in parse_documents(file, text)? {
            match document {
                format::Document { domain: Some(name), descriptors, http: None, .. } => {
                    self.add_domain(file, &name, descriptors.unwrap_or_default())?;
                }
                format::Document { domain: None, descriptors: None, http: Some(http), .. } => {
                    if self.http.is_set {
                        return Err(format!("{file}: http is there twice"));
                    }
                    self.http = HttpRules::new(http).map_err(|error| format!("{file}: {error}"))?;
                }
                _ => return Err(format!("{file}: a document must have either domain and descriptors, or http")),
            }
        }
        Ok(())
    }

    /// Adds a domain. `source` is the name of its file or resource.
    ///
    /// # Errors
    /// If the name is empty, if the domain was added before and domains are not merged, or if a descriptor is malformed:
    /// the first error, with the source.
    pub fn add_domain(
        &mut self,
        source: &str,
        name: &Spanned<String>,
        descriptors: Vec<DescriptorEntry>,
    ) -> Result<(), String> {
        let in_source = |error: String| format!("{source}: {error}");
        if name.value.is_empty() {
            return Err(in_source(at_line(name, "the domain must have a name")));
        }
        if let Some(first) = self.sources.insert(name.value.clone(), source.to_owned())
            && !self.merges_domains
        {
            let escaped_name = name.value.escape_debug();
            let error = format!("the domain is there twice: {escaped_name} is in {first} (--merge-domains allows it)");
            return Err(in_source(at_line(name, &error)));
        }
        self.covers_domains = true;
        let domain = self.domains.entry(name.value.clone()).or_default();
        domain.add(&name.value, descriptors).map_err(in_source)
    }
}

/// Wraps a value that comes from no file, so that errors about it name no line.
#[must_use]
pub fn without_line<T>(value: T) -> Spanned<T> {
    Spanned::new(value, Location::UNKNOWN, Location::UNKNOWN)
}

/// Parses the documents of a file.
fn parse_documents(file: &str, text: &str) -> Result<Vec<format::Document>, String> {
    let options = serde_saphyr::options! { budget: None, with_snippet: false };
    let documents: Vec<format::Document> =
        serde_saphyr::from_multiple_with_options(text, options).map_err(|error| match manifest_kind(text) {
            Some(kind) => format!(
                "{file}: this is a Kubernetes manifest ({}): the configuration is a text under its data, which the \
                 gateway reads as a file of its own, such as that of a volume",
                kind.escape_debug()
            ),
            None => format!("{file}: {error}"),
        })?;
    // An empty file is more likely truncated or not yet written than intended to remove all limits.
    if documents.is_empty() {
        return Err(format!("{file}: the file has no document: it must have domain and descriptors, or http"));
    }
    Ok(documents)
}

/// Root object of a Kubernetes manifest.
#[derive(serde::Deserialize)]
struct Manifest {
    #[serde(rename = "apiVersion")]
    _api_version: serde::de::IgnoredAny,
    kind: String,
}

/// Returns the kind of the first object if the file is a Kubernetes manifest.
fn manifest_kind(text: &str) -> Option<String> {
    let options = serde_saphyr::options! { budget: None, with_snippet: false };
    let objects: Vec<Manifest> = serde_saphyr::from_multiple_with_options(text, options).ok()?;
    objects.into_iter().next().map(|object| object.kind)
}

/// Returns an error message with the line of a value, if it is in a file.
fn at_line<T>(spanned: &Spanned<T>, error: &str) -> String {
    if spanned.defined == Location::UNKNOWN {
        return error.to_owned();
    }
    format!("line {}: {error}", spanned.defined.line())
}

#[cfg(test)]
mod tests;
