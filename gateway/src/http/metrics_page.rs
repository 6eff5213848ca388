//! Page `/metrics`: rendered on a blocking thread, and cached for a while.

use crate::metrics::{control_plane, process};
use axum::body::Bytes;
use metrics_exporter_prometheus::PrometheusHandle;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Rendered metrics, which are cached for a time.
#[derive(Clone)]
pub struct MetricsPage {
    handle: PrometheusHandle,
    lifetime: Duration,
    /// Time of the last rendering, and its page.
    cached: Arc<Mutex<Option<(Instant, Bytes)>>>,
}

impl MetricsPage {
    /// Creates a page that is cached for `lifetime`.
    pub fn new(handle: PrometheusHandle, lifetime: Duration) -> MetricsPage {
        MetricsPage { handle, lifetime, cached: Arc::default() }
    }

    /// Returns the page, or `None` if it cannot be rendered.
    pub async fn page(&self) -> Option<Bytes> {
        let mut cached = Arc::clone(&self.cached).lock_owned().await;
        if let Some((rendered_at, page)) = &*cached
            && rendered_at.elapsed() < self.lifetime
        {
            return Some(page.clone());
        }
        let handle = self.handle.clone();
        // The task owns the lock: if the client disconnects, the next client waits for this rendering instead of
        // starting another.
        let task = tokio::task::spawn_blocking(move || {
            process::record();
            let page = Bytes::from(control_plane::render(&handle));
            *cached = Some((Instant::now(), page.clone()));
            page
        });
        task.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::MetricsPage;
    use metrics_exporter_prometheus::PrometheusBuilder;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn page_is_rendered_again_after_its_lifetime() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let page = MetricsPage::new(recorder.handle(), Duration::from_secs(1));
        let count_call = || metrics::with_local_recorder(&recorder, || metrics::counter!("calls").increment(1));
        count_call();
        let first = page.page().await.unwrap();
        assert!(String::from_utf8_lossy(&first).contains("calls 1"));
        count_call();
        assert_eq!(page.page().await.unwrap(), first, "the page is cached");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(String::from_utf8_lossy(&page.page().await.unwrap()).contains("calls 2"));
    }
}
