//! Detection of changed files by their metadata.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Metadata of files: device, inode, size and modification time. Two stamps differ if a file changed between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileStamp(Vec<(PathBuf, [i64; 5])>);

impl FileStamp {
    /// Reads the metadata of these files. Symbolic links are followed, and missing files are left out.
    #[must_use]
    pub fn read(files: impl IntoIterator<Item = PathBuf>) -> FileStamp {
        let metadata = |path: &Path| {
            let data = fs::metadata(path).ok()?;
            let (device, inode) = (data.dev().cast_signed(), data.ino().cast_signed());
            Some([device, inode, data.size().cast_signed(), data.mtime(), data.mtime_nsec()])
        };
        FileStamp(files.into_iter().filter_map(|file| metadata(&file).map(|metadata| (file, metadata))).collect())
    }
}
