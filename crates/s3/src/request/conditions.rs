//! Conditions of requests. Those of puts and deletes are handed to the store, which decides them
//! with the change; those of reads and of copies' sources are decided here, on what was opened.

use std::time::{Duration, UNIX_EPOCH};

use http::header::{
    CONTENT_RANGE, HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE,
};
use http::{HeaderMap, HeaderValue};
use larder_types::{Condition, EtagList, HybridClock, Metax};
use s3s::dto::{ETag, ETagCondition, Timestamp, TimestampFormat};
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::head::Line;
use super::operation::{Operation, S3Operation};
use crate::errors::elements::{self, invalid_argument};
use crate::errors::error;

/// A header that lists entity tags. What is none matches nothing.
///
/// # Errors
/// `InvalidRequest` if there are several lines.
pub(crate) fn of_line(line: &Line<'_>) -> S3Result<Option<ETagCondition>> {
    let Some(value) = line.value()? else { return Ok(None) };
    let odd = || {
        // As a tag it is read as a list of tags, of which each that is none is no object's.
        ETagCondition::ETag(ETag::Strong(value.to_str().unwrap_or_default().to_owned()))
    };
    Ok(Some(ETagCondition::parse_http_header(value.as_bytes()).unwrap_or_else(|_| odd())))
}

/// Refuses conditions of a request that would change something, of which its operation knows nothing or which say nothing, and a
/// body that is a part of the object. Passed over, they would have it overwritten against the client's will.
///
/// # Errors
/// `NotImplemented` names the header; `InvalidArgument` for a condition that is no text, or empty.
pub(crate) fn check_of_write(operation: Operation, headers: &HeaderMap) -> S3Result<()> {
    const OF_WRITES: [HeaderName; 5] =
        [IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE, CONTENT_RANGE];
    let known: &[HeaderName] = match operation {
        Operation::S3(
            S3Operation::CompleteMultipartUpload | S3Operation::CopyObject | S3Operation::PutObject,
        ) => &[IF_MATCH, IF_NONE_MATCH],
        Operation::S3(S3Operation::DeleteObject) => &[IF_MATCH],
        _ => &[],
    };
    // Operations read these whatever they are, and take what is empty for what is not there.
    const OF_S3: [&str; 8] = [
        "x-amz-copy-source-if-match",
        "x-amz-copy-source-if-modified-since",
        "x-amz-copy-source-if-none-match",
        "x-amz-copy-source-if-unmodified-since",
        "x-amz-if-match-initiated-time",
        "x-amz-if-match-last-modified-time",
        "x-amz-if-match-size",
        "x-amz-write-offset-bytes",
    ];
    for (name, value) in headers {
        let of_s3 = OF_S3.contains(&name.as_str());
        if !of_s3 && !OF_WRITES.contains(name) {
            continue;
        }
        if !of_s3 && !known.contains(name) {
            let message = "A header you provided implies functionality that is not implemented";
            let refused = error(S3ErrorCode::NotImplemented, message);
            return Err(elements::with(refused, [("Header", name.to_string())]));
        }
        if value.is_empty() || !of_s3 && value.to_str().is_err() {
            let message = format!("invalid header: {name}: {value:?}");
            let value = String::from_utf8_lossy(value.as_bytes());
            return Err(invalid_argument(message, name.as_str(), &value));
        }
    }
    Ok(())
}

/// A date of a condition: obsolete forms of HTTP's dates are read, anything else is ignored.
///
/// # Errors
/// `InvalidRequest` if there are several lines.
pub(crate) fn date_of_line(line: &Line<'_>) -> S3Result<Option<Timestamp>> {
    let text = line.value()?.and_then(|value| value.to_str().ok());
    Ok(text.and_then(|text| {
        let exact = Timestamp::parse(TimestampFormat::HttpDate, text).ok();
        exact.or_else(|| httpdate::parse_http_date(text).ok().map(Timestamp::from))
    }))
}

/// The entity tags that a header lists.
pub(crate) fn etags(header: &ETagCondition) -> EtagList {
    match header {
        ETagCondition::Any => EtagList::Any,
        // A list is kept as one tag; its quotes are at the list's ends.
        ETagCondition::ETag(tag) => EtagList::Of(
            tag.value()
                .split(',')
                .map(|tag| tag.trim().trim_start_matches("W/").trim_matches('"').to_owned())
                .collect(),
        ),
    }
}

/// The condition of a put.
pub(crate) fn of_write(
    if_match: Option<&ETagCondition>,
    if_none_match: Option<&ETagCondition>,
) -> Condition {
    // Some clients put the star in quotes. No object has such a tag: taken for one, it would never keep a put off.
    let tags = |header: &ETagCondition| match etags(header) {
        EtagList::Of(tags) if tags.iter().any(|tag| tag == "*") => EtagList::Any,
        tags => tags,
    };
    Condition {
        if_match: if_match.map(tags),
        if_none_match: if_none_match.map(tags),
        ..Condition::default()
    }
}

/// The header of a change's condition, if there is one alone.
pub(crate) fn only(condition: &Condition) -> Option<&'static str> {
    match (&condition.if_match, &condition.if_none_match) {
        (Some(_), None) => Some("If-Match"),
        (None, Some(_)) => Some("If-None-Match"),
        _ => None,
    }
}

/// A refusal by the store that names the condition which does not hold.
pub(crate) fn named(refused: S3Error, header: Option<&'static str>) -> S3Error {
    match header {
        Some(header) if *refused.code() == S3ErrorCode::PreconditionFailed => {
            elements::with(refused, [("Condition", header.to_owned())])
        }
        _ => refused,
    }
}

/// Conditions of a read.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ReadConditions {
    pub(crate) if_match: Option<ETagCondition>,
    pub(crate) if_none_match: Option<ETagCondition>,
    pub(crate) if_modified_since: Option<Timestamp>,
    pub(crate) if_unmodified_since: Option<Timestamp>,
}

impl ReadConditions {
    /// True if there are none.
    pub(crate) fn are_none(&self) -> bool {
        self.if_match.is_none()
            && self.if_none_match.is_none()
            && self.if_modified_since.is_none()
            && self.if_unmodified_since.is_none()
    }
}

/// The reason that a read's conditions do not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unmet {
    /// 412: the condition of this header.
    Failed(&'static str),
    /// 304 to a read, 412 to a copy.
    NotModified,
}

/// A time in the whole seconds that HTTP's dates have.
pub(crate) fn whole_seconds(clock: HybridClock) -> Timestamp {
    Timestamp::from(UNIX_EPOCH + Duration::from_secs(clock.ms() / 1000))
}

/// The time at which a version was made.
fn modified(metax: &Metax) -> Timestamp {
    whole_seconds(metax.clock)
}

/// Tells if an `If-Range` names this version: by its entity tag, which is strong, or by exactly its date. What is neither
/// names no version.
pub(crate) fn is_version(if_range: &HeaderValue, metax: &Metax) -> bool {
    let Ok(text) = if_range.to_str().map(str::trim) else { return false };
    if let Some(tag) = text.strip_prefix('"') {
        return tag.strip_suffix('"').is_some_and(|tag| tag == metax.etag.text());
    }
    httpdate::parse_http_date(text).is_ok_and(|date| Timestamp::from(date) == modified(metax))
}

impl ReadConditions {
    /// Decides in HTTP's order: entity tags come before dates, and a date counts only where its
    /// entity-tag counterpart is absent.
    ///
    /// # Errors
    /// [`Unmet`].
    pub(crate) fn check(&self, metax: &Metax) -> Result<(), Unmet> {
        let holds = |header: &ETagCondition| match etags(header) {
            EtagList::Any => true,
            EtagList::Of(tags) => tags.contains(&metax.etag.text()),
        };
        if let Some(header) = &self.if_match {
            if !holds(header) {
                return Err(Unmet::Failed("If-Match"));
            }
        } else if let Some(date) = &self.if_unmodified_since
            && modified(metax) > *date
        {
            return Err(Unmet::Failed("If-Unmodified-Since"));
        }
        if let Some(header) = &self.if_none_match {
            if holds(header) {
                return Err(Unmet::NotModified);
            }
        } else if let Some(date) = &self.if_modified_since
            && modified(metax) <= *date
        {
            return Err(Unmet::NotModified);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use larder_types::{Attributes, ETag, HybridClock, RegionId};

    use super::*;
    use crate::request::head::lines;

    const TAG: &str = "\"abababababababababababababababab\"";

    fn metax() -> Metax {
        Metax {
            size: 1,
            clock: HybridClock::at_ms(1_000_900),
            region: RegionId(0),
            etag: ETag::Md5([0xab; 16]),
            checksum: None,
            attributes: Attributes::default(),
            expires_ms: None,
            encryption: None,
            retention: None,
        }
    }

    fn tag(text: &str) -> Option<ETagCondition> {
        Some(ETagCondition::parse_http_header(text.as_bytes()).unwrap())
    }

    fn at(seconds: u64) -> Option<Timestamp> {
        Some(Timestamp::from(UNIX_EPOCH + Duration::from_secs(seconds)))
    }

    #[test]
    fn entity_tags_come_before_dates() {
        let other = tag("\"x\"");
        let (same, none) = (tag(TAG), None);
        let failed = |header| Err(Unmet::Failed(header));
        let (mismatch, changed) = (failed("If-Match"), failed("If-Unmodified-Since"));
        let not_modified = Err(Unmet::NotModified);
        // if-match, if-unmodified-since, if-none-match, if-modified-since
        for (index, (a, b, c, d, expected)) in [
            (none.clone(), None, none.clone(), None, Ok(())),
            (same.clone(), None, none.clone(), None, Ok(())),
            (other.clone(), None, none.clone(), None, mismatch),
            (same.clone(), at(1), none.clone(), None, Ok(())),
            (none.clone(), at(999), none.clone(), None, changed),
            (none.clone(), at(1000), none.clone(), None, Ok(())),
            (none.clone(), None, same.clone(), None, not_modified),
            (none.clone(), None, other.clone(), None, Ok(())),
            (none.clone(), None, other.clone(), at(5000), Ok(())),
            (none.clone(), None, none.clone(), at(1000), not_modified),
            (none.clone(), None, none.clone(), at(999), Ok(())),
            (other.clone(), None, same.clone(), None, mismatch),
            (tag("*"), None, none.clone(), None, Ok(())),
            (none.clone(), None, tag("*"), None, not_modified),
        ]
        .into_iter()
        .enumerate()
        {
            let conditions = ReadConditions {
                if_match: a,
                if_unmodified_since: b,
                if_none_match: c,
                if_modified_since: d,
            };
            assert_eq!(conditions.check(&metax()), expected, "case {index}");
        }
    }

    #[test]
    fn a_range_is_of_the_version_that_is_named() {
        let is = |text: &str| is_version(&text.parse().unwrap(), &metax());
        assert!(is(TAG) && is("Thu, 01 Jan 1970 00:16:40 GMT"));
        assert!(is("Thursday, 01-Jan-70 00:16:40 GMT"), "an obsolete form of the same date");
        for other in [
            "\"x\"",
            &format!("W/{TAG}"),
            TAG.trim_matches('"'),
            "Thu, 01 Jan 1970 00:16:41 GMT",
            "Thu, 01 Jan 1970 00:16:39 GMT",
            "*",
            "",
            "\"",
        ] {
            assert!(!is(other), "{other}");
        }
    }

    #[test]
    fn headers_are_read_in_the_forms_that_s3_takes() {
        let headers = |value: &[u8]| {
            let value = HeaderValue::from_bytes(value).unwrap();
            http::HeaderMap::from_iter([(http::header::IF_MATCH, value)])
        };
        let tags = |value: &[u8]| of_line(&lines(&headers(value)).next().unwrap()).unwrap();
        assert_eq!(tags(TAG.as_bytes()), tag(TAG));
        assert_eq!(tags(b"*"), tag("*"));
        assert_eq!(tags(b""), None);
        let odd = tags(b"a_b, \"c\"").unwrap();
        assert_eq!(etags(&odd), EtagList::Of(vec!["a_b".to_owned(), "c".to_owned()]));
        assert_eq!(etags(&tags(b"\xff").unwrap()), EtagList::Of(vec![String::new()]));
        let date =
            |text: &str| date_of_line(&lines(&headers(text.as_bytes())).next().unwrap()).unwrap();
        for form in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(date(form), at(784_111_777), "{form}");
        }
        assert!(date("Sun, 06 Nov 1960 08:49:37 GMT").is_some());
        assert_eq!((date("soon"), date("")), (None, None));
    }

    #[test]
    fn a_list_of_tags_is_read_as_a_list() {
        let list = tag(&format!("\"x\", W/{TAG}, \"y\"")).unwrap();
        let EtagList::Of(tags) = etags(&list) else { panic!("a list") };
        assert_eq!(tags, ["x", TAG.trim_matches('"'), "y"]);
        assert_eq!(etags(&ETagCondition::Any), EtagList::Any);
    }
}
