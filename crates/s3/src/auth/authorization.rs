//! The form of a signature of version 4, in a header or in a query. The protocol library takes any name for the scheme, and
//! calls what it cannot read an invalid request; S3 says what is malformed.
//!
//! Dates, those of forms too, are checked to be digits before the library reads them. It subtracts `0` from a byte before it
//! looks at it, and builds that check arithmetic end there.

use http::{HeaderMap, HeaderName, HeaderValue};
use s3s::{S3Error, S3ErrorCode};

use crate::errors::error;

/// Names the region that a request is to be signed for. Clients read it, or the element `Region`, and sign anew.
pub(crate) const BUCKET_REGION: HeaderName = HeaderName::from_static("x-amz-bucket-region");

const SCHEME: &str = "AWS4-HMAC-SHA256";
const CREDENTIAL: &str =
    "the Credential is mal-formed; expecting \"<YOUR-AKID>/YYYYMMDD/REGION/s3/aws4_request\".";
/// Parameters of a presigned query.
const PARAMETERS: [&str; 6] = [
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Signature",
    "X-Amz-Date",
    "X-Amz-SignedHeaders",
    "X-Amz-Expires",
];

/// Checks an `Authorization` header, in one pass; returns its list of signed headers. `region` is this server's.
///
/// # Errors
/// `InvalidArgument` or `InvalidRequest` for another scheme, `AuthorizationHeaderMalformed` for what is none of this one.
pub(crate) fn check_header<'h>(header: &'h [u8], region: &str) -> Result<&'h [u8], S3Error> {
    let Some(fields) = header.strip_prefix(SCHEME.as_bytes()).and_then(after_scheme) else {
        return Err(other_scheme(header));
    };
    let parts = field(fields, b"Credential=").and_then(|(credential, rest)| {
        let (list, rest) = field(rest?, b"SignedHeaders=")?;
        let (_, none) = field(rest?, b"Signature=")?;
        (none.is_none() && header.is_ascii()).then_some((credential, list))
    });
    match parts {
        Some((credential, list)) if is_credential(credential) => {
            check_region(credential, region).map(|()| list)
        }
        Some(_) => Err(malformed(CREDENTIAL)),
        None => Err(malformed(
            "the authorization header requires three components: Credential, SignedHeaders, and Signature.",
        )),
    }
}

/// The access key that an `Authorization` header names.
pub(crate) fn access_key(header: &[u8]) -> Option<&str> {
    let fields = header.strip_prefix(SCHEME.as_bytes()).and_then(after_scheme)?;
    let (credential, _) = field(fields, b"Credential=")?;
    key_of(std::str::from_utf8(credential).ok()?)
}

/// The access key of a credential: it has no slash.
pub(crate) fn key_of(credential: &str) -> Option<&str> {
    credential.split('/').next().filter(|key| !key.is_empty())
}

/// The fields after the scheme's name; `None` if the name is longer.
fn after_scheme(rest: &[u8]) -> Option<&[u8]> {
    match rest {
        [] => Some(rest),
        [b' ' | b'\t', fields @ ..] => Some(fields),
        _ => None,
    }
}

/// The value of the first field, which must have this name, and the fields after it, if any.
fn field<'f>(fields: &'f [u8], name: &[u8]) -> Option<(&'f [u8], Option<&'f [u8]>)> {
    let value = fields.trim_ascii_start().strip_prefix(name)?;
    let end = value.iter().position(|byte| *byte == b',');
    Some(match end {
        Some(end) => (value[..end].trim_ascii(), Some(&value[end + 1..])),
        None => (value, None),
    })
}

fn malformed(what: &str) -> S3Error {
    let message = format!("The authorization header is malformed; {what}");
    error(S3ErrorCode::AuthorizationHeaderMalformed, message)
}

fn other_scheme(header: &[u8]) -> S3Error {
    let scheme = header.split(u8::is_ascii_whitespace).next().unwrap_or_default();
    if scheme == b"AWS" || scheme.starts_with(b"AWS4-") {
        error(
            S3ErrorCode::InvalidRequest,
            "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.",
        )
    } else {
        error(S3ErrorCode::InvalidArgument, "Unsupported Authorization Type")
    }
}

/// Checks the dates that a signature in a header is made with.
///
/// # Errors
/// `AuthorizationHeaderMalformed`.
pub(crate) fn check_dates(headers: &HeaderMap) -> Result<(), S3Error> {
    let is_read = |date: &HeaderValue| is_date(date.as_bytes());
    if headers.get_all("x-amz-date").iter().all(is_read) {
        return Ok(());
    }
    let message = "The authorization header is malformed; x-amz-date must be in the ISO8601 Long Format \
                   \"yyyyMMdd'T'HHmmss'Z'\"";
    Err(error(S3ErrorCode::AuthorizationHeaderMalformed, message))
}

/// Checks the parameters of a query that carries a signature, decoded. `region` is this server's.
///
/// # Errors
/// `AuthorizationQueryParametersError`; as [`check_region`].
pub(crate) fn check_query(query: &[(String, String)], region: &str) -> Result<(), S3Error> {
    let wrong =
        |message: String| Err(error(S3ErrorCode::AuthorizationQueryParametersError, message));
    let parameter = |wanted: &str| {
        query.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str())
    };
    if PARAMETERS.iter().any(|name| parameter(name).is_none()) {
        let all = PARAMETERS.join(", ");
        return wrong(format!(
            "Query-string authentication version 4 requires the parameters {all}."
        ));
    }
    if parameter("X-Amz-Algorithm") != Some(SCHEME) {
        return wrong(format!("X-Amz-Algorithm only supports \"{SCHEME}\""));
    }
    let credential = parameter("X-Amz-Credential").map(str::as_bytes);
    let Some(credential) = credential.filter(|text| is_credential(text)) else {
        return wrong(format!("Error parsing the X-Amz-Credential parameter; {CREDENTIAL}"));
    };
    check_region(credential, region)?;
    if !parameter("X-Amz-Date").is_some_and(|text| is_date(text.as_bytes())) {
        let form = "yyyyMMdd'T'HHmmss'Z'";
        return wrong(format!("X-Amz-Date must be in the ISO8601 Long Format \"{form}\""));
    }
    Ok(())
}

/// True for a credential in the form `KEY/YYYYMMDD/REGION/s3/aws4_request`.
pub(crate) fn is_credential(text: &[u8]) -> bool {
    let mut parts = text.split(|byte| *byte == b'/');
    let mut next = || parts.next().unwrap_or_default();
    let (key, day, _region, service, end) = (next(), next(), next(), next(), next());
    let whole = service == b"s3" && end == b"aws4_request" && parts.next().is_none();
    whole && !key.is_empty() && is_digits(day, 8)
}

/// Refuses a well-formed credential of a region whose name the protocol library does not take, such as `US`, with which s3cmd begins. The
/// answer is that of S3 to a wrong region: clients sign anew for the one that it names. All other names are accepted.
///
/// # Errors
/// `AuthorizationHeaderMalformed`, with this server's region in a header.
pub(crate) fn check_region(credential: &[u8], region: &str) -> Result<(), S3Error> {
    let given = credential.split(|byte| *byte == b'/').nth(2).unwrap_or_default();
    let is_taken = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    if given.iter().all(is_taken) {
        return Ok(());
    }
    let given = String::from_utf8_lossy(given);
    let mut refused = malformed(&format!("the region '{given}' is wrong; expecting '{region}'"));
    if let Ok(region) = HeaderValue::try_from(region) {
        refused.set_headers(HeaderMap::from_iter([(BUCKET_REGION, region)]));
    }
    Err(refused)
}

/// True for a time in the form `YYYYMMDDTHHMMSSZ`.
pub(crate) fn is_date(text: &[u8]) -> bool {
    matches!(text, [day @ .., b'T', _, _, _, _, _, _, b'Z'] if is_digits(day, 8))
        && is_digits(&text[9..15], 6)
}

fn is_digits(text: &[u8], len: usize) -> bool {
    text.len() == len && text.iter().all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "AWS4-HMAC-SHA256 Credential=a/20260101/r/s3/aws4_request, SignedHeaders=host, Signature=00";

    #[test]
    fn a_header_has_three_components() {
        let code =
            |header: &str| check_header(header.as_bytes(), "r").err().map(|e| e.code().clone());
        assert_eq!(check_header(GOOD.as_bytes(), "r").unwrap(), b"host");
        let spaced = GOOD.replace("host", " host;x-amz-date ").replace("256 ", "256\t ");
        assert_eq!(check_header(spaced.as_bytes(), "r").unwrap(), b"host;x-amz-date");
        assert_eq!(code(&GOOD.replace(", ", ",")), None);
        for (from, to) in [
            ("/20260101", ""),
            ("20260101", "2026010"),
            ("/s3/", "/sts/"),
            ("aws4_request", "aws4"),
            ("Credential=a", "Credential="),
            ("Credential=", ""),
            ("SignedHeaders=host, ", ""),
            ("Signature=00", "Signature=00, Signature=00"),
            (" Cred", ",Cred"),
        ] {
            let refused = code(&GOOD.replace(from, to));
            let expected = match from {
                " Cred" => S3ErrorCode::InvalidRequest,
                _ => S3ErrorCode::AuthorizationHeaderMalformed,
            };
            assert_eq!(refused, Some(expected), "{from:?} became {to:?}");
        }
        let not_text = [GOOD.as_bytes(), b"\xff"].concat();
        let refused = check_header(&not_text, "r").map_err(|refused| refused.code().clone());
        assert_eq!(refused, Err(S3ErrorCode::AuthorizationHeaderMalformed));
        assert_eq!(code("AWS key:signature"), Some(S3ErrorCode::InvalidRequest));
        assert_eq!(code("Bearer x"), Some(S3ErrorCode::InvalidArgument));
        assert_eq!(code(""), Some(S3ErrorCode::InvalidArgument));
    }

    #[test]
    fn a_region_that_no_server_has_is_answered_with_the_one_to_sign_for() {
        for region in ["us-east-1", "eu", "default", "2", ""] {
            let credential = format!("a/20260101/{region}/s3/aws4_request");
            assert!(check_region(credential.as_bytes(), "here").is_ok(), "{region:?}");
        }
        for region in ["US", "us_east", "EU-west", "é"] {
            let header = GOOD.replace("/r/", &format!("/{region}/"));
            let credential = format!("a/20260101/{region}/s3/aws4_request");
            let refused = check_region(credential.as_bytes(), "here").unwrap_err();
            assert_eq!(*refused.code(), S3ErrorCode::AuthorizationHeaderMalformed);
            assert_eq!(refused.headers().unwrap()[BUCKET_REGION], "here");
            if region.is_ascii() {
                let refused = check_header(header.as_bytes(), "here").unwrap_err();
                let expected = format!("the region '{region}' is wrong; expecting 'here'");
                assert!(refused.message().unwrap().ends_with(&expected), "{refused}");
            }
        }
    }

    #[test]
    fn a_date_that_the_library_cannot_read_is_refused() {
        let check = |dates: &[&'static [u8]]| {
            let mut headers = HeaderMap::new();
            for date in dates {
                headers.append("x-amz-date", HeaderValue::from_bytes(date).unwrap());
            }
            check_dates(&headers).map_err(|refused| refused.code().clone())
        };
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[b"20060102T150405Z"]), Ok(()));
        for date in [&b"2006-1-2T150405Z"[..], b"2006 102T150405Z", b"", b"\xff"] {
            let refused = check(&[b"20060102T150405Z", date]);
            assert_eq!(refused, Err(S3ErrorCode::AuthorizationHeaderMalformed), "{date:?}");
        }
    }

    #[test]
    fn a_date_is_in_the_long_form() {
        assert!(is_date(b"20260101T000000Z"));
        for text in ["20260101", "20260101T000000", "2026-01-01T00:00:00Z", ""] {
            assert!(!is_date(text.as_bytes()), "{text}");
        }
    }
}
