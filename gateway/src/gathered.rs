//! A stream whose writes go together.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that writes once the tasks that are ready have had their turn: what they have to say goes along, in one call
/// of the system. The runtime would wake whoever writes after each of them, for a write of its own.
pub struct Gathered<S> {
    stream: S,
    /// Whether the others have had their turn since the last flush.
    waited: bool,
}

impl<S> Gathered<S> {
    /// Of a stream that is flushed when all is written that was there to write.
    pub fn new(stream: S) -> Gathered<S> {
        Gathered { stream, waited: false }
    }

    fn wait(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.waited {
            return Poll::Ready(());
        }
        self.waited = true;
        // A task that wakes itself is put behind those that are ready.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gathered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gathered<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        std::task::ready!(self.wait(context));
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.waited = false;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.wait(context));
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::Gathered;
    use std::io;
    use std::pin::Pin;
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Poll};
    use std::time::Duration;
    use tokio::io::{AsyncWrite, AsyncWriteExt as _, BufWriter};
    use tokio::sync::mpsc;

    /// Remembers each write.
    #[derive(Clone, Default)]
    struct Writes(Arc<Mutex<Vec<Vec<u8>>>>);

    impl AsyncWrite for Writes {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.0.lock().unwrap().push(bytes.to_vec());
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    // One thread, on which whoever is woken is next in turn.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn what_is_said_meanwhile_goes_along() {
        let wrote = Writes::default();
        let mut stream = BufWriter::new(Gathered::new(wrote.clone()));
        let (say, mut said) = mpsc::unbounded_channel();
        let writer = tokio::spawn(async move {
            while let Some(byte) = said.recv().await {
                stream.write_all(&[byte]).await.unwrap();
                loop {
                    tokio::select! {
                        biased;
                        Some(byte) = said.recv() => stream.write_all(&[byte]).await.unwrap(),
                        flushed = stream.flush() => break flushed.unwrap(),
                    }
                }
            }
        });
        for times in 1..=2 {
            let say = say.clone();
            tokio::spawn(async move {
                for byte in b'a'..=b'e' {
                    let say = say.clone();
                    tokio::spawn(async move { say.send(byte).unwrap() });
                }
            });
            while wrote.0.lock().unwrap().iter().map(Vec::len).sum::<usize>() < 5 * times {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        drop(say);
        writer.await.unwrap();
        assert_eq!(wrote.0.lock().unwrap().iter().map(Vec::len).collect::<Vec<_>>(), [5, 5]);
    }
}
