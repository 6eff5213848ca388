//! Passwords and tokens from the environment or from files. They are never on the command line, which every account of
//! the machine can read.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum size of a file with a secret, in bytes.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// Password or token. It is never empty.
#[derive(Clone)]
pub struct Secret(Source);

#[derive(Clone)]
enum Source {
    Text(String),
    File(SecretFile),
}

/// File with a secret, and the last secret that was read from it.
#[derive(Clone)]
struct SecretFile {
    variable: String,
    path: PathBuf,
    last: Arc<Mutex<LastSecret>>,
}

/// Last secret that was read from a file.
struct LastSecret {
    secret: String,
    /// `true` if a later attempt to read the file failed.
    is_stale: bool,
}

impl Secret {
    /// Returns the secret in the environment variable `name`, or in the file that `{name}_FILE` names. An empty
    /// variable counts as unset.
    ///
    /// # Errors
    /// If both variables are set, if the value is not UTF-8, or if [`Secret::read`] fails. The error does not contain
    /// the secret.
    pub fn find(name: &str) -> Result<Option<Secret>, String> {
        Secret::from_variables(name, std::env::var_os(name), std::env::var_os(format!("{name}_FILE")))
    }

    /// Creates a secret; `None` if the text is empty.
    #[must_use]
    pub fn from_text(text: String) -> Option<Secret> {
        (!text.is_empty()).then_some(Secret(Source::Text(text)))
    }

    fn from_variables(name: &str, text: Option<OsString>, file: Option<OsString>) -> Result<Option<Secret>, String> {
        let is_set = |value: &OsString| !value.is_empty();
        match (text.filter(is_set), file.filter(is_set)) {
            (None, None) => Ok(None),
            (Some(_), Some(_)) => Err(format!("{name} and {name}_FILE are both set; one must be unset")),
            (Some(text), None) => match text.into_string() {
                Ok(text) => Ok(Secret::from_text(text)),
                Err(_) => Err(format!("{name} must be UTF-8")),
            },
            (None, Some(path)) => Secret::from_file(name, PathBuf::from(path)).map(Some),
        }
    }

    /// Returns the secret in the file at `path`. Errors and log lines name the file by the variable `{name}_FILE`.
    ///
    /// # Errors
    /// Returns the errors of [`Secret::read`].
    pub fn from_file(name: &str, path: PathBuf) -> Result<Secret, String> {
        let variable = format!("{name}_FILE");
        let last = LastSecret { secret: read_file(&variable, &path)?, is_stale: false };
        Ok(Secret(Source::File(SecretFile { variable, path, last: Arc::new(Mutex::new(last)) })))
    }

    /// Returns the path of the file with the secret, if it comes from a file.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match &self.0 {
            Source::Text(_) => None,
            Source::File(file) => Some(&file.path),
        }
    }

    /// Reads the secret. A file is read at each call; trailing line breaks are removed.
    ///
    /// # Errors
    /// If the file cannot be read, is not a regular file, or is empty, too large or not UTF-8. The error names the
    /// variable and the file.
    pub fn read(&self) -> Result<String, String> {
        match &self.0 {
            Source::Text(text) => Ok(text.clone()),
            Source::File(SecretFile { variable, path, .. }) => read_file(variable, path),
        }
    }

    /// Reads the secret for a new connection. If the file cannot be read now, the last secret is returned, and the
    /// failure is logged once until the file can be read again.
    #[must_use]
    pub fn latest(&self) -> String {
        let file = match &self.0 {
            Source::Text(text) => return text.clone(),
            Source::File(file) => file,
        };
        let mut last = file.last.lock().unwrap_or_else(PoisonError::into_inner);
        match self.read() {
            Ok(secret) => *last = LastSecret { secret, is_stale: false },
            Err(why) if !last.is_stale => {
                last.is_stale = true;
                tracing::error!(why, "a secret can no longer be read; the last one is used");
            }
            Err(_) => {}
        }
        last.secret.clone()
    }
}

fn read_file(variable: &str, path: &Path) -> Result<String, String> {
    let message = |why: &dyn std::fmt::Display| format!("{variable}: {}: {why}", path.display());
    // A pipe could be read only once, but the secret is read for each connection.
    if !std::fs::metadata(path).map_err(|error| message(&error))?.is_file() {
        return Err(message(&"not a regular file"));
    }
    let mut text = String::new();
    let file = File::open(path).map_err(|error| message(&error))?;
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(|error| message(&error))?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(message(&format!("larger than {MAX_FILE_BYTES} bytes")));
    }
    if text.trim().is_empty() {
        return Err(message(&"the file is empty"));
    }
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::Secret;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt as _;
    use std::path::Path;

    fn find(text: &str, file: &Path) -> Result<Option<Secret>, String> {
        Secret::from_variables("NAME", Some(text.into()), Some(file.into()))
    }

    #[test]
    fn empty_text_is_no_secret() {
        assert!(Secret::from_text(String::new()).is_none());
    }

    #[test]
    fn empty_variable_counts_as_unset() {
        assert!(find("", Path::new("")).is_ok_and(|secret| secret.is_none()));
        assert!(Secret::from_variables("NAME", None, None).is_ok_and(|secret| secret.is_none()));
        let secret = find("s3cret", Path::new("")).unwrap().unwrap();
        assert_eq!(secret.read(), Ok("s3cret".to_owned()));
    }

    #[test]
    fn ambiguous_or_malformed_variables_are_rejected() {
        let error = find("s3cret", Path::new("/x")).err().unwrap();
        assert!(error.contains("NAME_FILE") && !error.contains("s3cret"), "{error}");
        assert!(Secret::from_variables("NAME", Some(OsString::from_vec(vec![0xff])), None).is_err());
    }

    #[test]
    fn error_names_the_file_without_a_secret() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        let large = vec![b'a'; 100_000];
        for content in [&b""[..], b"\n", b"\r\n\r\n", b" \t\n", b"\xff\n", &large] {
            std::fs::write(&file, content).unwrap();
            let error = find("", &file).err().unwrap();
            assert!(error.starts_with(&format!("NAME_FILE: {}", file.display())), "{error}");
        }
        for path in [folder.path(), &folder.path().join("missing"), Path::new("/dev/null")] {
            let error = find("", path).err().unwrap();
            assert!(error.starts_with(&format!("NAME_FILE: {}", path.display())), "{error}");
        }
    }

    #[test]
    fn unreadable_file_keeps_its_last_secret() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        std::fs::write(&file, "first \r\n").unwrap();
        let secret = find("", &file).unwrap().unwrap();
        assert_eq!(secret.latest(), "first ");
        std::fs::write(&file, "second\n").unwrap();
        assert_eq!((secret.latest(), secret.read()), ("second".to_owned(), Ok("second".to_owned())));
        for content in [Some("\n"), None] {
            content.map_or_else(|| std::fs::remove_file(&file), |content| std::fs::write(&file, content)).unwrap();
            assert!(secret.read().is_err());
            assert_eq!(secret.latest(), "second");
        }
        std::fs::write(&file, "third\n").unwrap();
        assert_eq!(secret.latest(), "third");
    }
}
