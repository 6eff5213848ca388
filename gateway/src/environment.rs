//! Environment of the process.

use std::collections::HashMap;
use std::ffi::OsString;

/// Environment variables. An empty variable counts as unset.
pub struct Environment(HashMap<String, String>);

impl Environment {
    /// Creates an environment of these variables.
    pub fn new(variables: impl Iterator<Item = (OsString, OsString)>) -> Environment {
        let text = |text: OsString| text.to_string_lossy().into_owned();
        let variables = variables.map(|(name, value)| (text(name), text(value)));
        Environment(variables.filter(|(_, value)| !value.is_empty()).collect())
    }

    /// Returns the environment with these variables added. They replace variables of the same name.
    pub fn with(mut self, variables: &[(&'static str, String)]) -> Environment {
        self.0.extend(variables.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        self
    }

    /// Returns the value of a variable, if it is set.
    pub fn text(&self, variable: &str) -> Option<&str> {
        self.0.get(variable).map(String::as_str)
    }
}
