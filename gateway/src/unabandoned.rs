//! A future that comes to its end, whoever waits for it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::runtime::Handle;

/// A future that goes on as a task of its own once nobody waits for it any more. Until then it is a part of the task that
/// waits, which costs less than one for each.
pub struct Unabandoned<F>(Option<Pin<Box<F>>>)
where
    F: Future + Send + 'static,
    F::Output: Send;

impl<F> Unabandoned<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    /// Of a future that is begun when this is polled first.
    pub fn new(future: F) -> Unabandoned<F> {
        Unabandoned(Some(Box::pin(future)))
    }
}

impl<F> Future for Unabandoned<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // One that panics is not there any more, and does not go on.
        let Some(mut future) = self.0.take() else { return Poll::Pending };
        let polled = future.as_mut().poll(context);
        if polled.is_pending() {
            self.0 = Some(future);
        }
        polled
    }
}

impl<F> Drop for Unabandoned<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn drop(&mut self) {
        if let Some(future) = self.0.take()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(future);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Unabandoned;
    use std::task::Poll;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn what_nobody_waits_for_comes_to_its_end() {
        let (go, gone) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let mut future = Box::pin(Unabandoned::new(async {
            gone.await.unwrap();
            end.send(()).unwrap();
        }));
        assert!(std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await);
        drop(future);
        go.send(()).unwrap();
        ended.await.unwrap();
    }
}
