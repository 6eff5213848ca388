//! Bodies of requests, whose bytes are charged to a budget, and of responses, whose progress is observed.

use super::budget::Charge;
use super::stalls::Progress;
use axum::BoxError;
use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Maximum size of a chunk of a response, in bytes. hyper receives a large response in chunks, each of which shows that
/// the peer still reads.
const CHUNK: usize = 16 * 1024;

/// Request body that fails once the requests in flight together exceed a byte budget.
pub struct RequestBody {
    body: Incoming,
    charge: Arc<Charge>,
}

impl RequestBody {
    /// Wraps a body, whose bytes are added to `charge`.
    pub fn new(body: Incoming, charge: Arc<Charge>) -> RequestBody {
        RequestBody { body, charge }
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context)?);
        if let Some(data) = frame.as_ref().and_then(Frame::data_ref)
            && !self.charge.add(data.len())
        {
            return Poll::Ready(Some(Err("too many bytes are in flight".into())));
        }
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Response body that holds the charge of its request until hyper has received the whole response.
pub struct ResponseBody {
    body: Body,
    /// Data of the handler that hyper has not received yet.
    unsent: Bytes,
    progress: Progress,
    _charge: Option<Arc<Charge>>,
}

impl ResponseBody {
    /// Wraps a body, which hyper receives in chunks. Each chunk is reported to `progress`.
    pub fn new(body: Body, progress: Progress, charge: Option<Arc<Charge>>) -> ResponseBody {
        ResponseBody { body, unsent: Bytes::new(), progress, _charge: charge }
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        if this.unsent.is_empty() {
            let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) else {
                this.progress.record_wait_for_handler();
                return Poll::Pending;
            };
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => this.unsent = data,
                Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        this.progress.record_wait_for_peer();
        let length = this.unsent.len().min(CHUNK);
        Poll::Ready(Some(Ok(Frame::data(this.unsent.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.unsent.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (unsent, body) = (self.unsent.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        if let Some(upper) = body.upper() {
            hint.set_upper(upper.saturating_add(unsent));
        }
        hint.set_lower(body.lower().saturating_add(unsent));
        hint
    }
}
