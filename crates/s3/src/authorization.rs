//! The form of a signature of version 4, in a header or in a query. The protocol library takes any name for the scheme, and
//! calls what it cannot read an invalid request; S3 says what is malformed.

use s3s::{S3Error, S3ErrorCode};

use crate::errors::error;

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

/// Checks an `Authorization` header.
///
/// # Errors
/// `InvalidArgument` or `InvalidRequest` for another scheme, `AuthorizationHeaderMalformed` for what is none of this one.
pub(crate) fn check_header(header: &[u8]) -> Result<(), S3Error> {
    let text = std::str::from_utf8(header).unwrap_or_default();
    let (scheme, fields) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    if scheme == "AWS" || scheme != SCHEME && scheme.starts_with("AWS4-") {
        return Err(error(
            S3ErrorCode::InvalidRequest,
            "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.",
        ));
    }
    if scheme != SCHEME {
        return Err(error(S3ErrorCode::InvalidArgument, "Unsupported Authorization Type"));
    }
    let malformed = |what: &str| {
        let message = format!("The authorization header is malformed; {what}");
        Err(error(S3ErrorCode::AuthorizationHeaderMalformed, message))
    };
    let mut fields = fields.split(',').map(str::trim);
    let mut field = |name: &str| fields.next().and_then(|field| field.strip_prefix(name));
    let credential = field("Credential=");
    let (Some(credential), Some(_), Some(_), None) =
        (credential, field("SignedHeaders="), field("Signature="), field(""))
    else {
        return malformed(
            "the authorization header requires three components: Credential, SignedHeaders, and Signature.",
        );
    };
    if is_credential(credential) { Ok(()) } else { malformed(CREDENTIAL) }
}

/// Checks the parameters of a query that carries a signature, decoded.
///
/// # Errors
/// `AuthorizationQueryParametersError`.
pub(crate) fn check_query(query: &[(String, String)]) -> Result<(), S3Error> {
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
    if !parameter("X-Amz-Credential").is_some_and(is_credential) {
        return wrong(format!("Error parsing the X-Amz-Credential parameter; {CREDENTIAL}"));
    }
    if !parameter("X-Amz-Date").is_some_and(is_date) {
        let form = "yyyyMMdd'T'HHmmss'Z'";
        return wrong(format!("X-Amz-Date must be in the ISO8601 Long Format \"{form}\""));
    }
    Ok(())
}

fn is_credential(text: &str) -> bool {
    let mut parts = text.split('/');
    let mut next = || parts.next().unwrap_or_default();
    let (key, day, _region, service, end) = (next(), next(), next(), next(), next());
    let whole = service == "s3" && end == "aws4_request" && parts.next().is_none();
    whole && !key.is_empty() && is_digits(day, 8)
}

fn is_date(text: &str) -> bool {
    let parts = text.strip_suffix('Z').and_then(|text| text.split_once('T'));
    parts.is_some_and(|(day, time)| is_digits(day, 8) && is_digits(time, 6))
}

fn is_digits(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "AWS4-HMAC-SHA256 Credential=a/20260101/r/s3/aws4_request, SignedHeaders=host, Signature=00";

    #[test]
    fn a_header_has_three_components() {
        let code = |header: &str| check_header(header.as_bytes()).err().map(|e| e.code().clone());
        assert_eq!(code(GOOD), None);
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
        assert_eq!(code("AWS key:signature"), Some(S3ErrorCode::InvalidRequest));
        assert_eq!(code("Bearer x"), Some(S3ErrorCode::InvalidArgument));
        assert_eq!(code(""), Some(S3ErrorCode::InvalidArgument));
    }

    #[test]
    fn a_date_is_in_the_long_form() {
        assert!(is_date("20260101T000000Z"));
        for text in ["20260101", "20260101T000000", "2026-01-01T00:00:00Z", ""] {
            assert!(!is_date(text), "{text}");
        }
    }
}
