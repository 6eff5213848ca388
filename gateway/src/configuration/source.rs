//! Location of the configuration: a file, or a directory of files.

use super::{Config, ImportedPolicies};
use crate::file_stamp::FileStamp;
use std::fs;
use std::path::PathBuf;

/// File or directory with the configuration.
#[derive(Clone, Debug)]
pub struct ConfigSource {
    path: PathBuf,
    merges_domains: bool,
}

impl ConfigSource {
    /// Creates a source from a path; `merges_domains` allows a domain in several files.
    #[must_use]
    pub fn new(path: PathBuf, merges_domains: bool) -> ConfigSource {
        ConfigSource { path, merges_domains }
    }

    /// Returns the files, sorted by name. In a directory, hidden files and files that do not end in `.yaml` or `.yml`
    /// are ignored.
    fn files(&self) -> Result<Vec<PathBuf>, String> {
        let in_path = |error: std::io::Error| format!("{}: {error}", self.path.display());
        if !fs::metadata(&self.path).map_err(in_path)?.is_dir() {
            return Ok(vec![self.path.clone()]);
        }
        let entries = fs::read_dir(&self.path).map_err(in_path)?.collect::<Result<Vec<_>, _>>().map_err(in_path)?;
        let is_yaml = |path: &PathBuf| {
            let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            !is_hidden && path.extension().is_some_and(|end| end == "yaml" || end == "yml")
        };
        let mut files: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).filter(is_yaml).collect();
        files.sort();
        // An empty directory is more likely not filled yet, or mounted wrongly, than intended to remove all limits.
        if files.is_empty() {
            return Err(format!("{}: the directory has no file that ends in .yaml or .yml", self.path.display()));
        }
        Ok(files)
    }

    /// Reads the configuration.
    ///
    /// # Errors
    /// If a file is missing or malformed: the first error, with the file and the line.
    pub fn read(&self) -> Result<Config, String> {
        let mut config = Config::new(self.merges_domains);
        self.read_into(&mut config)?;
        Ok(config)
    }

    /// Reads several paths as one configuration, as if all their files were in one directory.
    ///
    /// # Errors
    /// Returns the errors of [`ConfigSource::read`].
    pub fn read_together(paths: Vec<PathBuf>, merges_domains: bool) -> Result<Config, String> {
        let mut config = Config::new(merges_domains);
        paths.into_iter().try_for_each(|path| ConfigSource::new(path, merges_domains).read_into(&mut config))?;
        Ok(config)
    }

    fn read_into(&self, config: &mut Config) -> Result<(), String> {
        self.for_each_file(|file, text| config.add(file, text))
    }

    /// Converts the configuration to policies.
    ///
    /// # Errors
    /// Returns the errors of [`ConfigSource::read`].
    pub fn import(&self) -> Result<ImportedPolicies, String> {
        // Reports conflicts between files, such as a domain in two files.
        self.read()?;
        let mut imported = ImportedPolicies::default();
        self.for_each_file(|file, text| imported.add(file, text))?;
        Ok(imported)
    }

    fn for_each_file(&self, mut read: impl FnMut(&str, &str) -> Result<(), String>) -> Result<(), String> {
        for file in self.files()? {
            let name = file.display();
            let bytes = fs::read(&file).map_err(|error| format!("{name}: {error}"))?;
            let text = String::from_utf8(bytes).map_err(|_| format!("{name}: it must be UTF-8"))?;
            read(&name.to_string(), &text)?;
        }
        Ok(())
    }

    /// Returns the current metadata of the files.
    #[must_use]
    pub fn stamp(&self) -> FileStamp {
        FileStamp::read(self.files().unwrap_or_default())
    }
}
