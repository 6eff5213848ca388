//! Files of the page, embedded into the binary from console/page.

use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use rust_embed::RustEmbed;

#[derive(RustEmbed)]
#[folder = "page/"]
struct ConsoleFiles;

/// Returns a file of the page by its path.
pub async fn file(uri: Uri, headers: HeaderMap) -> Response {
    let path = uri.path().trim_start_matches('/');
    let path = if path.is_empty() { "index.html" } else { path };
    let Some(file) = ConsoleFiles::get(path) else {
        return (StatusCode::NOT_FOUND, "there is no such page\n").into_response();
    };
    let hash = u128::from_be_bytes(file.metadata.sha256_hash().first_chunk().copied().unwrap_or_default());
    let tag = format!("\"{hash:032x}\"");
    // The browser revalidates each file, so that the page of a new version never runs with modules of an old one.
    let is_cached = headers.get(header::IF_NONE_MATCH).is_some_and(|cached| cached.as_bytes() == tag.as_bytes());
    let mut response =
        if is_cached { StatusCode::NOT_MODIFIED.into_response() } else { file.data.into_owned().into_response() };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type(path)));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    response
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}
