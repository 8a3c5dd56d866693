//! Requests for server-side encryption, which no release does yet: a request that contradicts itself
//! is told so, any other that it is not implemented.

use http::HeaderMap;
use s3s::crypto::{Checksum as _, Md5};
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::head::Line;
use crate::errors::{error, not_implemented};

/// The name of the header, and the beginning of all others.
const HEADER: &str = "x-amz-server-side-encryption";
/// The only algorithm for keys that customers provide (S3).
const CUSTOMER_ALGORITHM: &str = "AES256";
/// Bytes of such a key.
const CUSTOMER_KEY_BYTES: usize = 32;
/// The algorithms that may be asked for instead, with keys of the service (S3).
const SERVICE_ALGORITHMS: [&str; 3] = ["AES256", "aws:kms", "aws:kms:dsse"];

/// The encryption that a put, copy or upload asks for.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Encryption {
    service: Option<String>,
    service_key: bool,
    customer: Option<String>,
    customer_key: Option<String>,
    customer_key_md5: Option<String>,
}

impl Encryption {
    /// Takes a header, if it asks for encryption.
    ///
    /// # Errors
    /// As [`Line::text`].
    pub(crate) fn take(&mut self, line: &Line<'_>) -> S3Result<bool> {
        let Some(what) = line.name().strip_prefix(HEADER) else { return Ok(false) };
        match what {
            "" => self.service = line.text()?,
            "-aws-kms-key-id" | "-context" => self.service_key |= line.is_given()?,
            "-bucket-key-enabled" => self.service_key |= line.boolean()?.is_some(),
            "-customer-algorithm" => self.customer = line.text()?,
            "-customer-key" => self.customer_key = line.text()?,
            "-customer-key-md5" => self.customer_key_md5 = line.text()?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Refuses a customer's key for what has none.
    ///
    /// # Errors
    /// `InvalidRequest`.
    pub(crate) fn refuse_customer_key(&self) -> S3Result<()> {
        match self.customer.is_some() || self.customer_key.is_some() {
            true => Err(not_applicable()),
            false => Ok(()),
        }
    }

    /// # Errors
    /// `InvalidArgument` for a contradiction, else `NotImplemented`, unless nothing is asked for.
    pub(crate) fn refuse(&self) -> S3Result<()> {
        let customer = self.customer.is_some()
            || self.customer_key.is_some()
            || self.customer_key_md5.is_some();
        if !customer && !self.service_key && self.service.is_none() {
            return Ok(());
        }
        if customer && (self.service.is_some() || self.service_key) {
            return Err(invalid(
                "Server Side Encryption with Customer provided key is incompatible with the \
                 encryption method specified",
            ));
        }
        if customer {
            self.check_customer()?
        } else {
            self.check_service()?
        }
        Err(not_implemented("Server-side encryption"))
    }

    fn check_customer(&self) -> S3Result<()> {
        if self.customer.as_deref() != Some(CUSTOMER_ALGORITHM) {
            return Err(invalid(
                "Requests specifying Server Side Encryption with Customer provided keys must \
                 provide a valid encryption algorithm.",
            ));
        }
        let decoded = |text: &Option<String>| {
            base64_simd::STANDARD.decode_to_vec(text.as_deref().unwrap_or_default()).ok()
        };
        let key = decoded(&self.customer_key).filter(|key| key.len() == CUSTOMER_KEY_BYTES);
        let key = key.ok_or_else(|| {
            invalid(
                "Requests specifying Server Side Encryption with Customer provided keys must \
                 provide an appropriate secret key.",
            )
        })?;
        if decoded(&self.customer_key_md5).is_none_or(|md5| md5 != Md5::checksum(&key)) {
            return Err(invalid(
                "The calculated MD5 hash of the key did not match the hash that was provided.",
            ));
        }
        Ok(())
    }

    fn check_service(&self) -> S3Result<()> {
        match self.service.as_deref() {
            Some(name) if !SERVICE_ALGORITHMS.contains(&name) => {
                Err(invalid("The encryption method specified is not supported"))
            }
            None | Some("AES256") if self.service_key => Err(invalid(
                "Server Side Encryption with AWS KMS managed key requires HTTP header \
                 x-amz-server-side-encryption : aws:kms",
            )),
            _ => Ok(()),
        }
    }
}

/// Refuses to read an object with a key that it was not written with, as every object is not.
///
/// # Errors
/// `InvalidRequest` for a customer's key, `InvalidArgument` for what only a put may ask for.
pub(crate) fn refuse_reading(headers: &HeaderMap) -> S3Result<()> {
    for name in headers.keys() {
        let what = name.as_str().strip_prefix(HEADER);
        if what.is_some_and(|what| what.starts_with("-customer-")) {
            return Err(not_applicable());
        }
        if what == Some("") {
            return Err(invalid(
                "x-amz-server-side-encryption header is not supported for this operation.",
            ));
        }
    }
    Ok(())
}

/// No object here is encrypted.
pub(crate) fn not_applicable() -> S3Error {
    error(
        S3ErrorCode::InvalidRequest,
        "The encryption parameters are not applicable to this object.",
    )
}

fn invalid(message: &'static str) -> S3Error {
    error(S3ErrorCode::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "pO3upElrwuEXSoFwCfnZPdSsmt/xWeFa0N9KgDijwVs=";
    const KEY_MD5: &str = "DWygnHRtgiJ77HCm+1rvHw==";

    fn customer(algorithm: &str, key: &str, md5: &str) -> Encryption {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Encryption {
            customer: given(algorithm),
            customer_key: given(key),
            customer_key_md5: given(md5),
            ..Encryption::default()
        }
    }

    fn code(encryption: &Encryption) -> Option<S3ErrorCode> {
        encryption.refuse().err().map(|refused| refused.code().clone())
    }

    #[test]
    fn what_is_asked_rightly_is_not_implemented() {
        assert_eq!(code(&Encryption::default()), None);
        let rightly = customer("AES256", KEY, KEY_MD5);
        assert_eq!(code(&rightly), Some(S3ErrorCode::NotImplemented));
        for name in SERVICE_ALGORITHMS {
            let service = Encryption { service: Some(name.into()), ..Encryption::default() };
            assert_eq!(code(&service), Some(S3ErrorCode::NotImplemented), "{name}");
        }
    }

    #[test]
    fn contradictions_are_reported_first() {
        let rightly = customer("AES256", KEY, KEY_MD5);
        let service = |name: &str| Some(name.to_owned());
        for (index, wrong) in [
            customer("", KEY, KEY_MD5),
            customer("AES128", KEY, KEY_MD5),
            customer("AES256", "", KEY_MD5),
            customer("AES256", "AAAA", KEY_MD5),
            customer("AES256", KEY, ""),
            customer("AES256", KEY, "AAAAAAAAAAAAAAAAAAAAAA=="),
            Encryption { service: service("AES256"), ..rightly.clone() },
            Encryption { service_key: true, ..rightly },
            Encryption { service: service("aes:kms"), ..Encryption::default() },
            Encryption { service_key: true, ..Encryption::default() },
            Encryption { service: service("AES256"), service_key: true, ..Encryption::default() },
        ]
        .iter()
        .enumerate()
        {
            assert_eq!(code(wrong), Some(S3ErrorCode::InvalidArgument), "case {index}");
        }
    }
}
