use super::*;
use axum::body::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::{Stream, stream};
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io::Write as _;
use std::pin::Pin;
use std::task::Poll;
use tower::ServiceExt as _;

const LINES: &str = "1700000000 a 1\n1700000001 a 1\n";

fn upload(
    router: &Router,
    log: impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static,
) -> Pin<Box<dyn Future<Output = Response>>> {
    let request = Request::post("/api/replay?limit=FIXED%201%201h").body(Body::from_stream(log)).unwrap();
    let router = router.clone();
    Box::pin(async move { router.oneshot(request).await.unwrap() })
}

fn complete(log: impl Into<Bytes>) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    let log = log.into();
    stream::once(async move { Ok(log) })
}

/// Returns an endless upload with a line every `seconds` seconds.
fn trickle(seconds: u64) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    stream::unfold((), move |()| async move {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        Some((Ok(Bytes::from_static(b"1700000000 a 1\n")), ()))
    })
}

fn stalled(log: &'static str) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    complete(log).chain(stream::pending())
}

async fn is_pending(response: &mut (impl Future + Unpin)) -> bool {
    poll_fn(|context| Poll::Ready(Pin::new(&mut *response).poll(context).is_pending())).await
}

async fn body(response: Response) -> (StatusCode, String) {
    let status = response.status();
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(bytes.into()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn stalled_upload_ends_after_the_pause_and_a_slow_one_at_the_deadline() {
    let started = Instant::now();
    let router = bounded_routes(BOUNDS);
    assert_eq!(upload(&router, stalled(LINES)).await.status(), StatusCode::REQUEST_TIMEOUT);
    assert_eq!(started.elapsed().as_secs(), BOUNDS.pause.as_secs());
    assert_eq!(upload(&router, trickle(1)).await.status(), StatusCode::REQUEST_TIMEOUT);
    assert_eq!(started.elapsed().as_secs(), (BOUNDS.pause + BOUNDS.upload).as_secs());
}

#[tokio::test]
async fn stalled_uploads_do_not_block_others() {
    let router = bounded_routes(BOUNDS);
    let mut waiting: Vec<_> = (0..100).map(|_| upload(&router, stalled(LINES))).collect();
    for response in &mut waiting {
        assert!(is_pending(response).await);
    }
    assert_eq!(upload(&router, complete(LINES)).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn bytes_of_all_logs_are_bounded_until_their_uploads_end() {
    let router = bounded_routes(Bounds { all_logs: LINES.len() + 10, ..BOUNDS });
    let mut first = upload(&router, stalled(LINES));
    assert!(is_pending(&mut first).await);
    let rejected = upload(&router, complete(LINES)).await;
    assert_eq!(rejected.headers().get(header::RETRY_AFTER).unwrap(), "10");
    assert_eq!(rejected.status(), StatusCode::SERVICE_UNAVAILABLE);
    drop(first);
    for _ in 0..3 {
        assert_eq!(upload(&router, complete(LINES)).await.status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn log_is_bounded_with_gzip_and_without() {
    let router = bounded_routes(Bounds { log: 10_000, uncompressed: 20_000, ..BOUNDS });
    let zipped = |lines: usize| {
        let mut gzip = GzEncoder::new(vec![], Compression::best());
        gzip.write_all(LINES.repeat(lines).as_bytes()).unwrap();
        gzip.finish().unwrap()
    };
    assert_eq!(upload(&router, complete(LINES.repeat(300))).await.status(), StatusCode::OK);
    assert_eq!(upload(&router, complete(LINES.repeat(400))).await.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(upload(&router, complete(zipped(600))).await.status(), StatusCode::OK);
    let (status, error) = body(upload(&router, complete(zipped(100_000))).await).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(error.contains("the log is longer than"), "{error}");
}

#[tokio::test]
async fn request_without_a_limit_is_rejected_as_json() {
    let request = Request::post("/api/replay").body(Body::from(LINES)).unwrap();
    let (status, text) = body(bounded_routes(BOUNDS).oneshot(request).await.unwrap()).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let error: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(error["error"].as_str().unwrap().contains("limit"), "{text}");
}

#[tokio::test]
async fn empty_parameters_mean_the_defaults() {
    for empty in ["", "&goal=&late=&key=&time=&cost=&trusted=&ipv6_prefix="] {
        let request =
            Request::post(format!("/api/replay?limit=FIXED%201%201h{empty}")).body(Body::from(LINES)).unwrap();
        let (status, text) = body(bounded_routes(BOUNDS).oneshot(request).await.unwrap()).await;
        assert_eq!(status, StatusCode::OK, "{empty} {text}");
    }
}

#[tokio::test]
async fn work_of_a_replay_is_bounded() {
    // Two lines, two evaluations under the limit, and two more under each candidate.
    for (work, expected) in [(3, StatusCode::BAD_REQUEST), (5, StatusCode::BAD_REQUEST), (1000, StatusCode::OK)] {
        let router = bounded_routes(Bounds { work, ..BOUNDS });
        let (status, error) = body(upload(&router, complete(LINES)).await).await;
        assert_eq!(status, expected, "{work} {error}");
        assert_eq!(error.contains("more work than the page does"), status == StatusCode::BAD_REQUEST, "{error}");
    }
}

#[test]
fn dropped_guard_ends_the_work() {
    let work = WorkBudget::new(1000);
    let cancel = work.cancel_on_drop();
    assert!(work.spend(1).is_ok());
    drop(cancel);
    assert_eq!((work.left(), work.spend(1).is_err()), (0, true));
}
