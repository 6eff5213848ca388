//! What is seen of files without reading them.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// What is seen of files: another one stands there once any of them has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamp(Vec<(PathBuf, [i64; 5])>);

impl Stamp {
    /// Of these files now, links followed; nothing of those that are not there.
    #[must_use]
    pub fn of(files: impl IntoIterator<Item = PathBuf>) -> Stamp {
        let seen = |path: &Path| {
            let data = fs::metadata(path).ok()?;
            let (device, file) = (data.dev().cast_signed(), data.ino().cast_signed());
            Some([device, file, data.size().cast_signed(), data.mtime(), data.mtime_nsec()])
        };
        Stamp(files.into_iter().filter_map(|file| seen(&file).map(|seen| (file, seen))).collect())
    }
}
