//! Answers to pages of other origins: to a preflight, by which a browser asks first, and the headers with which it lets a page
//! see any other answer.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderName,
    HeaderValue, ORIGIN, VARY,
};
use http::{Response, StatusCode};
use larder_types::{CorsMethod, CorsRule, CorsRules};
use s3s::{S3Error, S3Result};

use super::matching::{CorsRequest, first, is_for_all};
use crate::errors::custom;
use crate::limits::PREFLIGHT_HEADERS_MAX;

const VARIES: HeaderValue = HeaderValue::from_static(
    "Origin, Access-Control-Request-Headers, Access-Control-Request-Method",
);

/// The headers that let a page of another origin see the answer to its request; `None` if no rule does. The rules are looked
/// up only for a request that has an origin. As in S3, one that asks as a preflight does is judged by what it asks for.
pub(crate) fn shown(
    rules: impl FnOnce() -> Option<CorsRules>,
    method: &str,
    headers: &HeaderMap,
) -> Option<HeaderMap> {
    let origin = headers.get(ORIGIN)?;
    allowed(&rules()?, (origin, requested_method(headers).unwrap_or(method)), headers)
}

/// Answers a preflight of a bucket with such rules, if it has any.
///
/// # Errors
/// `BadRequest` for what is none; `AccessForbidden` if no rule allows it.
pub(crate) fn preflight(
    rules: impl FnOnce() -> Option<CorsRules>,
    headers: &HeaderMap,
) -> S3Result<Response<s3s::Body>> {
    let origin = headers.get(ORIGIN).ok_or_else(|| {
        bad_request("Insufficient information. Origin request header needed.".to_owned())
    })?;
    let method = requested_method(headers).unwrap_or("null");
    if method.parse::<CorsMethod>().is_err() {
        return Err(bad_request(format!("Invalid Access-Control-Request-Method: {method}")));
    }
    let rules =
        rules().ok_or_else(|| forbidden("CORSResponse: CORS is not enabled for this bucket."))?;
    let allowed_headers = allowed(&rules, (origin, method), headers).ok_or_else(|| {
        forbidden(
            "CORSResponse: This CORS request is not allowed. This is usually because the evaluation of Origin, \
             request method / Access-Control-Request-Method or Access-Control-Request-Headers are not whitelisted \
             by the resource's CORS spec.",
        )
    })?;
    let mut response = Response::new(s3s::Body::empty());
    *response.headers_mut() = allowed_headers;
    Ok(response)
}

/// The headers for a browser that asks for this method and for these headers, if a rule allows it.
fn allowed(
    rules: &CorsRules,
    (origin, method): (&HeaderValue, &str),
    headers: &HeaderMap,
) -> Option<HeaderMap> {
    let asked = requested_headers(headers)?;
    let wanted = CorsRequest { origin: origin.to_str().ok()?, method, headers: &asked };
    let mut allowed_headers = allow_headers(first(rules, &wanted)?, origin);
    if !asked.is_empty() {
        add(&mut allowed_headers, ACCESS_CONTROL_ALLOW_HEADERS, &asked.join(", "));
    }
    Some(allowed_headers)
}

/// The method that a preflight asks for.
fn requested_method(headers: &HeaderMap) -> Option<&str> {
    headers.get(ACCESS_CONTROL_REQUEST_METHOD).map(|value| value.to_str().unwrap_or(""))
}

/// The names of headers that a preflight asks for, in lower case; `None` if they are too many to be looked at.
fn requested_headers(headers: &HeaderMap) -> Option<Vec<String>> {
    let lines = headers.get_all(ACCESS_CONTROL_REQUEST_HEADERS).iter();
    let lines = lines.map(|line| line.to_str()).collect::<Result<Vec<_>, _>>().ok()?;
    let names = lines.iter().flat_map(|line| line.split(',')).map(str::trim);
    let names = names.filter(|name| !name.is_empty()).take(PREFLIGHT_HEADERS_MAX + 1);
    let names: Vec<String> = names.map(str::to_ascii_lowercase).collect();
    (names.len() <= PREFLIGHT_HEADERS_MAX).then_some(names)
}

/// The headers by which a browser learns a rule. It caches a response for all equal requests.
fn allow_headers(rule: &CorsRule, origin: &HeaderValue) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(8);
    if is_for_all(rule) {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    } else {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    }
    let methods: Vec<&str> = rule.methods.iter().map(|method| method.as_str()).collect();
    add(&mut headers, ACCESS_CONTROL_ALLOW_METHODS, &methods.join(", "));
    if !rule.exposed.is_empty() {
        add(&mut headers, ACCESS_CONTROL_EXPOSE_HEADERS, &rule.exposed.join(", "));
    }
    if let Some(seconds) = rule.max_age_s {
        headers.insert(ACCESS_CONTROL_MAX_AGE, seconds.into());
    }
    headers.insert(VARY, VARIES);
    headers
}

/// Rules have names of headers and methods only, all of which can stand in a header.
fn add(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::try_from(text) {
        headers.insert(name, value);
    }
}

fn bad_request(message: String) -> S3Error {
    custom("BadRequest", StatusCode::BAD_REQUEST, message)
}

fn forbidden(message: &str) -> S3Error {
    custom("AccessForbidden", StatusCode::FORBIDDEN, message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(origins: &[&str]) -> Option<CorsRules> {
        let rule = CorsRule {
            id: None,
            methods: vec![CorsMethod::Put, CorsMethod::Get],
            origins: origins.iter().map(|&it| it.to_owned()).collect(),
            headers: vec!["x-*".to_owned()],
            exposed: vec!["ETag".to_owned(), "x-amz-request-id".to_owned()],
            max_age_s: Some(0),
        };
        CorsRules::new(vec![rule]).ok()
    }

    fn headers(all: &[(HeaderName, &str)]) -> HeaderMap {
        let value = |text: &str| HeaderValue::try_from(text).unwrap();
        let mut headers = HeaderMap::new();
        for (name, text) in all {
            headers.append(name.clone(), value(text));
        }
        headers
    }

    #[test]
    fn a_request_without_an_origin_looks_up_no_rules() {
        let none = shown(|| panic!("they are looked up"), "GET", &HeaderMap::new());
        assert_eq!(none, None);
    }

    #[test]
    fn an_origin_is_named_unless_all_are_allowed() {
        let asks = headers(&[(ORIGIN, "https://a.example")]);
        let named = shown(|| rules(&["https://*"]), "GET", &asks).unwrap();
        assert_eq!(named[ACCESS_CONTROL_ALLOW_ORIGIN], "https://a.example");
        assert_eq!(named[ACCESS_CONTROL_ALLOW_CREDENTIALS], "true");
        assert_eq!(named[ACCESS_CONTROL_ALLOW_METHODS], "PUT, GET");
        assert_eq!(named[ACCESS_CONTROL_EXPOSE_HEADERS], "ETag, x-amz-request-id");
        assert_eq!((&named[ACCESS_CONTROL_MAX_AGE], &named[VARY]), (&0.into(), &VARIES));
        let all = shown(|| rules(&["https://a.example", "*"]), "GET", &asks).unwrap();
        assert_eq!(all[ACCESS_CONTROL_ALLOW_ORIGIN], "*");
        assert!(!all.contains_key(ACCESS_CONTROL_ALLOW_CREDENTIALS));
        assert_eq!(shown(|| rules(&["http://*"]), "GET", &asks), None);
        assert_eq!(shown(|| rules(&["*"]), "DELETE", &asks), None);
        assert_eq!(shown(|| None, "GET", &asks), None);
        let (asks_put, asks_x) =
            ((ACCESS_CONTROL_REQUEST_METHOD, "PUT"), (ACCESS_CONTROL_REQUEST_HEADERS, "X-a"));
        let asks = headers(&[(ORIGIN, "https://a.example"), asks_put, asks_x]);
        let put = shown(|| rules(&["*"]), "DELETE", &asks).unwrap();
        assert_eq!(put[ACCESS_CONTROL_ALLOW_HEADERS], "x-a", "it asks as a preflight does");
    }

    #[test]
    fn a_preflight_asks_for_a_bounded_number_of_headers() {
        let of = |count: usize| {
            let names = vec!["X-a,"; count].concat();
            let asks = headers(&[
                (ORIGIN, "null"),
                (ACCESS_CONTROL_REQUEST_METHOD, "PUT"),
                (ACCESS_CONTROL_REQUEST_HEADERS, " , X-B"),
                (ACCESS_CONTROL_REQUEST_HEADERS, &names),
            ]);
            preflight(|| rules(&["*"]), &asks).map_err(|error| error.status_code().unwrap())
        };
        let answer = of(1).unwrap();
        assert_eq!(answer.headers()[ACCESS_CONTROL_ALLOW_HEADERS], "x-b, x-a");
        assert!(of(PREFLIGHT_HEADERS_MAX - 1).is_ok());
        assert_eq!(of(PREFLIGHT_HEADERS_MAX).unwrap_err(), StatusCode::FORBIDDEN);
    }
}
