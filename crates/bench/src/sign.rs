//! AWS Signature Version 4 in the `Authorization` header.
//!
//! # Invariants
//! - The signing key is derived once per day, and its HMAC state kept: a signature costs two SHA-256
//!   runs over a few hundred bytes.
//! - A secret is never printed: [`Credentials`] has no `Debug` that shows it.

use std::fmt::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::BenchError;

/// The payload hash of a request whose body is not covered by the signature.
pub const UNSIGNED_PAYLOAD: &str = "UNSIGNED-PAYLOAD";
/// SHA-256 of nothing: the payload hash of a request without a body.
pub const EMPTY_PAYLOAD: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

const SECONDS_PER_DAY: u64 = 86_400;

/// The keys that sign, and the region.
#[derive(Clone)]
pub struct Credentials {
    access_key: String,
    secret_key: String,
    region: String,
}

impl Credentials {
    /// Checks and takes credentials.
    ///
    /// # Errors
    /// [`BenchError::Usage`] naming the variable that cannot stand in a header.
    pub fn new(access_key: &str, secret_key: &str, region: &str) -> Result<Self, BenchError> {
        for (field, value) in [("AWS_ACCESS_KEY_ID", access_key), ("AWS_REGION", region)] {
            if value.is_empty() || !value.bytes().all(|b| b.is_ascii_graphic() && b != b'/') {
                let reason = format!("{value:?} is not a name of ASCII characters without '/'");
                return Err(BenchError::usage(field, reason));
            }
        }
        Ok(Self {
            access_key: access_key.to_owned(),
            secret_key: secret_key.to_owned(),
            region: region.to_owned(),
        })
    }

    /// Reads the keys from the usual AWS environment variables.
    ///
    /// # Errors
    /// [`BenchError::Usage`] naming the variable that is not set.
    pub fn from_env() -> Result<Self, BenchError> {
        let required = |name| {
            std::env::var(name).map_err(|_| {
                BenchError::usage(name, "not set: set it to the key that the server printed")
            })
        };
        let region = std::env::var("AWS_REGION").or_else(|_| std::env::var("AWS_DEFAULT_REGION"));
        Self::new(
            &required("AWS_ACCESS_KEY_ID")?,
            &required("AWS_SECRET_ACCESS_KEY")?,
            region.as_deref().unwrap_or("us-east-1"),
        )
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("access_key", &self.access_key)
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

/// The signed part of a request.
#[derive(Debug)]
pub struct Signed<'a> {
    /// Method.
    pub method: &'a str,
    /// Path, encoded by [`encode_path`].
    pub path: &'a str,
    /// Query in canonical form: names in byte order, names and values encoded by [`encode_value`].
    pub query: &'a str,
    /// Headers to sign: names in lower case and byte order, values trimmed.
    pub headers: &'a [(&'a str, &'a str)],
    /// Hex SHA-256 of the body, or [`UNSIGNED_PAYLOAD`].
    pub payload: &'a str,
}

/// Signs the requests of one client.
#[derive(Debug)]
pub struct Signer {
    credentials: Credentials,
    day: String,
    scope: String,
    key: Hmac<Sha256>,
    canonical: String,
}

impl Signer {
    /// A signer that has derived no key yet.
    #[must_use]
    pub fn new(credentials: Credentials) -> Self {
        Self {
            credentials,
            day: String::new(),
            scope: String::new(),
            key: mac(b"no day yet"),
            canonical: String::with_capacity(512),
        }
    }

    /// The `Authorization` header of a request made at `time`, which is also its `x-amz-date`.
    ///
    /// # Panics
    /// If `time` is not in the form of [`amz_date`].
    #[must_use]
    pub fn authorization(&mut self, time: &str, request: &Signed<'_>) -> String {
        assert_eq!(time.len(), 16, "a time is written as 20130524T000000Z");
        self.derive_key(&time[..8]);
        self.write_canonical(request);
        let digest = hex(&Sha256::digest(self.canonical.as_bytes()));
        let mut signature = self.key.clone();
        for part in ["AWS4-HMAC-SHA256\n", time, "\n", &self.scope, "\n", &digest] {
            signature.update(part.as_bytes());
        }
        let signature = signature.finalize().into_bytes();
        let mut header = String::with_capacity(256);
        header.push_str("AWS4-HMAC-SHA256 Credential=");
        header.push_str(&self.credentials.access_key);
        header.push('/');
        header.push_str(&self.scope);
        header.push_str(", SignedHeaders=");
        push_names(&mut header, request.headers);
        header.push_str(", Signature=");
        header.push_str(&hex(&signature));
        header
    }

    fn derive_key(&mut self, day: &str) {
        if self.day == day {
            return;
        }
        self.day = day.to_owned();
        self.scope = format!("{day}/{}/s3/aws4_request", self.credentials.region);
        let first = format!("AWS4{}", self.credentials.secret_key);
        let key = [day, &self.credentials.region, "s3", "aws4_request"]
            .iter()
            .fold(first.into_bytes(), |key, part| {
                mac(&key).chain_update(part.as_bytes()).finalize().into_bytes().to_vec()
            });
        self.key = mac(&key);
    }

    fn write_canonical(&mut self, request: &Signed<'_>) {
        let text = &mut self.canonical;
        text.clear();
        for line in [request.method, request.path, request.query] {
            text.push_str(line);
            text.push('\n');
        }
        for (name, value) in request.headers {
            text.push_str(name);
            text.push(':');
            text.push_str(value);
            text.push('\n');
        }
        text.push('\n');
        push_names(text, request.headers);
        text.push('\n');
        text.push_str(request.payload);
    }
}

fn mac(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of any length")
}

fn push_names(text: &mut String, headers: &[(&str, &str)]) {
    for (index, (name, _)) in headers.iter().enumerate() {
        if index > 0 {
            text.push(';');
        }
        text.push_str(name);
    }
}

/// Bytes in lower-case hexadecimal.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let mut text = String::with_capacity(bytes.len() * 2);
    text.extend(digits.map(|digit| char::from(DIGITS[usize::from(digit)])));
    text
}

/// `key` as it stands in a request's path: all but unreserved characters and `/` percent-encoded.
pub fn encode_path(key: &str, out: &mut String) {
    encode(key, b"/", out);
}

/// `value` as it stands in a query.
pub fn encode_value(value: &str, out: &mut String) {
    encode(value, b"", out);
}

fn encode(text: &str, kept: &[u8], out: &mut String) {
    for &byte in text.as_bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || kept.contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

/// The moment as `x-amz-date` has it: `20130524T000000Z`.
#[must_use]
pub fn amz_date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let (year, month, day) = civil(seconds / SECONDS_PER_DAY);
    let second = seconds % SECONDS_PER_DAY;
    format!(
        "{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// Year, month and day of a day since 1970, in the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    // Years are counted from March, so that the leap day is a year's last.
    let days = days + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests;
