//! Where the configuration is: a file, or a directory of them.

use super::{Config, Imported};
use crate::file_stamp::FileStamp;
use std::fs;
use std::path::PathBuf;

/// A file or a directory.
#[derive(Clone, Debug)]
pub struct ConfigSource {
    path: PathBuf,
    merges_domains: bool,
}

impl ConfigSource {
    /// Creates the source of a path; `merges_domains` allows a domain in several files.
    #[must_use]
    pub fn new(path: PathBuf, merges_domains: bool) -> ConfigSource {
        ConfigSource { path, merges_domains }
    }

    /// The files: of a directory those that end in `.yaml` or `.yml`, by name.
    fn files(&self) -> Result<Vec<PathBuf>, String> {
        let told = |error: std::io::Error| format!("{}: {error}", self.path.display());
        if !fs::metadata(&self.path).map_err(told)?.is_dir() {
            return Ok(vec![self.path.clone()]);
        }
        let entries = fs::read_dir(&self.path).map_err(told)?.collect::<Result<Vec<_>, _>>().map_err(told)?;
        let is_yaml = |path: &PathBuf| path.extension().is_some_and(|end| end == "yaml" || end == "yml");
        let mut files: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).filter(is_yaml).collect();
        files.sort();
        // A directory that is filled yet, or was mounted empty, does not ask for no limits at all.
        if files.is_empty() {
            return Err(format!("{}: the directory has no file that ends in .yaml or .yml", self.path.display()));
        }
        Ok(files)
    }

    /// Reads all of it.
    ///
    /// # Errors
    /// The first thing that is wrong, with the file and the line.
    pub fn read(&self) -> Result<Config, String> {
        let mut config = Config::new(self.merges_domains);
        self.read_into(&mut config)?;
        Ok(config)
    }

    /// Reads several as one configuration, as if all their files were in one directory.
    ///
    /// # Errors
    /// The first thing that is wrong, with the file and the line.
    pub fn read_together(paths: Vec<PathBuf>, merges_domains: bool) -> Result<Config, String> {
        let mut config = Config::new(merges_domains);
        paths.into_iter().try_for_each(|path| ConfigSource::new(path, merges_domains).read_into(&mut config))?;
        Ok(config)
    }

    fn read_into(&self, config: &mut Config) -> Result<(), String> {
        self.each(|file, text| config.add(file, text))
    }

    /// What it says as policies.
    ///
    /// # Errors
    /// The first thing that is wrong, with the file and the line.
    pub fn imported(&self) -> Result<Imported, String> {
        // Together they may be wrong where each is right.
        self.read()?;
        let mut imported = Imported::default();
        self.each(|file, text| imported.add(file, text))?;
        Ok(imported)
    }

    fn each(&self, mut read: impl FnMut(&str, &str) -> Result<(), String>) -> Result<(), String> {
        for file in self.files()? {
            let name = file.display();
            let bytes = fs::read(&file).map_err(|error| format!("{name}: {error}"))?;
            let text = String::from_utf8(bytes).map_err(|_| format!("{name}: it must be UTF-8"))?;
            read(&name.to_string(), &text)?;
        }
        Ok(())
    }

    /// What is seen of the files now.
    #[must_use]
    pub fn stamp(&self) -> FileStamp {
        FileStamp::read(self.files().unwrap_or_default())
    }
}
