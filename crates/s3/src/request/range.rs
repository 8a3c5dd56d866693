//! Finds the bytes of an object that a request means.

use std::ops::Range as Bytes;

use http::{HeaderMap, HeaderValue};
use larder_types::PartRef;
use s3s::dto::Range;
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::head::Line;
use crate::errors::elements::{self, invalid_argument};
use crate::errors::{custom, error};

/// Bytes of an object, and whether the answer says that they are a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    /// The bytes.
    pub(crate) bytes: Bytes<u64>,
    /// True if a range or a part was asked for: 206.
    pub(crate) partial: bool,
}

impl Span {
    /// The whole object.
    pub(crate) fn whole(size: u64) -> Self {
        Self { bytes: 0..size, partial: false }
    }

    /// `Content-Range`, of a partial answer. An empty object's only part has none.
    pub(crate) fn content_range(&self, size: u64) -> Option<String> {
        let Bytes { start, end } = self.bytes;
        (self.partial && start < end).then(|| format!("bytes {start}-{}/{size}", end - 1))
    }

    /// The number of bytes.
    pub(crate) fn len(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }
}

/// A `Range` header. One that is none, or means several ranges, is ignored.
///
/// # Errors
/// `InvalidRequest` if there are several lines.
pub(crate) fn of_line(line: &Line<'_>) -> S3Result<Option<Range>> {
    let text = line.value()?.and_then(|value| value.to_str().ok());
    Ok(text.and_then(|text| Range::parse(text).ok()))
}

/// The bytes that a `Range` header means.
///
/// # Errors
/// `InvalidRange` if the object has none of them.
pub(crate) fn of_header(range: Option<&Range>, size: u64) -> S3Result<Span> {
    let Some(range) = range else { return Ok(Span::whole(size)) };
    match range.check(size) {
        Ok(bytes) if bytes.start < bytes.end => Ok(Span { bytes, partial: true }),
        _ => Err(elements::with(not_satisfiable(size), [("RangeRequested", text(range))])),
    }
}

/// The bytes of one part. An object that was not uploaded in parts is its own part 1.
///
/// # Errors
/// `InvalidPartNumber` if there is no such part.
pub(crate) fn of_part(parts: &[PartRef], size: u64, number: i32) -> S3Result<Span> {
    if parts.is_empty() && number == 1 {
        return Ok(Span { bytes: 0..size, partial: true });
    }
    let mut start = 0;
    for part in parts {
        let end = start + part.len;
        if i32::from(part.number) == number {
            return Ok(Span { bytes: start..end, partial: true });
        }
        start = end;
    }
    let refused = custom(
        "InvalidPartNumber",
        http::StatusCode::RANGE_NOT_SATISFIABLE,
        "The requested partnumber is not satisfiable".to_owned(),
    );
    let count = parts.len().max(1).to_string();
    let numbers = [("PartNumberRequested", number.to_string()), ("ActualPartCount", count)];
    Err(elements::with(refused, numbers))
}

/// A range as a header has it.
fn text(range: &Range) -> String {
    match range {
        Range::Int { first, last: Some(last) } => format!("bytes={first}-{last}"),
        Range::Int { first, last: None } => format!("bytes={first}-"),
        Range::Suffix { length } => format!("bytes=-{length}"),
    }
}

/// The header that names the bytes of a copy's source.
const COPY_RANGE: &str = "x-amz-copy-source-range";

/// The bytes that an `x-amz-copy-source-range` header means: both ends are given and lie inside.
///
/// # Errors
/// `InvalidArgument` for any other form, `InvalidRange` for a range that ends outside.
pub(crate) fn of_copy_source(header: &str, size: u64) -> S3Result<Bytes<u64>> {
    let Ok(Range::Int { first, last: Some(last) }) = Range::parse(header) else {
        let message = "The x-amz-copy-source-range value must be of the form bytes=first-last where first \
                       and last are the zero-based offsets of the first and last bytes to copy";
        return Err(invalid_argument(message, COPY_RANGE, header));
    };
    if last >= size {
        let message = format!("Range specified is not valid for source object of size: {size}");
        let argument =
            [("ArgumentName", COPY_RANGE.to_owned()), ("ArgumentValue", header.to_owned())];
        return Err(elements::with(error(S3ErrorCode::InvalidRange, message), argument));
    }
    Ok(first..last + 1)
}

fn not_satisfiable(size: u64) -> S3Error {
    let mut refused = error(S3ErrorCode::InvalidRange, "The requested range is not satisfiable");
    let mut headers = HeaderMap::with_capacity(2);
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    if let Ok(range) = HeaderValue::try_from(format!("bytes */{size}")) {
        headers.insert(http::header::CONTENT_RANGE, range);
    }
    refused.set_headers(headers);
    elements::with(refused, [("ActualObjectSize", size.to_string())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::head::lines;

    fn range(header: &str, size: u64) -> Option<Bytes<u64>> {
        of_header(Some(&Range::parse(header).unwrap()), size).ok().map(|span| span.bytes)
    }

    #[test]
    fn headers_mean_the_bytes_that_exist() {
        assert_eq!(range("bytes=0-0", 10), Some(0..1));
        assert_eq!(range("bytes=2-5", 10), Some(2..6));
        assert_eq!(range("bytes=5-", 10), Some(5..10));
        assert_eq!(range("bytes=5-99", 10), Some(5..10));
        assert_eq!(range("bytes=-3", 10), Some(7..10));
        assert_eq!(range("bytes=-99", 10), Some(0..10));
        for (header, size) in [
            ("bytes=10-", 10),
            ("bytes=-0", 10),
            ("bytes=0-", 0),
            ("bytes=-1", 0),
            ("bytes=40-50", 5),
        ] {
            assert_eq!(range(header, size), None, "{header} of {size}");
        }
        assert_eq!(of_header(None, 7).unwrap(), Span::whole(7));
    }

    #[test]
    fn what_is_no_single_range_is_ignored() {
        let read = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(http::header::RANGE, HeaderValue::from_static(value));
            }
            of_line(&lines(&headers).next().unwrap())
        };
        assert_eq!(read(&["bytes=5-"]).unwrap(), Some(Range::Int { first: 5, last: None }));
        for none in ["bytes=0-1,3-4", "bytes=5-1", "lines=0-1", "bytes=", ""] {
            assert_eq!(read(&[none]).unwrap(), None, "{none}");
        }
        assert!(read(&["bytes=0-1", "bytes=0-1"]).is_err());
    }

    #[test]
    fn a_refused_range_gets_the_objects_size() {
        let refused = of_header(Some(&Range::Suffix { length: 0 }), 10).unwrap_err();
        assert_eq!(refused.headers().unwrap()["content-range"], "bytes */10");
    }

    #[test]
    fn parts_lie_one_after_the_other() {
        let parts = [PartRef { number: 2, len: 10 }, PartRef { number: 5, len: 3 }];
        assert_eq!(of_part(&parts, 13, 2).unwrap().bytes, 0..10);
        let last = of_part(&parts, 13, 5).unwrap();
        assert_eq!(last.content_range(13).as_deref(), Some("bytes 10-12/13"));
        assert!(of_part(&parts, 13, 1).is_err());
        assert_eq!(of_part(&[], 13, 1).unwrap().bytes, 0..13);
        assert!(of_part(&[], 13, 2).is_err());
        assert_eq!(of_part(&[], 0, 1).unwrap().content_range(0), None);
    }

    #[test]
    fn a_copy_range_names_both_ends_inside_the_source() {
        assert_eq!(of_copy_source("bytes=0-4", 5).unwrap(), 0..5);
        let code = |header| of_copy_source(header, 5).unwrap_err().code().clone();
        assert_eq!(code("bytes=0-5"), S3ErrorCode::InvalidRange);
        for header in
            ["0-4", "bytes=0", "bytes=-4", "bytes=hello-world", "bytes=0-bar", "bytes=4-1"]
        {
            assert_eq!(code(header), S3ErrorCode::InvalidArgument, "{header}");
        }
    }
}
