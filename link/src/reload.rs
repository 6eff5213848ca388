//! Reloading of files when they change, and at SIGHUP.

use crate::file_stamp::FileStamp;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

/// Interval between two checks of the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Function that counts reloads. Its argument is `true` if the reload succeeded.
pub type ReloadCounter = fn(bool);

/// Content of files that can be reloaded.
pub trait Reloadable: Send + Sync + 'static {
    /// Returns the name for log lines.
    fn name(&self) -> &'static str;

    /// Returns the current metadata of the files.
    fn stamp(&self) -> FileStamp;

    /// Reads the files and replaces the previous content.
    ///
    /// # Errors
    /// If a file cannot be read or is malformed. The previous content stays in use.
    fn read(&self) -> Result<(), String>;
}

/// Reads files now, and reloads them whenever they change and at SIGHUP. If a reload fails, the previous content stays
/// in use. Reloads run on a blocking thread, because a large or remote file takes long to read.
///
/// # Errors
/// If the first read fails.
pub fn load_and_watch(files: Arc<dyn Reloadable>, count: ReloadCounter) -> Result<(), String> {
    // The stamp is taken before the read, so that a change during the read causes a reload.
    let mut stamp = files.stamp();
    files.read()?;
    let mut hangup = signal(SignalKind::hangup()).map_err(|error| error.to_string())?;
    tokio::spawn(async move {
        loop {
            let is_forced = tokio::select! {
                () = sleep(CHECK_INTERVAL) => false,
                _ = hangup.recv() => true,
            };
            let (files, previous_stamp) = (Arc::clone(&files), stamp.clone());
            let check = tokio::task::spawn_blocking(move || {
                let current_stamp = files.stamp();
                if current_stamp != previous_stamp || is_forced {
                    let result = files.read();
                    count(result.is_ok());
                    log_reload(files.name(), result);
                }
                current_stamp
            });
            if let Ok(current_stamp) = check.await {
                stamp = current_stamp;
            }
        }
    });
    Ok(())
}

/// Logs the result of a reload. The field `what` names the files.
fn log_reload(what: &str, result: Result<(), String>) {
    match result {
        Ok(()) => tracing::info!(what, "files were read again"),
        Err(why) => tracing::error!(what, why, "files are wrong, and what they said before holds"),
    }
}
