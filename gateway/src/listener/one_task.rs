//! The requests of an HTTP/2 connection, answered by the task of the connection.
//!
//! A task for each costs more than most answers do: it is made, woken on another thread than the connection's, and both
//! then contend for the connection's lock.

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

type Stream = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The streams that a connection has begun and its task has not seen yet.
#[derive(Clone, Default)]
pub struct Streams(Arc<Mutex<Vec<Stream>>>);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, stream: F) {
        // A panic ends its own stream alone, as it does in a task.
        let stream = AssertUnwindSafe(stream).catch_unwind().map(drop);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(stream));
    }
}

impl Streams {
    /// Carries a connection on to its end, and meanwhile its streams. What it hands over to [`execute`] is a stream.
    ///
    /// [`execute`]: hyper::rt::Executor::execute
    pub async fn served<C: Future>(self, connection: C) -> C::Output {
        let mut connection = pin!(connection);
        let mut streams = FuturesUnordered::new();
        poll_fn(|context| {
            let polled = connection.as_mut().poll(context);
            if polled.is_pending() {
                streams.extend(self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..));
                // An answer wakes this task, so that the connection sends it.
                while let Poll::Ready(Some(())) = streams.poll_next_unpin(context) {}
            }
            polled
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::Streams;
    use hyper::rt::Executor as _;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn streams_go_on_side_by_side_and_beside_one_that_panics() {
        let streams = Streams::default();
        let (first, later) = oneshot::channel();
        let (last, end) = oneshot::channel();
        streams.execute(async move {
            later.await.unwrap();
            last.send(()).unwrap();
        });
        streams.execute(async { panic!("expected by the test") });
        let more = streams.clone();
        let connection = async move {
            tokio::task::yield_now().await;
            more.execute(async move { first.send(()).unwrap() });
            end.await.unwrap();
        };
        streams.served(connection).await;
    }
}
