//! Secrets come from the environment or from a file, never from the command line, which every account can read.

/// Returns the secret in the environment variable `name`, or in the file that `{name}_FILE` names.
///
/// # Errors
/// If the file cannot be read.
pub fn secret(name: &str) -> Result<Option<String>, String> {
    if let Ok(file) = std::env::var(format!("{name}_FILE")) {
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{name}_FILE: {file}: {error}"))?;
        return Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()));
    }
    Ok(std::env::var(name).ok().filter(|secret| !secret.is_empty()))
}
