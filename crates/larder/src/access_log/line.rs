//! One line of the access log, as `docs/access-log.md` describes it: an object of JSON, and a line break.

use std::net::SocketAddr;
use std::time::SystemTime;

use larder_s3::FinishedRequest;
use serde::Serialize;

use crate::wall_clock::utc;

/// Version of the fields. Fields may be added to a version; none changes its meaning within one.
pub(super) const VERSION: u8 = 1;

/// The fields, in their order.
#[derive(Debug, Serialize)]
struct Line<'r> {
    v: u8,
    time: String,
    request: &'r str,
    client: String,
    client_port: u16,
    forwarded_for: Option<&'r str>,
    user: Option<&'r str>,
    op: &'static str,
    bucket: Option<&'r str>,
    key: Option<&'r str>,
    status: u16,
    code: Option<&'r str>,
    bytes_in: u64,
    bytes_out: u64,
    took_us: u64,
}

/// The line of a request that a client has sent, and that has ended now.
pub(super) fn of(ended: &FinishedRequest<'_>, client: SocketAddr, now: SystemTime) -> Vec<u8> {
    let (forwarded_for, bucket, key) = (ended.forwarded_for(), ended.bucket(), ended.key());
    written(&Line {
        v: VERSION,
        time: utc(now),
        request: &ended.id,
        client: client.ip().to_canonical().to_string(),
        client_port: client.port(),
        forwarded_for: forwarded_for.as_deref(),
        user: ended.user,
        op: ended.op,
        bucket: bucket.as_deref(),
        key: key.as_deref(),
        status: ended.status,
        code: ended.code,
        bytes_in: ended.bytes_in,
        bytes_out: ended.bytes_out,
        took_us: u64::try_from(ended.took.as_micros()).unwrap_or(u64::MAX),
    })
}

fn written(line: &Line<'_>) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(line).expect("texts and numbers are JSON");
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn line<'r>(key: Option<&'r str>) -> Line<'r> {
        Line {
            v: VERSION,
            time: utc(UNIX_EPOCH + Duration::from_millis(1_795_863_599_007)),
            request: "0123456789ABCDEF",
            client: "2001:db8::1".to_owned(),
            client_port: 50_000,
            forwarded_for: None,
            user: Some("AKEXAMPLE"),
            op: "GetObject",
            bucket: Some("photos"),
            key,
            status: 404,
            code: Some("NoSuchKey"),
            bytes_in: 0,
            bytes_out: 243,
            took_us: 1250,
        }
    }

    #[test]
    fn a_line_of_version_1_is_these_bytes() {
        let golden = "{\"v\":1,\"time\":\"2026-11-28T10:59:59.007Z\",\"request\":\"0123456789ABCDEF\",\
            \"client\":\"2001:db8::1\",\"client_port\":50000,\"forwarded_for\":null,\"user\":\"AKEXAMPLE\",\
            \"op\":\"GetObject\",\"bucket\":\"photos\",\"key\":\"a/b.jpg\",\"status\":404,\"code\":\"NoSuchKey\",\
            \"bytes_in\":0,\"bytes_out\":243,\"took_us\":1250}\n";
        assert_eq!(String::from_utf8(written(&line(Some("a/b.jpg")))).unwrap(), golden);
    }

    #[test]
    fn no_key_makes_more_than_one_line() {
        let key = "a\n{\"v\":1}\r\u{0}\"\\\u{7f}\u{2028}ä";
        let bytes = written(&line(Some(key)));
        assert_eq!(bytes.iter().filter(|byte| **byte < b' ').count(), 1, "the line's own end");
        let read: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(read["key"], key);
    }
}
