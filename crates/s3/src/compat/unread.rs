//! Headers that S3 takes in forms which the protocol library refuses. They are put right once the request was let in: the
//! signature covers them as they came.
//!
//! | header | in a form the library refuses |
//! |---|---|
//! | conditions of a copy with a date | obsolete forms of HTTP's dates are read, anything else is ignored |
//! | conditions with entity tags | what is none matches nothing |
//! | `Expires` | kept as it came |

use std::time::SystemTime;

use http::{Extensions, HeaderMap, HeaderName, HeaderValue};
use s3s::dto::{ETagCondition, Timestamp, TimestampFormat};
use s3s::{S3ErrorCode, S3Result};

use crate::errors::error;
use crate::request::attributes::OddExpires;

/// The form that the library reads a header's value in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Date,
    EntityTags,
    Expires,
}

impl Kind {
    /// `None` for headers that are left alone.
    fn of(name: &HeaderName) -> Option<Self> {
        Some(match name.as_str() {
            "x-amz-copy-source-if-modified-since" | "x-amz-copy-source-if-unmodified-since" => {
                Self::Date
            }
            "if-match"
            | "if-none-match"
            | "x-amz-copy-source-if-match"
            | "x-amz-copy-source-if-none-match" => Self::EntityTags,
            "expires" => Self::Expires,
            _ => return None,
        })
    }

    /// Tells if the library reads the value. An empty one it takes for none.
    fn is_read(self, value: &HeaderValue) -> bool {
        let text = value.to_str();
        let date = |text: &str| Timestamp::parse(TimestampFormat::HttpDate, text).is_ok();
        match self {
            _ if value.is_empty() => true,
            Self::Date => text.is_ok_and(date),
            Self::EntityTags => ETagCondition::parse_http_header(value.as_bytes()).is_ok(),
            // Bytes that are no text cannot be stored, and are left for the library to refuse.
            Self::Expires => text.map_or(true, date),
        }
    }

    /// The value as the library reads it; `None` to have it ignored.
    fn mended(self, value: &HeaderValue) -> Option<HeaderValue> {
        match self {
            Self::Expires => None,
            Self::Date => {
                let date: SystemTime = httpdate::parse_http_date(value.to_str().ok()?).ok()?;
                HeaderValue::try_from(httpdate::fmt_http_date(date)).ok()
            }
            // In quotes it is read as a list of tags, of which each that is none is no object's.
            Self::EntityTags => {
                let text = value.to_str().unwrap_or_default();
                HeaderValue::try_from(format!("\"{text}\"")).ok()
            }
        }
    }
}

fn unread(name: &HeaderName, value: &HeaderValue) -> Option<Kind> {
    Kind::of(name).filter(|kind| !kind.is_read(value))
}

/// Refuses metadata on which the library panics, which ends the process: a text that begins and ends as an encoded word
/// (RFC 2047), of which a word has no inside.
///
/// # Errors
/// `InvalidArgument` names the header.
pub(crate) fn check_metadata(headers: &HeaderMap) -> S3Result<()> {
    let panics = |value: &HeaderValue| {
        let text = std::str::from_utf8(value.as_bytes()).unwrap_or_default().trim();
        let is_word = text.starts_with("=?") && text.ends_with("?=");
        is_word && text.split_whitespace().any(|word| word == "=?=")
    };
    let is_metadata = |name: &HeaderName| name.as_str().starts_with("x-amz-meta-");
    match headers.iter().find(|(name, value)| is_metadata(name) && panics(value)) {
        Some((name, value)) => {
            let message = format!("invalid header: {name}: {value:?}");
            Err(error(S3ErrorCode::InvalidArgument, message))
        }
        None => Ok(()),
    }
}

/// Puts right what the library would refuse. A header that stands there twice is left for it to refuse.
pub(crate) fn mend(headers: &mut HeaderMap, extensions: &mut Extensions) {
    let odd = |(name, value)| unread(name, value).map(|kind| (name.clone(), kind));
    let odd: Vec<(HeaderName, Kind)> = headers.iter().filter_map(odd).collect();
    for (name, kind) in odd {
        if headers.get_all(&name).iter().nth(1).is_some() {
            continue;
        }
        let Some(value) = headers.remove(&name) else { continue };
        if let (Kind::Expires, Ok(text)) = (kind, value.to_str()) {
            extensions.insert(OddExpires(text.to_owned()));
        }
        if let Some(value) = kind.mended(&value) {
            headers.insert(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mended(name: &'static str, value: &'static str) -> (Option<String>, bool) {
        let (mut headers, mut extensions) = (HeaderMap::new(), Extensions::new());
        headers.insert(name, value.parse().unwrap());
        mend(&mut headers, &mut extensions);
        let text = headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        (text, extensions.get::<OddExpires>().is_some())
    }

    #[test]
    fn headers_that_can_be_read_are_left_to_the_library() {
        let date = "Wed, 21 Oct 2015 07:28:00 GMT";
        for (name, value) in [
            ("x-amz-copy-source-if-modified-since", date),
            ("if-match", "\"a\""),
            ("if-match", "*"),
            ("if-none-match", "W/\"a\", \"b\""),
            ("x-amz-copy-source-if-modified-since", ""),
            ("expires", date),
            ("range", "lines=0-1"),
        ] {
            let kept = Some(value.to_owned());
            assert_eq!(mended(name, value), (kept, false), "{name}: {value}");
        }
    }

    #[test]
    fn headers_that_cannot_be_read_are_put_right() {
        let (since, until) =
            ("x-amz-copy-source-if-modified-since", "x-amz-copy-source-if-unmodified-since");
        let date = Some("Sun, 06 Nov 1994 08:49:37 GMT".to_owned());
        for form in ["Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(mended(since, form), (date.clone(), false));
        }
        assert_eq!(mended(until, "soon"), (None, false));
        assert_eq!(mended("expires", "0"), (None, true));
        let quoted = Some("\"a_b, c\"".to_owned());
        assert_eq!(mended("if-match", "a_b, c"), (quoted, false));
    }

    #[test]
    fn metadata_on_which_the_library_panics_is_refused() {
        for (name, value, passes) in [
            ("x-amz-meta-a", "=?=", false),
            ("x-amz-meta-a", "=?= =?UTF-8?B?w6Q=?=", false),
            ("x-amz-meta-a", "=?UTF-8?B?w6Q=?=", true),
            ("x-amz-meta-a", "a =?= b", true),
            ("x-amz-meta-a", "=??=", true),
            ("x-amz-tagging", "=?=", true),
        ] {
            let headers = HeaderMap::from_iter([(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )]);
            assert_eq!(check_metadata(&headers).is_ok(), passes, "{name}: {value}");
        }
    }

    #[test]
    fn a_header_that_stands_there_twice_is_left_to_be_refused() {
        let (mut headers, mut extensions) = (HeaderMap::new(), Extensions::new());
        headers.append("if-match", "a_b".parse().unwrap());
        headers.append("if-match", "\"c\"".parse().unwrap());
        mend(&mut headers, &mut extensions);
        assert_eq!(headers.get_all("if-match").iter().count(), 2);
    }
}
