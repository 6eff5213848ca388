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
}

impl Config {
    /// Reads one more file, which may hold several documents.
    ///
    /// # Errors
    /// The first thing that is wrong with it, with its line.
    pub fn add(&mut self, file: &str, text: &str) -> Result<(), String> {
        for document in documents(file, text)? {
            match document {
                format::Document { domain: Some(name), descriptors, http: None } => {
                    let place = |told: String| format!("{file}: {told}");
                    if name.value.is_empty() {
                        return Err(place(at(&name, "the domain must have a name")));
                    }
                    let domain = Domain::read(&name.value, descriptors.unwrap_or_default()).map_err(place)?;
                    if self.domains.insert(name.value.clone(), domain).is_some() {
                        return Err(place(at(&name, "the domain is there twice")));
                    }
                }
                format::Document { domain: None, descriptors: None, http: Some(http) } => {
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
        serde_saphyr::from_multiple_with_options(text, options).map_err(|error| format!("{file}: {error}"))?;
    // A file that was truncated, or is written in two steps, does not ask for no limits at all.
    if documents.is_empty() {
        return Err(format!("{file}: the file has no document: it must have domain and descriptors, or http"));
    }
    Ok(documents)
}

/// What is wrong, and on which line.
fn at<T>(spanned: &serde_saphyr::Spanned<T>, told: &str) -> String {
    format!("line {}: {told}", spanned.defined.line())
}

#[cfg(test)]
mod tests;
