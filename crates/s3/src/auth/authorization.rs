//! Parses a signature of version 4 in a header or query; malformed ones get S3's errors.

use http::{HeaderMap, HeaderName, HeaderValue};
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::other_services::OtherService;
use crate::errors::error;

/// Names the region that a request is to be signed for. Clients read it, or the element `Region`, and sign anew.
pub(crate) const BUCKET_REGION: HeaderName = HeaderName::from_static("x-amz-bucket-region");

/// The header, parameter or field of a token.
pub(crate) const TOKEN: &str = "x-amz-security-token";
/// The only scheme that is taken.
pub(crate) const SCHEME: &str = "AWS4-HMAC-SHA256";
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

/// The keys, the day and the region that a signature names: `KEY/YYYYMMDD/REGION/s3/aws4_request`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Credential<'c> {
    pub(crate) access_key: &'c str,
    pub(crate) day: &'c str,
    pub(crate) region: &'c str,
}

impl<'c> Credential<'c> {
    /// Reads a credential; `None` if it is malformed.
    pub(crate) fn parse(text: &'c str) -> Option<Self> {
        let mut parts = text.split('/');
        let mut next = || parts.next().unwrap_or_default();
        let (access_key, day, region, service, end) = (next(), next(), next(), next(), next());
        let whole = service == "s3" && end == "aws4_request" && parts.next().is_none();
        let named = whole && !access_key.is_empty() && is_digits(day.as_bytes(), 8);
        named.then_some(Self { access_key, day, region })
    }
}

/// An `Authorization` header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Authorization<'h> {
    pub(crate) credential: Credential<'h>,
    /// The names of the headers that are signed, between semicolons.
    pub(crate) names: &'h str,
    pub(crate) signature: &'h str,
}

/// Reads an `Authorization` header, in one pass. `region` is this server's.
///
/// # Errors
/// `InvalidArgument` or `InvalidRequest` for another scheme, `AuthorizationHeaderMalformed` for what is none of this one,
/// `InvalidAction` for another service.
pub(crate) fn parse_header<'h>(
    header: &'h [u8],
    region: &str,
) -> Result<Authorization<'h>, S3Error> {
    let Some(fields) = header.strip_prefix(SCHEME.as_bytes()).and_then(after_scheme) else {
        return Err(other_scheme(header));
    };
    let fields = std::str::from_utf8(fields).ok().filter(|fields| fields.is_ascii());
    let parts = fields.and_then(|fields| {
        let (credential, rest) = field(fields, "Credential=")?;
        let (names, rest) = field(rest?, "SignedHeaders=")?;
        let (signature, none) = field(rest?, "Signature=")?;
        none.is_none().then_some((credential, names, signature.trim_ascii_end()))
    });
    let Some((credential, names, signature)) = parts else {
        return Err(malformed(
            "the authorization header requires three components: Credential, SignedHeaders, and Signature.",
        ));
    };
    if let Some(service) = OtherService::of_credential(credential) {
        return Err(service.refusal());
    }
    let credential = Credential::parse(credential).ok_or_else(|| malformed(CREDENTIAL))?;
    check_region(credential.region, region)?;
    Ok(Authorization { credential, names, signature })
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
fn field<'f>(fields: &'f str, name: &str) -> Option<(&'f str, Option<&'f str>)> {
    let value = fields.trim_ascii_start().strip_prefix(name)?;
    Some(match value.split_once(',') {
        Some((value, rest)) => (value.trim_ascii(), Some(rest)),
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
    let credential = parameter("X-Amz-Credential");
    if let Some(service) = credential.and_then(OtherService::of_credential) {
        return Err(service.refusal());
    }
    let Some(credential) = credential.and_then(Credential::parse) else {
        return wrong(format!("Error parsing the X-Amz-Credential parameter; {CREDENTIAL}"));
    };
    check_region(credential.region, region)?;
    if !parameter("X-Amz-Date").is_some_and(|text| is_date(text.as_bytes())) {
        let form = "yyyyMMdd'T'HHmmss'Z'";
        return wrong(format!("X-Amz-Date must be in the ISO8601 Long Format \"{form}\""));
    }
    Ok(())
}

/// Refuses a credential of a region whose name no server of S3 has, such as `US`, with which s3cmd begins. The
/// answer is that of S3 to a wrong region: clients sign anew for the one that it names. All other names are accepted.
///
/// # Errors
/// `AuthorizationHeaderMalformed`, with this server's region in a header.
pub(crate) fn check_region(given: &str, region: &str) -> Result<(), S3Error> {
    if given.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-')) {
        return Ok(());
    }
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

/// The token that a signed query has.
pub(crate) fn token_of(query: &[(String, String)]) -> Option<&[u8]> {
    let token = query.iter().find(|(name, _)| name.eq_ignore_ascii_case(TOKEN));
    token.map(|(_, value)| value.as_bytes())
}

/// Tokens come with keys that a service gives for a while, and nobody gives such keys here: who sends one means another service.
///
/// # Errors
/// `InvalidToken`.
pub(crate) fn refuse_token(token: Option<&[u8]>) -> S3Result<()> {
    match token {
        None | Some([]) => Ok(()),
        Some(_) => {
            let message = "The provided token is malformed or otherwise invalid.";
            Err(error(S3ErrorCode::InvalidToken, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "AWS4-HMAC-SHA256 Credential=a/20260101/r/s3/aws4_request, SignedHeaders=host, Signature=00";

    #[test]
    fn a_header_has_three_components() {
        let code =
            |header: &str| parse_header(header.as_bytes(), "r").err().map(|e| e.code().clone());
        let names = |header: &str| {
            parse_header(header.as_bytes(), "r").map(|given| given.names.to_owned()).unwrap()
        };
        assert_eq!(names(GOOD), "host");
        let good = parse_header(GOOD.as_bytes(), "r").unwrap();
        let credential = Credential { access_key: "a", day: "20260101", region: "r" };
        assert_eq!((good.credential, good.signature), (credential, "00"));
        let spaced = GOOD.replace("host", " host;x-amz-date ").replace("256 ", "256\t ");
        assert_eq!(names(&spaced), "host;x-amz-date");
        assert_eq!(code(&GOOD.replace(", ", ",")), None);
        for (from, to) in [
            ("/20260101", ""),
            ("20260101", "2026010"),
            ("/s3/", "/ec2/"),
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
        let refused = parse_header(&not_text, "r").map_err(|refused| refused.code().clone());
        assert_eq!(refused, Err(S3ErrorCode::AuthorizationHeaderMalformed));
        for (service, name) in [("iam", OtherService::Iam), ("sts", OtherService::Sts)] {
            let other = GOOD.replace("/s3/", &format!("/{service}/"));
            let refused = parse_header(other.as_bytes(), "r").unwrap_err();
            assert_eq!(OtherService::of_error(&refused), Some(name));
        }
        assert_eq!(code("AWS key:signature"), Some(S3ErrorCode::InvalidRequest));
        assert_eq!(code("Bearer x"), Some(S3ErrorCode::InvalidArgument));
        assert_eq!(code(""), Some(S3ErrorCode::InvalidArgument));
    }

    #[test]
    fn a_region_that_no_server_has_is_answered_with_the_one_to_sign_for() {
        for region in ["us-east-1", "eu", "default", "2", ""] {
            assert!(check_region(region, "here").is_ok(), "{region:?}");
        }
        for region in ["US", "us_east", "EU-west", "é"] {
            let header = GOOD.replace("/r/", &format!("/{region}/"));
            let refused = check_region(region, "here").unwrap_err();
            assert_eq!(*refused.code(), S3ErrorCode::AuthorizationHeaderMalformed);
            assert_eq!(refused.headers().unwrap()[BUCKET_REGION], "here");
            if region.is_ascii() {
                let refused = parse_header(header.as_bytes(), "here").unwrap_err();
                let expected = format!("the region '{region}' is wrong; expecting 'here'");
                assert!(refused.message().unwrap().ends_with(&expected), "{refused}");
            }
        }
    }

    #[test]
    fn a_date_in_another_form_is_refused() {
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
