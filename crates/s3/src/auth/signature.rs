//! The one place where a request's signature is checked, whether it is in a header, in a query or in a form's fields.
//!
//! # Invariants
//!
//! 1. What comes from here as [`Signed`] holds a signature that is right and of its time. Nothing below checks again.
//! 2. A body is not looked at: it is compared with what its request signs of it while it is read.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use s3s::dto::{Timestamp, TimestampFormat};
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::authorization::{self, Authorization, Credential, TOKEN, refuse_token, token_of};
use super::policy::Policy;
use super::root_keys::{NamedKey, RootKeys};
use super::signed::{self, Given};
use super::version_2;
use super::version_4::{Scope, Signable, Signature, SigningKey, UNSIGNED, sha256};
use crate::errors::elements::{self, invalid_argument};
use crate::errors::{error, missing_field};
use crate::limits::{CANONICAL_SHOWN_BYTES_MAX, CLOCK_SKEW_MAX_S, FORM_AGE_S_MAX};
use crate::options::Domains;

const CONTENT_SHA256: &str = "x-amz-content-sha256";
/// The bodies that come in chunks: their names, whether each chunk must be signed, and whether trailers follow.
const CHUNKED: [(&str, bool, bool); 3] = [
    ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", true, false),
    ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", true, true),
    ("STREAMING-UNSIGNED-PAYLOAD-TRAILER", false, true),
];

/// A request whose signature is right.
#[derive(Debug)]
pub(crate) struct Signed {
    /// The access key that it is signed with.
    pub(crate) user: String,
    pub(crate) payload: Payload,
}

/// The word of a signature about the request's body.
#[derive(Debug)]
pub(crate) enum Payload {
    Unsigned,
    /// Its SHA-256.
    Hash([u8; 32]),
    /// It comes in aws-chunks.
    Chunks {
        /// Bytes of the body without its framing.
        len: u64,
        signer: Box<ChunkSigner>,
    },
}

/// Checks the signatures of a body's chunks, each of which signs the one before it.
#[derive(Debug)]
pub(crate) struct ChunkSigner {
    key: SigningKey,
    scope: [String; 3],
    before: Signature,
    /// False if chunks may come without a signature.
    pub(crate) is_required: bool,
    /// True if trailers must follow the last chunk, with a signature if chunks need one.
    pub(crate) has_trailer: bool,
}

impl ChunkSigner {
    fn scope(&self) -> Scope<'_> {
        let [time, day, region] = &self.scope;
        Scope { time, day, region }
    }

    /// The signature of the next chunk, which has this hash.
    pub(crate) fn sign_chunk(&mut self, hash: &str) -> &Signature {
        let mut text = self.scope().lines("AWS4-HMAC-SHA256-PAYLOAD");
        for line in [self.before.as_str(), "\n", sha256(b"").as_str(), "\n", hash] {
            text.push_str(line);
        }
        self.before = self.key.sign(text.as_bytes());
        &self.before
    }

    /// The signature of trailers, which follow the last chunk.
    pub(crate) fn sign_trailer(&self, trailers: &[u8]) -> Signature {
        let mut text = self.scope().lines("AWS4-HMAC-SHA256-TRAILER");
        for line in [self.before.as_str(), "\n", sha256(trailers).as_str()] {
            text.push_str(line);
        }
        self.key.sign(text.as_bytes())
    }

    /// A signer of chunks that follow this signature.
    #[cfg(test)]
    pub(crate) fn after(
        before: &str,
        key: SigningKey,
        scope: [&str; 3],
        is_required: bool,
    ) -> Self {
        let (scope, before) = (scope.map(str::to_owned), Signature::of(before));
        Self { key, scope, before, is_required, has_trailer: false }
    }
}

/// Checks signatures with the keys and the settings of one service.
#[derive(Debug, Clone)]
pub(crate) struct Signatures {
    pub(crate) root: RootKeys,
    pub(crate) domains: Domains,
    /// True if queries may be signed by version 2.
    pub(crate) version_2: bool,
    /// This server's region.
    pub(crate) region: String,
}

impl Signatures {
    /// Checks the signature of a request; `None` if it has none. `body_bytes` is the body's length, if that is known.
    ///
    /// # Errors
    /// As S3: the error names the fault.
    pub(crate) fn verify(
        &self,
        parts: &Parts,
        body_bytes: Option<u64>,
    ) -> S3Result<Option<Signed>> {
        let given = self.find(&parts.headers, parts.uri.query(), false)?;
        let in_header = parts.headers.get(TOKEN).map(HeaderValue::as_bytes);
        let (signed, token) = match &given {
            Given::Nothing | Given::Form => return Ok(None),
            Given::Header(given) => (self.verify_header(parts, given, body_bytes)?, None),
            Given::Version4(query) => (self.verify_query(parts, query)?, token_of(query)),
            Given::Version2(query) => (self.verify_version_2(parts, query)?, token_of(query)),
        };
        refuse_token(in_header.or(token))?;
        Ok(Some(signed))
    }

    /// Finds the signature that a request gives.
    ///
    /// # Errors
    /// As [`signed::find`].
    pub(crate) fn find<'r>(
        &self,
        headers: &'r HeaderMap,
        query: Option<&str>,
        is_form: bool,
    ) -> S3Result<Given<'r>> {
        signed::find(headers, query, is_form, (self.version_2, &self.region))
    }

    fn verify_header(
        &self,
        parts: &Parts,
        given: &Authorization<'_>,
        body_bytes: Option<u64>,
    ) -> S3Result<Signed> {
        let headers = &parts.headers;
        let credential = given.credential;
        let mut names: Vec<&str> = given.names.split(';').collect();
        names.sort_unstable();
        let time = required(headers, "x-amz-date")?;
        in_scope(&credential, time)?;
        in_time(time, CLOCK_SKEW_MAX_S)?;
        let payload = required(headers, CONTENT_SHA256)?;
        let named = self.key(&credential)?;
        let chunked = CHUNKED.iter().find(|(name, ..)| *name == payload);
        let hash = parse_hash(payload);
        if chunked.is_none() && hash.is_none() && payload != UNSIGNED {
            return Err(unknown_payload(payload));
        }
        let scope = Scope { time, day: credential.day, region: credential.region };
        let (method, uri) = (&parts.method, &parts.uri);
        let signable = Signable { method, uri, headers, names: &names, payload };
        let user = credential.access_key;
        let before = check(&signable, &scope, (user, &named.key), given.signature)?;
        let key = named.was_right(credential.day, credential.region);
        let payload = match (chunked, hash) {
            (Some(&(_, is_required, has_trailer)), _) => {
                let len = chunked_len(headers, has_trailer)?;
                let scope = [scope.time, scope.day, scope.region].map(str::to_owned);
                let signer = ChunkSigner { key, scope, before, is_required, has_trailer };
                Payload::Chunks { len, signer: Box::new(signer) }
            }
            (None, _) if body_bytes.is_none() => return Err(missing_length("content-length")),
            (None, Some(hash)) => Payload::Hash(hash),
            (None, None) => Payload::Unsigned,
        };
        Ok(Signed { user: credential.access_key.to_owned(), payload })
    }

    fn verify_query(&self, parts: &Parts, query: &[(String, String)]) -> S3Result<Signed> {
        // All of them are there, and well-formed.
        let parameter = |wanted: &str| {
            let found = query.iter().find(|(name, _)| name == wanted);
            found.map_or("", |(_, value)| value.as_str())
        };
        let text = parameter("X-Amz-Credential");
        let credential = Credential::parse(text).ok_or_else(|| mismatch(None))?;
        let time = parameter("X-Amz-Date");
        in_scope(&credential, time)?;
        let payload = payload_of_url(&parts.headers)?;
        let (now, signed) = (now_s(), unix_s(time)?);
        if signed - now > i64::from(CLOCK_SKEW_MAX_S) {
            return Err(error(S3ErrorCode::AccessDenied, "Request is not valid yet"));
        }
        let expires: i64 = parameter("X-Amz-Expires").parse().unwrap_or(0);
        if now - signed > expires {
            return Err(expired(Some(expires), signed + expires));
        }
        let named = self.key(&credential)?;
        let names: Vec<&str> = parameter("X-Amz-SignedHeaders").split(';').collect();
        let (method, uri, headers) = (&parts.method, &parts.uri, &parts.headers);
        let signable = Signable { method, uri, headers, names: &names, payload: UNSIGNED };
        let scope = Scope { time, day: credential.day, region: credential.region };
        let user = credential.access_key;
        check(&signable, &scope, (user, &named.key), parameter("X-Amz-Signature"))?;
        named.was_right(credential.day, credential.region);
        Ok(Signed { user: credential.access_key.to_owned(), payload })
    }

    fn verify_version_2(&self, parts: &Parts, query: &[(String, String)]) -> S3Result<Signed> {
        let parameter = |wanted: &str| {
            let found = query.iter().find(|(name, _)| name == wanted);
            found.map(|(_, value)| value.as_str())
        };
        let expires = parameter("Expires").and_then(|text| text.parse::<u64>().ok());
        let (Some(user), Some(expires)) = (parameter("AWSAccessKeyId"), expires) else {
            let message =
                "A query that is signed by version 2 has AWSAccessKeyId, Expires and Signature.";
            return Err(error(S3ErrorCode::InvalidRequest, message));
        };
        let expires = expires.min(u64::from(u32::MAX));
        if SystemTime::now() > UNIX_EPOCH + Duration::from_secs(expires) {
            return Err(expired(None, expires as i64));
        }
        let payload = payload_of_url(&parts.headers)?;
        let secret = self.root.secret_of(user).ok_or_else(|| no_such_key(user))?;
        let request = (&parts.method, &parts.uri, &parts.headers);
        version_2::check_url(request, query, &self.domains, &secret)?;
        Ok(Signed { user: user.to_owned(), payload })
    }

    /// Checks the signature of a form, whose fields `field` gives by their names; `None` if it has none.
    ///
    /// # Errors
    /// As S3: the error names the fault.
    pub(crate) fn verify_form<'f>(
        &self,
        field: impl Fn(&str) -> Option<&'f str>,
    ) -> S3Result<Option<Signed>> {
        let needed = |name: &'static str| field(name).ok_or_else(|| missing_field(name));
        let signed_by = |user: &str| Signed { user: user.to_owned(), payload: Payload::Unsigned };
        let is_encoded = |policy: &str| base64_simd::STANDARD.check(policy.as_bytes()).is_ok();
        let malformed =
            |name: &str| error(S3ErrorCode::InvalidRequest, format!("invalid field: {name}"));
        if let Some(given) = field("x-amz-signature") {
            let policy = needed("policy")?;
            let (algorithm, date) = (needed("x-amz-algorithm")?, needed("x-amz-date")?);
            let credential = needed("x-amz-credential")?;
            if !is_encoded(policy) {
                return Err(malformed("policy"));
            }
            if algorithm != authorization::SCHEME {
                return Err(not_implemented("x-amz-algorithm other than AWS4-HMAC-SHA256"));
            }
            let credential =
                Credential::parse(credential).ok_or_else(|| malformed("x-amz-credential"))?;
            let named = self.key(&credential)?;
            names_its_signature(policy, &field)?;
            in_scope(&credential, date)?;
            in_time(date, FORM_AGE_S_MAX)?;
            if !named.key.sign(policy.as_bytes()).is(given.as_bytes()) {
                return Err(mismatch(None));
            }
            named.was_right(credential.day, credential.region);
            refuse_token(field(TOKEN).map(str::as_bytes))?;
            return Ok(Some(signed_by(credential.access_key)));
        }
        let Some(given) = field("signature") else {
            return match field("awsaccesskeyid").or(field("x-amz-credential")) {
                Some(_) => Err(unsigned_form()),
                None => Ok(None),
            };
        };
        let (policy, user) = (needed("policy")?, needed("awsaccesskeyid")?);
        if !is_encoded(policy) {
            return Err(malformed("policy"));
        }
        let secret = self.root.secret_of(user).ok_or_else(|| no_such_key(user))?;
        version_2::compare(&secret, policy, given)?;
        refuse_token(field(TOKEN).map(str::as_bytes))?;
        Ok(Some(signed_by(user)))
    }

    fn key(&self, credential: &Credential<'_>) -> S3Result<NamedKey> {
        let Credential { access_key, day, region } = credential;
        self.root.signing_key(access_key, day, region).ok_or_else(|| no_such_key(access_key))
    }
}

/// Compares the signature of a request, in the spelling of its path that clients sign.
fn check(
    request: &Signable<'_>,
    scope: &Scope<'_>,
    (user, key): (&str, &SigningKey),
    given: &str,
) -> S3Result<Signature> {
    let signature = |canonical: &str| key.sign(scope.text_of(canonical).as_bytes());
    let canonical = request.canonical();
    let right = signature(&canonical);
    if right.is(given.as_bytes()) {
        return Ok(right);
    }
    let as_it_came = request.canonical_as_it_came().map(|canonical| signature(&canonical));
    as_it_came
        .filter(|right| right.is(given.as_bytes()))
        .ok_or_else(|| signed_otherwise(user, (scope, &canonical), given))
}

/// The refusal of a signature that is not the one of its text. As in S3 the client is told that text, in which it finds
/// what it has signed otherwise. It has nothing but what the client sent.
fn signed_otherwise(user: &str, (scope, canonical): (&Scope<'_>, &str), given: &str) -> S3Error {
    let refused = mismatch(None);
    if canonical.len() + given.len() > CANONICAL_SHOWN_BYTES_MAX {
        return refused;
    }
    let details = [
        ("AWSAccessKeyId", user.to_owned()),
        ("StringToSign", scope.text_of(canonical)),
        ("SignatureProvided", given.to_owned()),
        ("CanonicalRequest", canonical.to_owned()),
    ];
    elements::with(refused, details)
}

/// Refuses a time that is further from now.
fn in_time(time: &str, seconds_max: u32) -> S3Result<()> {
    let now = now_s();
    if (now - unix_s(time)?).abs() <= i64::from(seconds_max) {
        return Ok(());
    }
    let message = "The difference between the request time and the current time is too large.";
    let skewed = error(S3ErrorCode::RequestTimeTooSkewed, message);
    let millis = (u64::from(seconds_max) * 1000).to_string();
    let details = [
        ("RequestTime", time.to_owned()),
        ("ServerTime", date(now)),
        ("MaxAllowedSkewMilliseconds", millis),
    ];
    Err(elements::with(skewed, details))
}

/// A form that names a key and has no signature: most often one whose signature stands behind the file.
fn unsigned_form() -> S3Error {
    let message = "Bucket POST must contain a field named 'signature' or 'x-amz-signature'. If it is specified, please check the order \
                   of the fields.";
    error(S3ErrorCode::InvalidArgument, message)
}

/// A form's policy says with which time, keys and algorithm it is signed.
fn names_its_signature<'f>(policy: &str, field: &impl Fn(&str) -> Option<&'f str>) -> S3Result<()> {
    let policy = Policy::parse(policy)?;
    for name in ["x-amz-date", "x-amz-credential", "x-amz-algorithm"] {
        if policy.said(name) != field(name) {
            let message = format!("{name} does not match policy");
            return Err(error(S3ErrorCode::InvalidPolicyDocument, message));
        }
    }
    Ok(())
}

/// The value of a header that stands there once, and is text.
fn only<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    values.next().is_none().then(|| std::str::from_utf8(value.as_bytes()).ok())?
}

fn required<'h>(headers: &'h HeaderMap, name: &str) -> S3Result<&'h str> {
    let wrong = || match (headers.contains_key(name), name) {
        (false, "x-amz-date" | CONTENT_SHA256) => signed::not_sent(name),
        (false, _) => error(S3ErrorCode::InvalidRequest, format!("missing header: {name}")),
        (true, _) => error(S3ErrorCode::InvalidRequest, format!("invalid header: {name}")),
    };
    only(headers, name).ok_or_else(wrong)
}

/// The word of a signed URL about its request's body, which is a header of that. One that is there and odd is refused:
/// it must not count as none.
fn payload_of_url(headers: &HeaderMap) -> S3Result<Payload> {
    if !headers.contains_key(CONTENT_SHA256) {
        return Ok(Payload::Unsigned);
    }
    let payload = required(headers, CONTENT_SHA256)?;
    match parse_hash(payload) {
        Some(hash) => Ok(Payload::Hash(hash)),
        None if payload == UNSIGNED => Ok(Payload::Unsigned),
        None if CHUNKED.iter().any(|(name, ..)| *name == payload) => {
            Err(not_implemented("streaming payload for presigned URLs"))
        }
        None => Err(unknown_payload(payload)),
    }
}

/// The scope of a signature is of the day on which it was made.
fn in_scope(credential: &Credential<'_>, time: &str) -> S3Result<()> {
    match time.get(..8) == Some(credential.day) {
        true => Ok(()),
        false => Err(mismatch(Some("credential scope date does not match x-amz-date"))),
    }
}

/// Reads the SHA-256 of a body, in lower-case hexadecimal digits.
pub(crate) fn parse_hash(text: &str) -> Option<[u8; 32]> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut hash = [0; 32];
    if pairs.len() != hash.len() {
        return None;
    }
    for (byte, [high, low]) in hash.iter_mut().zip(pairs) {
        *byte = digit(*high)? * 16 + digit(*low)?;
    }
    Some(hash)
}

/// The length of a chunked body without its framing.
fn chunked_len(headers: &HeaderMap, has_trailer: bool) -> S3Result<u64> {
    let name = "x-amz-decoded-content-length";
    if has_trailer {
        required(headers, "x-amz-trailer")?;
    }
    let text = only(headers, name).ok_or_else(|| missing_length(name))?;
    let malformed = |_| error(S3ErrorCode::InvalidRequest, format!("invalid header: {name}"));
    text.parse().map_err(malformed)
}

/// Seconds since 1970 of a time in the form `YYYYMMDDTHHMMSSZ`.
fn unix_s(time: &str) -> S3Result<i64> {
    let invalid =
        || error(S3ErrorCode::InvalidRequest, "The date of the signature does not exist.");
    let number = |from: usize, to: usize| time.get(from..to)?.parse::<i64>().ok();
    let numbers = || {
        let date = [number(0, 4)?, number(4, 6)?, number(6, 8)?];
        Some((date, [number(9, 11)?, number(11, 13)?, number(13, 15)?]))
    };
    let ([year, month, day], [hour, minute, second]) = numbers().ok_or_else(invalid)?;
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_of_month = match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let exists = (1..=12).contains(&month)
        && (1..=days_of_month).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0..60).contains(&second);
    if !exists {
        return Err(invalid());
    }
    // Years begin in March here, so that a leap day is the last of its year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days_before_year =
        year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days = days_before_year + (153 * month + 2) / 5 + day - 1 - DAYS_BEFORE_1970;
    Ok(((days * 24 + hour) * 60 + minute) * 60 + second)
}

/// Days from the first of March of the year 0 to the beginning of 1970.
const DAYS_BEFORE_1970: i64 = 719_468;

fn now_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn mismatch(why: Option<&'static str>) -> S3Error {
    match why {
        Some(why) => error(S3ErrorCode::SignatureDoesNotMatch, why),
        None => S3Error::new(S3ErrorCode::SignatureDoesNotMatch),
    }
}

fn unknown_payload(payload: &str) -> S3Error {
    match payload.starts_with("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD") {
        true => not_implemented("AWS4-ECDSA-P256-SHA256 signing"),
        false => invalid_argument(
            "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-UNSIGNED-PAYLOAD-TRAILER, \
             STREAMING-AWS4-HMAC-SHA256-PAYLOAD, STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER or a valid sha256 value.",
            CONTENT_SHA256,
            payload,
        ),
    }
}

fn not_implemented(what: &str) -> S3Error {
    crate::errors::not_implemented(what)
}

fn no_such_key(access_key: &str) -> S3Error {
    let message = "The AWS Access Key Id you provided does not exist in our records.";
    let refused = error(S3ErrorCode::InvalidAccessKeyId, message);
    elements::with(refused, [("AWSAccessKeyId", access_key.to_owned())])
}

/// A URL that was good for so many seconds, until that time in seconds since 1970.
fn expired(seconds: Option<i64>, until: i64) -> S3Error {
    let refused = error(S3ErrorCode::AccessDenied, "Request has expired");
    let refused = elements::with(refused, seconds.map(|it| ("X-Amz-Expires", it.to_string())));
    elements::with(refused, [("Expires", date(until)), ("ServerTime", date(now_s()))])
}

/// A time in seconds since 1970 as S3 writes it.
fn date(unix_s: i64) -> String {
    let mut text = Vec::new();
    let time = UNIX_EPOCH + Duration::from_secs(u64::try_from(unix_s).unwrap_or(0));
    match Timestamp::from(time).format(TimestampFormat::DateTime, &mut text) {
        Ok(()) => String::from_utf8_lossy(&text).into_owned(),
        Err(_) => String::new(),
    }
}

fn missing_length(name: &str) -> S3Error {
    error(S3ErrorCode::MissingContentLength, format!("missing header: {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signed_hash_is_64_lower_case_digits() {
        assert_eq!(parse_hash(&"0f".repeat(32)), Some([15; 32]));
        for other in
            [UNSIGNED, "", &"0".repeat(63), &"0".repeat(66), &"g".repeat(64), &"0F".repeat(32)]
        {
            assert_eq!(parse_hash(other), None, "{other}");
        }
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (text, seconds) in [
            ("19700101T000000Z", Some(0)),
            ("20240229T235959Z", Some(1_709_251_199)),
            ("20261130T143623Z", Some(1_796_049_383)),
            ("20000301T000000Z", Some(951_868_800)),
            ("20230229T000000Z", None),
            ("21000229T000000Z", None),
            ("20260431T000000Z", None),
            ("20261301T000000Z", None),
            ("20260101T240000Z", None),
            ("20260101T006000Z", None),
            ("20260101", None),
        ] {
            assert_eq!(unix_s(text).ok(), seconds, "{text}");
        }
    }

    /// The published example of a body in three chunks.
    #[test]
    fn chunks_are_signed_as_in_the_published_example() {
        let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
        let scope = ["20130524T000000Z", "20130524", "us-east-1"];
        let seed = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9";
        let key = SigningKey::new(secret, scope[1], scope[2]);
        let mut signer = ChunkSigner::after(seed, key, scope, true);
        for (bytes, signature) in [
            (65_536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
            (1024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
            (0, "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
        ] {
            let hash = sha256(&vec![b'a'; bytes]);
            assert!(signer.sign_chunk(hash.as_str()).is(signature.as_bytes()), "{bytes}");
        }
    }
}
