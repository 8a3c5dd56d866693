//! The form of a signature: the scheme, and that every header S3 acts upon is signed.
//!
//! Signatures of version 2 are refused in headers, where nothing bounds their age. In a query they
//! carry their own expiry, but sign no parameter of a list: they are taken if that is switched on.

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use s3s::{S3Error, S3ErrorCode};

use super::authorization::{self, Authorization};
use crate::digest::announced;
use crate::digest::digests::invalid_md5;
use crate::errors::error;
use crate::limits::PRESIGNED_S_MAX;
use crate::request::own_headers;

/// Parameters by which a query carries a signature, of version 4 and of version 2.
const SIGNED_BY_V4: [&str; 3] = ["X-Amz-Signature", "X-Amz-Algorithm", "X-Amz-Credential"];
const SIGNED_BY_V2: [&str; 2] = ["Signature", "AWSAccessKeyId"];

/// The signature that a request gives: it is well-formed, and still to be compared.
#[derive(Debug)]
pub(crate) enum Given<'r> {
    Nothing,
    /// In the fields of an HTML form.
    Form,
    Header(Authorization<'r>),
    /// In this query.
    Version4(Vec<(String, String)>),
    /// In this query.
    Version2(Vec<(String, String)>),
}

/// Finds the signature that a request gives. `version_2` says whether queries may be signed by it, `region` is this
/// server's.
///
/// The query is decoded first: a name that is spelled otherwise is the same name. A request has one kind of signature, so
/// that what is checked here is what is verified: of an HTML form that is its fields'.
///
/// # Errors
/// As S3: the signature is malformed, or leaves out a part that must be signed.
pub(crate) fn find<'r>(
    headers: &'r HeaderMap,
    query: Option<&str>,
    is_form: bool,
    (version_2, region): (bool, &str),
) -> Result<Given<'r>, S3Error> {
    let query = decoded(query.unwrap_or_default());
    let has = |names: &[&str]| query.iter().any(|(name, _)| names.contains(&name.as_str()));
    let (by_v4, by_v2) = (has(&SIGNED_BY_V4), has(&SIGNED_BY_V2));
    let authorization = headers.get(AUTHORIZATION);
    let kinds = [authorization.is_some(), by_v4, by_v2, is_form];
    if kinds.into_iter().filter(|given| *given).count() > 1 {
        return Err(S3Error::with_message(
            S3ErrorCode::InvalidArgument,
            "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query \
             string parameter or the Authorization header should be specified",
        ));
    }
    if let Some(authorization) = authorization {
        let given = authorization::parse_header(authorization.as_bytes(), region)?;
        authorization::check_dates(headers)?;
        all_signed(headers, given.names)?;
        // Of two neither is taken.
        let is_only = headers.get_all(AUTHORIZATION).iter().nth(1).is_none();
        return Ok(if is_only { Given::Header(given) } else { Given::Nothing });
    }
    if by_v4 || by_v2 {
        names_stand_once(&query)?;
    }
    if by_v2 && !version_2 {
        return Err(S3Error::with_message(
            S3ErrorCode::InvalidRequest,
            "URLs that are presigned by version 2 are not taken. Presign by version 4, AWS4-HMAC-SHA256; \
             in boto3: Config(signature_version='s3v4'); before `aws s3 presign`: \
             aws configure set default.s3.signature_version s3v4",
        ));
    }
    if by_v4 {
        authorization::check_query(&query, region)?;
    }
    let parameter = |name: &str| query.iter().find(|(known, _)| known == name);
    if let Some((_, seconds)) = parameter("X-Amz-Expires") {
        presigned_for(seconds)?;
    }
    // The kind decides: version 2 does not sign a parameter that lists headers.
    if by_v4 {
        let listed = parameter("X-Amz-SignedHeaders").map_or("", |(_, list)| list.as_str());
        all_signed(headers, listed)?;
    } else if by_v2 {
        signed_by_version_2(headers)?;
    }
    Ok(match (by_v4, by_v2) {
        (true, _) => Given::Version4(query),
        (_, true) => Given::Version2(query),
        _ if is_form => Given::Form,
        _ => Given::Nothing,
    })
}

/// True if a request has a signature, by a header or in its query.
pub(crate) fn is_signed(headers: &HeaderMap, query: Option<&str>) -> bool {
    let query = decoded(query.unwrap_or_default());
    let names = || SIGNED_BY_V4.iter().chain(&SIGNED_BY_V2);
    let in_query = query.iter().any(|(known, _)| names().any(|name| name == known));
    headers.contains_key(AUTHORIZATION) || in_query
}

/// Names and values of a query as forms encode them. What is no UTF-8 stays as it came: an address that has it is refused.
pub(crate) fn decoded(query: &str) -> Vec<(String, String)> {
    let decode = |text: &str| {
        let spaced = text.replace('+', " ");
        urlencoding::decode(&spaced).map_or_else(|_| text.to_owned(), Into::into)
    };
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        })
        .collect()
}

/// A parameter that stands twice could be signed once and acted upon once more.
fn names_stand_once(query: &[(String, String)]) -> Result<(), S3Error> {
    let mut names: Vec<&str> = query.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => Err(S3Error::with_message(
            S3ErrorCode::InvalidArgument,
            format!("The query parameter {} of a presigned request is given twice", pair[0]),
        )),
    }
}

/// The refusal of a request that lacks a header which it signs, or must sign.
pub(crate) fn not_sent(name: &str) -> S3Error {
    match name {
        "x-amz-date" => error(
            S3ErrorCode::AccessDenied,
            "AWS authentication requires a valid Date or x-amz-date header",
        ),
        "x-amz-content-sha256" => error(
            S3ErrorCode::InvalidRequest,
            "Missing required header for this request: x-amz-content-sha256",
        ),
        _ => error(
            S3ErrorCode::SignatureDoesNotMatch,
            format!("The signed header {name} did not come with the request"),
        ),
    }
}

fn not_signed(name: &str) -> S3Error {
    S3Error::with_message(
        S3ErrorCode::AccessDenied,
        format!("There were headers present in the request which were not signed: {name}"),
    )
}

/// A presigned request is good for a week at most.
fn presigned_for(seconds: &str) -> Result<(), S3Error> {
    let message = match seconds.parse::<i64>() {
        Ok(1..=PRESIGNED_S_MAX) => return Ok(()),
        Err(_) => "X-Amz-Expires should be a number".to_owned(),
        Ok(..0) => "X-Amz-Expires must be non-negative".to_owned(),
        Ok(0) => "X-Amz-Expires must be greater than 0".to_owned(),
        Ok(_) => format!(
            "X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires must be less than \
             {PRESIGNED_S_MAX} seconds"
        ),
    };
    Err(S3Error::with_message(S3ErrorCode::AuthorizationQueryParametersError, message))
}

/// Refuses digests that are not verified, and empty ones.
///
/// # Errors
/// As S3: the error names the fault.
pub(crate) fn check_digests(headers: &HeaderMap) -> Result<(), S3Error> {
    for (name, value) in headers {
        if name == "content-md5" && value.is_empty() {
            return Err(invalid_md5(""));
        }
        announced::check_header(name, value)?;
    }
    Ok(())
}

/// Checks the headers of a request that is signed by version 4, which lists those that it signs.
fn all_signed(headers: &HeaderMap, list: &str) -> Result<(), S3Error> {
    listed_once(list)?;
    for name in headers.keys().map(HeaderName::as_str) {
        let is_listed = list.split(';').any(|listed| listed.eq_ignore_ascii_case(name));
        let must = name == "host" || is_acted_upon(name);
        if must && !is_listed {
            return Err(not_signed(name));
        }
        if is_listed {
            is_text(headers, name)?;
        }
    }
    match list.split(';').find(|name| !headers.contains_key(*name)) {
        None => Ok(()),
        Some(name) => Err(not_sent(name)),
    }
}

/// Checks the headers of a request that is signed by version 2: it signs these and every `x-amz-` header, and no other.
fn signed_by_version_2(headers: &HeaderMap) -> Result<(), S3Error> {
    for name in headers.keys().map(HeaderName::as_str) {
        if name.starts_with(own_headers::PREFIX) {
            return Err(not_signed(name));
        }
        if name.starts_with("x-amz-") || matches!(name, "host" | "content-md5" | "content-type") {
            is_text(headers, name)?;
        }
    }
    Ok(())
}

/// True for headers that change what is done.
fn is_acted_upon(name: &str) -> bool {
    name.starts_with("x-amz-") || name.starts_with(own_headers::PREFIX)
}

/// A line that is no text is in no text that is signed: anybody could add it to a request that somebody else signed.
fn is_text(headers: &HeaderMap, name: &str) -> Result<(), S3Error> {
    match headers.get_all(name).iter().all(|line| std::str::from_utf8(line.as_bytes()).is_ok()) {
        true => Ok(()),
        false => Err(S3Error::with_message(
            S3ErrorCode::SignatureDoesNotMatch,
            format!("The signed header {name} is not UTF-8"),
        )),
    }
}

fn lower(name: &str) -> impl Iterator<Item = u8> {
    name.bytes().map(|byte| byte.to_ascii_lowercase())
}

/// Each mention of a header would add all of it to the text that is signed: with one of each, the request's head bounds it.
fn listed_once(list: &str) -> Result<(), S3Error> {
    let mut names: Vec<&str> = list.split(';').collect();
    names.sort_unstable_by(|one, other| lower(one).cmp(lower(other)));
    match names.windows(2).find(|pair| pair[0].eq_ignore_ascii_case(pair[1])) {
        None => Ok(()),
        Some(pair) => Err(S3Error::with_message(
            S3ErrorCode::InvalidRequest,
            format!("The signed headers name {} twice", pair[0]),
        )),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const V4: &str = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Date=20260101T000000Z&X-Amz-Expires=1\
        &X-Amz-Credential=a%2F20260101%2Fr%2Fs3%2Faws4_request&X-Amz-Signature=00";

    fn check(headers: &HeaderMap, query: Option<&str>) -> Result<(), S3Error> {
        find(headers, query, false, (true, "us-east-1")).map(drop)
    }

    fn request(list: &str, extra: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("host", "h".parse().unwrap());
        headers.insert("x-amz-date", "20260101T000000Z".parse().unwrap());
        headers.insert(extra, "v".parse().unwrap());
        let credential = "a/20260101/r/s3/aws4_request";
        let value =
            format!("AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={list}, Signature=00");
        headers.insert(AUTHORIZATION, value.parse().unwrap());
        headers
    }

    #[test]
    fn headers_that_s3_acts_upon_must_be_signed() {
        assert!(check(&request("host;x-amz-date", "range"), None).is_ok());
        assert!(check(&request("host;x-amz-date;x-amz-acl", "x-amz-acl"), None).is_ok());
        for (list, extra) in [
            ("host;x-amz-date", "x-amz-acl"),
            ("host;x-amz-date", "x-larder-append"),
            ("host;x-amz-date", "x-larder-list-regions"),
            ("x-amz-date", "range"),
            ("host;x-amz-dates", "a"),
        ] {
            let refused = check(&request(list, extra), None).unwrap_err();
            assert_eq!(refused.code(), &S3ErrorCode::AccessDenied, "{list}");
        }
    }

    #[test]
    fn a_presigned_request_lists_them_in_the_query() {
        let mut headers = HeaderMap::new();
        headers.insert("host", "h".parse().unwrap());
        headers.insert("x-amz-acl", "private".parse().unwrap());
        for list in ["host%3Bx-amz-acl", "host%3bx-amz-acl", "host;x-amz-acl"] {
            let query = format!("a=b&X-Amz-SignedHeaders={list}&{V4}");
            assert!(check(&headers, Some(&query)).is_ok(), "{list}");
        }
        let query = format!("X-Amz-SignedHeaders=host&{V4}");
        assert_eq!(check(&headers, Some(&query)).unwrap_err().code(), &S3ErrorCode::AccessDenied);
        assert!(check(&headers, Some("prefix=x")).is_ok(), "not signed at all");
    }

    #[test]
    fn a_request_has_one_kind_of_signature() {
        // Good, each for itself: only together are they refused.
        let in_header = request("host;x-amz-date;x-amz-copy-source", "x-amz-copy-source");
        assert!(check(&in_header, None).is_ok());
        let mut nonsense = in_header.clone();
        nonsense.insert(AUTHORIZATION, "x".parse().unwrap());
        for query in [
            "X-Amz-SignedHeaders=host&X-Amz-Signature=00",
            "X%2DAmz%2DSignedHeaders=host&X%2DAmz-Signature=00",
            "AWSAccessKeyId=a&Expires=1&Signature=00",
            "AWSAccessKeyId=a&Expires=1&Signature=00&X-Amz-Signature=00",
        ] {
            for headers in [&in_header, &nonsense] {
                let refused = check(headers, Some(query)).expect_err(query);
                assert_eq!(refused.code(), &S3ErrorCode::InvalidArgument, "{query}");
                let message = refused.message().unwrap_or_default();
                assert!(message.starts_with("Only one auth mechanism"), "{query}: {message}");
            }
        }
    }

    #[test]
    fn names_spelled_otherwise_are_the_same_names() {
        let mut headers = HeaderMap::new();
        headers.insert("host", "h".parse().unwrap());
        let query = format!("X%2DAmz-SignedHeaders=host&{V4}");
        assert!(check(&headers, Some(&query)).is_ok());
        headers.insert("x-amz-copy-source", "/secret/obj".parse().unwrap());
        let refused = check(&headers, Some(&query)).unwrap_err();
        assert_eq!(refused.code(), &S3ErrorCode::AccessDenied);
        let refused = check(&headers, Some("X-Amz-Signature=00")).unwrap_err();
        assert_eq!(refused.code(), &S3ErrorCode::AuthorizationQueryParametersError);
    }

    #[test]
    fn a_presigned_request_names_each_parameter_once() {
        let mut headers = HeaderMap::new();
        headers.insert("host", "h".parse().unwrap());
        for query in [
            "AWSAccessKeyId=a&Signature=00&tagging&tagging",
            "X-Amz-SignedHeaders=host&X-Amz-Signature=00&X-Amz-SignedHeader%73=x-amz-acl",
        ] {
            let refused = check(&headers, Some(query)).unwrap_err();
            assert_eq!(refused.code(), &S3ErrorCode::InvalidArgument, "{query}");
        }
        assert!(check(&headers, Some("prefix=a&prefix=b")).is_ok(), "not signed");
    }

    #[test]
    fn version_2_signs_no_header_that_makes_a_put_an_append() {
        let query = "AWSAccessKeyId=a&Signature=00";
        for name in [own_headers::RECORD, own_headers::LIST_REGIONS] {
            let mut headers = HeaderMap::new();
            headers.insert(name, "1".parse().unwrap());
            // It does not sign a list of headers either.
            for query in [query, &format!("{query}&X-Amz-SignedHeaders=host%3B{name}")] {
                let refused = check(&headers, Some(query)).unwrap_err();
                assert_eq!(refused.code(), &S3ErrorCode::AccessDenied, "{query}");
            }
        }
    }

    #[test]
    fn a_line_that_is_no_text_is_refused_in_every_header_that_is_signed() {
        let in_query = format!("X-Amz-SignedHeaders=host%3Bx-amz-meta-a%3Ba&{V4}");
        let in_query = in_query.as_str();
        let by_v2 = "AWSAccessKeyId=a&Signature=00";
        for (name, query, is_refused) in [
            ("x-amz-meta-a", None, true),
            ("a", None, true),
            ("host", None, true),
            ("b", None, false),
            ("x-amz-meta-a", Some(in_query), true),
            ("host", Some(in_query), true),
            ("b", Some(in_query), false),
            ("x-amz-meta-a", Some(by_v2), true),
            ("content-type", Some(by_v2), true),
            ("b", Some(by_v2), false),
        ] {
            let mut headers = request("host;x-amz-date;x-amz-meta-a;a", "a");
            headers.insert("x-amz-meta-a", "1".parse().unwrap());
            if query.is_some() {
                headers.remove(AUTHORIZATION);
                headers.remove("x-amz-date");
            }
            assert!(check(&headers, query).is_ok(), "{query:?}");
            headers.append(name, HeaderValue::from_bytes(b"\xff").unwrap());
            let refused = check(&headers, query).map_err(|refused| refused.code().clone());
            let expected =
                if is_refused { Err(S3ErrorCode::SignatureDoesNotMatch) } else { Ok(()) };
            assert_eq!(refused, expected, "{name} {query:?}");
        }
    }

    #[test]
    fn the_signed_headers_name_each_once_and_all_of_them_came() {
        let (twice, absent) = (S3ErrorCode::InvalidRequest, S3ErrorCode::SignatureDoesNotMatch);
        for (list, expected) in [
            ("host;x-amz-date;a", None),
            ("host;x-amz-date;a;host;a", Some(&twice)),
            ("Host;x-amz-date;host", Some(&twice)),
            ("host;x-amz-date;b", Some(&absent)),
            ("host;x-amz-date;", Some(&absent)),
        ] {
            let mut headers = request(list, "a");
            let in_header = check(&headers, None);
            headers.remove(AUTHORIZATION);
            let in_query = check(&headers, Some(&format!("X-Amz-SignedHeaders={list}&{V4}")));
            for checked in [in_header, in_query] {
                let code = checked.err().map(|refused| refused.code().clone());
                assert_eq!(code.as_ref(), expected, "{list}");
            }
        }
    }

    #[test]
    fn a_presigned_request_is_good_for_a_week_at_most() {
        let headers = HeaderMap::new();
        for good in ["1", "604800"] {
            assert!(check(&headers, Some(&format!("X-Amz-Expires={good}"))).is_ok(), "{good}");
        }
        for bad in ["0", "604801", "-1", "", "soon"] {
            let refused = check(&headers, Some(&format!("a&X-Amz-Expires={bad}"))).unwrap_err();
            assert_eq!(refused.code(), &S3ErrorCode::AuthorizationQueryParametersError, "{bad}");
        }
    }

    #[test]
    fn a_digest_given_as_nothing_is_refused() {
        for name in ["content-md5", "x-amz-checksum-crc32", "x-amz-checksum-sha256"] {
            let mut headers = HeaderMap::new();
            headers.insert(name, "AAAA".parse().unwrap());
            assert!(check_digests(&headers).is_ok());
            headers.insert(name, "".parse().unwrap());
            assert!(check_digests(&headers).is_err(), "{name}");
        }
    }

    #[test]
    fn version_2_urls_are_refused_unless_they_are_switched_on() {
        for query in ["AWSAccessKeyId=a&Expires=1&Signature=00", "Signatur%65=00"] {
            let refused =
                find(&HeaderMap::new(), Some(query), false, (false, "us-east-1")).unwrap_err();
            assert_eq!(refused.code(), &S3ErrorCode::InvalidRequest);
            assert!(refused.message().unwrap().contains("s3v4"), "{refused}");
            assert!(check(&HeaderMap::new(), Some(query)).is_ok());
        }
    }

    #[test]
    fn a_form_is_signed_by_its_fields_alone() {
        let mut headers = HeaderMap::new();
        let form =
            |headers: &HeaderMap, query| find(headers, query, true, (true, "us-east-1")).map(drop);
        assert!(form(&headers, Some("x-id=1")).is_ok());
        for query in ["X-Amz-Signature=0", "X-Amz-Signatur%65=0", "Signature=0"] {
            let refused = form(&headers, Some(query)).unwrap_err();
            assert_eq!(refused.code(), &S3ErrorCode::InvalidArgument, "{query}");
        }
        headers.insert(AUTHORIZATION, "AWS4-HMAC-SHA256".parse().unwrap());
        assert_eq!(form(&headers, None).unwrap_err().code(), &S3ErrorCode::InvalidArgument);
    }

    #[test]
    fn a_signature_for_another_service_is_refused() {
        let mut headers = HeaderMap::new();
        let value = "AWS4-HMAC-SHA256 Credential=a/20260101/r/ec2/aws4_request, SignedHeaders=host, Signature=0";
        headers.insert(AUTHORIZATION, value.parse().unwrap());
        let refused = check(&headers, None).unwrap_err();
        assert_eq!(refused.code(), &S3ErrorCode::AuthorizationHeaderMalformed);
    }

    #[test]
    fn dates_are_in_the_long_form() {
        let mut headers = request("host;x-amz-date;x-amz-acl", "x-amz-acl");
        assert!(check(&headers, None).is_ok());
        headers.insert("x-amz-date", "2006-1-2T150405Z".parse().unwrap());
        let refused = check(&headers, None).unwrap_err();
        assert_eq!(refused.code(), &S3ErrorCode::AuthorizationHeaderMalformed);
        for (from, to) in [("=20260101T", "=2026-1-1T"), ("%2F20260101", "%2F2026-1-1")] {
            let refused = check(&HeaderMap::new(), Some(&V4.replace(from, to))).unwrap_err();
            assert_eq!(refused.code(), &S3ErrorCode::AuthorizationQueryParametersError, "{to}");
        }
    }

    #[test]
    fn version_2_headers_are_refused() {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, "AWS key:signature".parse().unwrap());
        assert_eq!(check(&headers, None).unwrap_err().code(), &S3ErrorCode::InvalidRequest);
    }
}
