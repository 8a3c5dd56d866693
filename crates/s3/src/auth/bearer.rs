//! Tokens that MinIO's client signs with a pair of root's keys for programs that read metrics (`mc admin prometheus`): JSON web
//! tokens of HMAC-SHA-512, RFC 7515 and 7519.
//!
//! # Invariants
//!
//! 1. A token is read only after its signature is verified, all but the access key that names the secret, and no longer one than
//!    [`TOKEN_BYTES_MAX`] is looked at.
//! 2. No algorithm is taken but this one, so that `none` signs nothing.
//! 3. A token lets nobody do anything but read metrics.

use std::time::{SystemTime, UNIX_EPOCH};

use base64_simd::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use s3s::{S3Error, S3ErrorCode};
use serde::Deserialize;
use sha2::Sha512;

use super::root_keys::RootKeys;
use crate::errors;
use crate::limits::TOKEN_BYTES_MAX;

/// The issuer of such tokens, as MinIO's client names it.
const ISSUER: &str = "prometheus";

#[derive(Deserialize)]
struct Header {
    alg: String,
    /// Names extensions that must be understood. None is.
    crit: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Claims {
    /// The access key whose secret signed it.
    sub: String,
    iss: String,
    /// Seconds since 1970 until which it is good. Numbers of RFC 7519 may have a fraction.
    exp: f64,
    /// Seconds since 1970 from which on it is.
    nbf: Option<f64>,
}

/// The access key of root with whose secret the token of a request was signed.
///
/// # Errors
/// `AccessDenied` without a good token, with the remedy.
pub(crate) fn verify(headers: &HeaderMap, root: &RootKeys) -> Result<String, S3Error> {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    token(headers).and_then(|token| user_of(token, root, now_s)).ok_or_else(|| {
        let message = "Metrics are shown to who has a token that root's keys have signed: `mc admin prometheus generate ALIAS` \
                       makes one.";
        errors::error(S3ErrorCode::AccessDenied, message)
    })
}

fn token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("Bearer").then(|| token.trim())
}

fn user_of(token: &str, root: &RootKeys, now_s: f64) -> Option<String> {
    let signed = token.get(..token.rfind('.')?).filter(|_| token.len() <= TOKEN_BYTES_MAX)?;
    let (header, claims) = signed.split_once('.')?;
    let header: Header = part(header)?;
    let claims: Claims = part(claims)?;
    let secret =
        root.secret_of(&claims.sub).filter(|_| header.alg == "HS512" && header.crit.is_none())?;
    let mut mac = Hmac::<Sha512>::new_from_slice(secret.as_bytes()).ok()?;
    mac.update(signed.as_bytes());
    let signature = URL_SAFE_NO_PAD.decode_to_vec(&token[signed.len() + 1..]).ok()?;
    mac.verify_slice(&signature).ok()?;
    let is_now = claims.exp > now_s && claims.nbf.is_none_or(|from| from <= now_s);
    (claims.iss == ISSUER && is_now).then_some(claims.sub)
}

fn part<T: for<'de> Deserialize<'de>>(text: &str) -> Option<T> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode_to_vec(text).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::root_keys::Credentials;

    /// As `mc admin prometheus generate` printed it for the keys below.
    const PRINTED: &str = include_str!("bearer/printed.txt");

    fn root() -> RootKeys {
        let (access_key, secret_key) = ("metrics-reader".to_owned(), "a-secret-of-root".to_owned());
        RootKeys::from(Credentials { access_key, secret_key })
    }

    fn signed(header: &str, claims: &str, secret: &str) -> String {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode_to_string(bytes);
        let text = format!("{}.{}", encode(header.as_bytes()), encode(claims.as_bytes()));
        let mut mac = Hmac::<Sha512>::new_from_slice(secret.as_bytes()).unwrap();
        mac.update(text.as_bytes());
        format!("{text}.{}", encode(&mac.finalize().into_bytes()))
    }

    #[test]
    fn a_token_of_minios_client_is_taken() {
        let user = user_of(PRINTED.trim(), &root(), 1_800_000_000.0);
        assert_eq!(user.as_deref(), Some("metrics-reader"));
    }

    #[test]
    fn a_token_that_is_late_or_for_another_or_not_signed_is_not_taken() {
        const ALG: &str = r#"{"alg":"HS512","typ":"JWT"}"#;
        let claims = |sub: &str, iss: &str, exp: &str| {
            format!(r#"{{"iss":"{iss}","sub":"{sub}","exp":{exp}}}"#)
        };
        let good = claims("metrics-reader", ISSUER, "101");
        let secret = "a-secret-of-root";
        let taken = |token: &str| user_of(token, &root(), 100.5).is_some();
        assert!(taken(&signed(ALG, &good, secret)));
        let late = claims("metrics-reader", ISSUER, "100.5");
        let other = claims("somebody", ISSUER, "101");
        let issuer = claims("metrics-reader", "sts", "101");
        let early = good.replace('}', r#","nbf":101}"#);
        for claims in [&late, &other, &issuer, &early, "{}", "", "[1]"] {
            assert!(!taken(&signed(ALG, claims, secret)), "{claims}");
        }
        for alg in
            [r#"{"alg":"HS512","crit":["b64"]}"#, r#"{"alg":"none"}"#, r#"{"alg":"HS256"}"#, "{}"]
        {
            assert!(!taken(&signed(alg, &good, secret)), "{alg}");
        }
        let token = signed(ALG, &good, "another-secret-of-root");
        assert!(!taken(&token));
        let token = signed(ALG, &good, secret);
        for spoiled in
            ["", ".", "..", "...", "é.é.é", &token[..token.len() - 2], &format!("{token}.")]
        {
            assert!(!taken(spoiled), "{spoiled}");
        }
        let unsigned = token.rsplit_once('.').unwrap().0;
        assert!(!taken(unsigned) && !taken(&format!("{unsigned}.")));
        let long = format!(r#"{{"alg":"HS512","x":"{}"}}"#, "x".repeat(TOKEN_BYTES_MAX));
        assert!(!taken(&signed(&long, &good, secret)));
    }
}
