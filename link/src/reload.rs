//! Files that are read again when they change, and at SIGHUP.

use crate::file_stamp::Stamp;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

/// How often the files are looked at.
const EACH: Duration = Duration::from_secs(1);

/// Metric that counts files that were read again: `true` if they are right.
pub type Count = fn(bool);

/// What stands in files.
pub trait Reloaded: Send + Sync + 'static {
    /// What the log calls it.
    fn name(&self) -> &'static str;

    /// What is seen of the files.
    fn stamp(&self) -> Stamp;

    /// Reads them and goes by them from now on.
    ///
    /// # Errors
    /// What is wrong with them: then all stays as it was.
    fn read(&self) -> Result<(), String>;
}

/// Reads files, and again when they look otherwise. Wrong ones are refused as a whole then, and what they said before
/// holds. A thread of its own reads: a large file takes a while, and a network's may take long.
///
/// # Errors
/// What is wrong with them now.
pub fn begin(files: Arc<dyn Reloaded>, count: Count) -> Result<(), String> {
    // Before they are read: what changes meanwhile is read again.
    let mut stamp = files.stamp();
    files.read()?;
    let mut hangup = signal(SignalKind::hangup()).map_err(|error| error.to_string())?;
    tokio::spawn(async move {
        loop {
            let at_once = tokio::select! {
                () = sleep(EACH) => false,
                _ = hangup.recv() => true,
            };
            let (files, before) = (Arc::clone(&files), stamp.clone());
            let looked = tokio::task::spawn_blocking(move || {
                let now = files.stamp();
                if now != before || at_once {
                    let read = files.read();
                    count(read.is_ok());
                    tell(files.name(), read);
                }
                now
            });
            if let Ok(now) = looked.await {
                stamp = now;
            }
        }
    });
    Ok(())
}

fn tell(what: &str, read: Result<(), String>) {
    match read {
        Ok(()) => tracing::info!(what, "files were read again"),
        Err(why) => tracing::error!(what, why, "files are wrong, and what they said before holds"),
    }
}
