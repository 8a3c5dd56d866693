//! Clears a connection of a body that nobody reads, so that the next request can come on it or its client sees the answer.

use http::header::CONNECTION;
use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};

use super::activity::Working;
use crate::limits::{UNREAD_BYTES_MAX, UNREAD_TIMEOUT};

/// Clears a connection of a body that is not read any more. A short rest is dropped as it arrives, while the client
/// reads the response, and the connection stays open. With a longer one it closes, and lingers so that the client gets
/// the response.
pub(crate) fn clear(body: Incoming, headers: &mut HeaderMap, working: &Working) {
    let closes = headers.get(CONNECTION).is_some_and(|value| value == "close");
    let unread = body.size_hint().exact().filter(|bytes| !closes && *bytes <= UNREAD_BYTES_MAX);
    let Some(unread) = unread else {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        working.linger();
        return;
    };
    working.leave_unread(unread);
    // It ends with the connection, which has one at most.
    tokio::spawn(tokio::time::timeout(UNREAD_TIMEOUT, async move {
        let mut body = body;
        while let Some(Ok(_dropped)) = body.frame().await {}
    }));
}
