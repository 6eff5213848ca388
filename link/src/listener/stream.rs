//! Timeouts of a connection's stream: for its first bytes, and for each write.

use super::IO_TIMEOUT;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Number of bytes that must arrive in time: the length of the preface of HTTP/2. No request of HTTP/1.1 with a Host
/// header is shorter. hyper starts its own timers only after these bytes.
const FIRST_BYTES: usize = 24;

/// Stream that fails if its first bytes do not arrive in time, or if a write stays pending for too long.
pub struct TimedStream<S> {
    stream: S,
    /// Number of the first bytes that have not arrived yet.
    missing_bytes: usize,
    read_timeout: Pin<Box<Sleep>>,
    /// Timer of a pending write.
    write_timeout: Option<Pin<Box<Sleep>>>,
}

impl<S> TimedStream<S> {
    /// Wraps a stream and starts the timeout of its first bytes.
    pub fn new(stream: S) -> TimedStream<S> {
        TimedStream {
            stream,
            missing_bytes: FIRST_BYTES,
            read_timeout: Box::pin(sleep(IO_TIMEOUT)),
            write_timeout: None,
        }
    }

    /// Returns the result of a write, or an error once writes have been pending for too long.
    fn check_write_timeout<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.write_timeout = None;
            return polled;
        }
        let timeout = self.write_timeout.get_or_insert_with(|| Box::pin(sleep(IO_TIMEOUT)));
        timeout.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(context, buffer);
        if this.missing_bytes > 0 {
            if polled.is_pending() && this.read_timeout.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            this.missing_bytes = this.missing_bytes.saturating_sub(buffer.filled().len().saturating_sub(before));
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check_write_timeout(context, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        self.check_write_timeout(context, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(context);
        self.check_write_timeout(context, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.check_write_timeout(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
