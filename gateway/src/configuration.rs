//! What a file says: the limits of domains as envoyproxy/ratelimit writes them, and the rules of HTTP.

mod domain;
mod format;
mod forward;
mod import;
mod source;

pub use domain::{Bound, Domain, Found, Metric};
pub use forward::{HttpRule, HttpRules};
pub use import::Imported;
pub use source::ConfigSource;

use std::collections::HashMap;

/// All that the files say.
#[derive(Debug, Default)]
pub struct Config {
    /// The domains that a file rules. All others go by the names of policies.
    pub domains: HashMap<String, Domain>,
    /// The rules of forward auth.
    pub http: HttpRules,
    /// A domain may be in several files.
    merges_domains: bool,
    /// The file of each domain.
    files: HashMap<String, String>,
}

impl Config {
    /// Creates a configuration without a file; `merges_domains` allows a domain in several files.
    #[must_use]
    pub fn new(merges_domains: bool) -> Config {
        Config { merges_domains, ..Config::default() }
    }

    /// Reads one more file, which may hold several documents.
    ///
    /// # Errors
    /// The first thing that is wrong with it, with its line.
    pub fn add(&mut self, file: &str, text: &str) -> Result<(), String> {
        for document in documents(file, text)? {
            match document {
                format::Document { domain: Some(name), descriptors, http: None, .. } => {
                    let place = |told: String| format!("{file}: {told}");
                    if name.value.is_empty() {
                        return Err(place(at(&name, "the domain must have a name")));
                    }
                    if let Some(first) = self.files.insert(name.value.clone(), file.to_owned())
                        && !self.merges_domains
                    {
                        let shown = name.value.escape_debug();
                        let told =
                            format!("the domain is there twice: {shown} is in {first} (--merge-domains allows it)");
                        return Err(place(at(&name, &told)));
                    }
                    let domain = self.domains.entry(name.value.clone()).or_default();
                    domain.add(&name.value, descriptors.unwrap_or_default()).map_err(place)?;
                }
                format::Document { domain: None, descriptors: None, http: Some(http), .. } => {
                    if self.http.is_set {
                        return Err(format!("{file}: http is there twice"));
                    }
                    self.http = HttpRules::read(http).map_err(|told| format!("{file}: {told}"))?;
                }
                _ => return Err(format!("{file}: a document must have either domain and descriptors, or http")),
            }
        }
        Ok(())
    }
}

fn documents(file: &str, text: &str) -> Result<Vec<format::Document>, String> {
    let options = serde_saphyr::options! { budget: None, with_snippet: false };
    let documents: Vec<format::Document> =
        serde_saphyr::from_multiple_with_options(text, options).map_err(|error| match manifest(text) {
            Some(kind) => format!(
                "{file}: this is a Kubernetes manifest ({}): the configuration is a text under its data, which the \
                 gateway reads as a file of its own, such as that of a volume",
                kind.escape_debug()
            ),
            None => format!("{file}: {error}"),
        })?;
    // A file that was truncated, or is written in two steps, does not ask for no limits at all.
    if documents.is_empty() {
        return Err(format!("{file}: the file has no document: it must have domain and descriptors, or http"));
    }
    Ok(documents)
}

/// Root of a Kubernetes manifest, of which a file of the gateway may be a part.
#[derive(serde::Deserialize)]
struct Manifest {
    #[serde(rename = "apiVersion")]
    _api_version: serde::de::IgnoredAny,
    kind: String,
}

/// Returns the kind of the first object if the file is a Kubernetes manifest.
fn manifest(text: &str) -> Option<String> {
    let options = serde_saphyr::options! { budget: None, with_snippet: false };
    let objects: Vec<Manifest> = serde_saphyr::from_multiple_with_options(text, options).ok()?;
    objects.into_iter().next().map(|object| object.kind)
}

/// What is wrong, and on which line.
fn at<T>(spanned: &serde_saphyr::Spanned<T>, told: &str) -> String {
    format!("line {}: {told}", spanned.defined.line())
}

#[cfg(test)]
mod tests;
