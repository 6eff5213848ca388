//! One message there and one back, as gRPC has it over HTTP/2 (the service's only kind of call): a byte that says whether
//! the message is compressed, its length in four, the message; and behind the answer the status, in trailers.

use axum::BoxError;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt as _, Collected, LengthLimitError, Limited};
use prost::Message;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::timeout;
use tonic::Status;

/// How many bytes stand before a message.
const HEAD: usize = 5;

/// The message of a request, which has so long to arrive.
///
/// # Errors
/// As what it is refused.
pub async fn read<M: Message + Default>(
    body: impl HttpBody<Data = Bytes, Error: Into<BoxError>>,
    largest: usize,
    patience: Duration,
) -> Result<M, Status> {
    // It reads no more than that.
    let read = timeout(patience, Limited::new(body, largest + HEAD).collect()).await;
    let read = read.map_err(|_| Status::deadline_exceeded("the request did not come to its end in time"))?;
    let bytes = read.map(Collected::to_bytes).map_err(|error| {
        if error.is::<LengthLimitError>() {
            Status::out_of_range(format!("the message is larger than {largest} bytes"))
        } else {
            Status::internal("the message did not come to its end")
        }
    })?;
    let Some((head, message)) = bytes.split_first_chunk::<HEAD>() else {
        return Err(Status::internal("the message is missing"));
    };
    let [compressed, length @ ..] = *head;
    if compressed != 0 {
        return Err(Status::unimplemented("the message is compressed, which was not agreed on"));
    }
    if usize::try_from(u32::from_be_bytes(length)) != Ok(message.len()) {
        return Err(Status::internal("the message is not as long as it says"));
    }
    M::decode(message).map_err(|error| Status::internal(error.to_string()))
}

/// The answer of a message, or of a refusal.
pub fn answer(told: Result<impl Message, Status>) -> Response<Body> {
    let message = match told {
        Ok(message) => message,
        Err(status) => return status.into_http(),
    };
    let length = message.encoded_len();
    let mut bytes = Vec::with_capacity(HEAD + length);
    bytes.push(0);
    bytes.extend(u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    // There is room for it.
    let _ = message.encode(&mut bytes);
    let mut response = Response::new(Body::new(Answer::Message(bytes.into())));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// What is yet to be sent.
enum Answer {
    Message(Bytes),
    Status,
    Nothing,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = if matches!(*self, Answer::Message(_)) { Answer::Status } else { Answer::Nothing };
        Poll::Ready(match std::mem::replace(&mut *self, next) {
            Answer::Message(bytes) => Some(Ok(Frame::data(bytes))),
            Answer::Status => {
                let status = HeaderValue::from_static("0");
                Some(Ok(Frame::trailers(HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), status)]))))
            }
            Answer::Nothing => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Answer::Nothing)
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Message(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Answer::Status | Answer::Nothing => SizeHint::with_exact(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{answer, read};
    use crate::proto::UInt64Value;
    use axum::body::{Body, Bytes};
    use http_body_util::BodyExt as _;
    use std::convert::Infallible;
    use std::time::Duration;
    use tonic::{Code, Status};

    #[tokio::test]
    async fn a_message_is_read_whole_or_refused() {
        for (bytes, told) in [
            (b"\0\0\0\0\x02\x08\x07".as_slice(), Ok(7)),
            (b"\0\0\0\0\0", Ok(0)),
            (b"", Err(Code::Internal)),
            (b"\0\0\0", Err(Code::Internal)),
            (b"\0\0\0\0\x03\x08\x07", Err(Code::Internal)),
            (b"\0\0\0\0\x01\x08\x07", Err(Code::Internal)),
            (b"\0\0\0\0\x01\xff", Err(Code::Internal)),
            (b"\x01\0\0\0\x02\x08\x07", Err(Code::Unimplemented)),
            (b"\0\0\0\0\x05\x08\x80\x80\x80\x01", Err(Code::OutOfRange)),
        ] {
            let read = read::<UInt64Value>(Body::from(bytes), 4, Duration::MAX).await;
            assert_eq!(read.map(|read| read.value).map_err(|status| status.code()), told, "{bytes:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_has_so_long_to_arrive() {
        let never = Body::from_stream(futures_util::stream::pending::<Result<Bytes, Infallible>>());
        let read = read::<UInt64Value>(never, 4, Duration::from_secs(10)).await;
        assert_eq!(read.map_err(|status| status.code()), Err(Code::DeadlineExceeded));
    }

    #[tokio::test]
    async fn an_answer_has_its_status_behind_it() {
        let told = answer(Ok(UInt64Value { value: 7 }));
        assert_eq!(told.headers()["content-type"], "application/grpc");
        let body = told.into_body().collect().await.unwrap();
        assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
        assert_eq!(body.to_bytes().as_ref(), b"\0\0\0\0\x02\x08\x07");
        let refused = answer(Err::<UInt64Value, _>(Status::invalid_argument("why")));
        assert_eq!(refused.headers()["grpc-status"], "3");
        assert_eq!(refused.headers()["grpc-message"], "why");
    }
}
