//! A region's key, with the certificate that shows it to others.
//!
//! # Invariants
//!
//! 1. Others know a region by its public key alone. The certificate is signed by the key itself; its names and dates say
//!    nothing, and are not looked at.
//! 2. The private key never leaves the file and the process.

use std::fmt;
use std::path::Path;

use larder_identity::ciphers::provider;
use larder_identity::key_file::pem;
use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ED25519};
use ring::digest::{SHA256, digest};
use rustls::Error as TlsError;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::ParsedCertificate;
use serde::{Deserialize, Serialize};

use crate::error::LinkError;
use crate::files;

/// SHA-256 of a public key, as its certificate has it (SPKI, DER).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// The fingerprint of the key in a certificate.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Result<Self, TlsError> {
        let key = ParsedCertificate::try_from(certificate)?.subject_public_key_info();
        let sum = digest(&SHA256, key.as_ref());
        Ok(Self(sum.as_ref().try_into().expect("SHA-256 has 32 bytes")))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Key and certificate of a region.
pub(crate) struct Identity {
    key: PrivatePkcs8KeyDer<'static>,
    certificate: CertificateDer<'static>,
    fingerprint: Fingerprint,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

impl Identity {
    /// Draws a key.
    pub(crate) fn draw() -> Result<Self, LinkError> {
        Self::with(CertificateParams::default())
    }

    pub(crate) fn with(mut params: CertificateParams) -> Result<Self, LinkError> {
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "larder region");
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(unusable)?;
        let certificate = params.self_signed(&key).map_err(unusable)?;
        let key = PrivatePkcs8KeyDer::from(key.serialized_der().to_vec());
        Self::together(key, certificate.into())
    }

    fn together(
        key: PrivatePkcs8KeyDer<'static>,
        certificate: CertificateDer<'static>,
    ) -> Result<Self, LinkError> {
        let fingerprint = Fingerprint::of(&certificate).map_err(unusable)?;
        Ok(Self { key, certificate, fingerprint })
    }

    /// Reads the identity in a file, or draws one and writes it there.
    pub(crate) fn load_or_draw(path: &Path) -> Result<Self, LinkError> {
        if path.try_exists().map_err(LinkError::file(path))? {
            return Self::load(path);
        }
        let drawn = Self::draw()?;
        files::replace(path, drawn.pem().as_bytes())?;
        Ok(drawn)
    }

    /// Reads the identity in a file.
    pub(crate) fn load(path: &Path) -> Result<Self, LinkError> {
        let text = files::read_private(path)?;
        let damaged = |why: &str| {
            let why =
                format!("{why}; restore it from a backup, or remove this region and join anew");
            LinkError::Damaged { path: path.to_owned(), why }
        };
        let not_both = |_| damaged("it does not have a key and a certificate");
        let key = PrivatePkcs8KeyDer::from_pem_slice(&text).map_err(not_both)?;
        let certificate = CertificateDer::from_pem_slice(&text).map_err(not_both)?;
        let whole = Self::together(key, certificate)?;
        whole.config_check().map_err(|error| damaged(&error.to_string()))?;
        Ok(whole)
    }

    /// Checks that the certificate is of the key.
    fn config_check(&self) -> Result<(), TlsError> {
        let provider = provider();
        rustls::sign::CertifiedKey::from_der(vec![self.certificate()], self.key(), &provider)?;
        Ok(())
    }

    fn pem(&self) -> String {
        pem("PRIVATE KEY", self.key.secret_pkcs8_der()) + &pem("CERTIFICATE", &self.certificate)
    }

    #[cfg(test)]
    pub(crate) fn with_the_certificate_of(self, other: &Self) -> Self {
        let (certificate, fingerprint) = (other.certificate(), other.fingerprint);
        Self { certificate, fingerprint, ..self }
    }

    pub(crate) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from(self.key.clone_key())
    }

    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        self.certificate.clone()
    }
}

fn unusable(error: impl fmt::Display) -> LinkError {
    LinkError::Key(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_drawn_once_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("identity");
        let drawn = Identity::load_or_draw(&path).unwrap().fingerprint();
        assert_eq!(Identity::load_or_draw(&path).unwrap().fingerprint(), drawn);
        assert_ne!(Identity::draw().unwrap().fingerprint(), drawn);
    }

    #[test]
    fn a_key_with_anothers_certificate_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("identity");
        let (one, other) = (Identity::draw().unwrap(), Identity::draw().unwrap());
        let mixed = one.with_the_certificate_of(&other);
        files::replace(&path, mixed.pem().as_bytes()).unwrap();
        assert!(matches!(Identity::load(&path), Err(LinkError::Damaged { .. })));
    }
}
