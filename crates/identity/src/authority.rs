//! A cluster's certificate authority: one key, which signs every server's certificate.
//!
//! # Invariants
//!
//! 1. It signs only for its own cluster.
//! 2. Its name follows from the cluster's id, so that a loaded authority signs as the one did that was made.
//! 3. Servers that share a secret have the same authority without saying a word: id and key follow from the secret
//!    alone. Their copies of its certificate differ in time, and verify each other's servers.

use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use larder_types::{ClusterId, ServerId};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ED25519, PublicKeyData, SignatureAlgorithm,
};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use time::OffsetDateTime;

use crate::certificate::{Chain, Identity};
use crate::error::IdentityError;
use crate::key::{self, PublicKey, ServerKey};
use crate::key_file;
use crate::limits::{AUTHORITY_VALIDITY, CERTIFICATE_VALIDITY, CLOCK_MARGIN};
use crate::proof::Secret;
use crate::subject::{Roles, Subject};

/// Label of the cluster's id that follows from a secret.
const SECRET_CLUSTER: &[u8] = b"larder cluster of a secret 1";
/// Label of the seed of the authority's key that follows from it.
const SECRET_KEY: &[u8] = b"larder authority of a secret 1";

/// SHA-256 of an authority's certificate: what a join token has of it.
pub type Fingerprint = [u8; 32];

/// The key that makes servers members of a cluster. A process that has it can be any server.
pub struct Authority {
    cluster: ClusterId,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes a new cluster's authority.
    ///
    /// # Errors
    /// If the system gives no randomness.
    pub fn create(cluster: ClusterId) -> Result<Self, IdentityError> {
        Self::with_key(cluster, key::draw()?)
    }

    /// The authority that follows from a secret, shared by all that know it.
    ///
    /// # Errors
    /// If the secret gives no key.
    pub fn from_secret(secret: &Secret) -> Result<Self, IdentityError> {
        let [a, b, c, d, e, f, g, h, ..] = secret.prove(&[SECRET_CLUSTER]);
        let cluster = ClusterId(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
        Self::with_key(cluster, key::of_seed(&secret.prove(&[SECRET_KEY]))?)
    }

    fn with_key(cluster: ClusterId, key: KeyPair) -> Result<Self, IdentityError> {
        let valid = Validity::for_the_next(AUTHORITY_VALIDITY);
        let params = authority_params(cluster, valid);
        let certificate = params
            .self_signed(&key)
            .map_err(|error| IdentityError::unusable("authority", error))?;
        Ok(Self { cluster, issuer: Issuer::new(params, key), certificate: certificate.into() })
    }

    /// Reads one from its file.
    ///
    /// # Errors
    /// If the file cannot be read, is not private, or holds no authority of this cluster.
    pub fn load(cluster: ClusterId, path: &Path) -> Result<Self, IdentityError> {
        Self::from_pem(cluster, &key_file::read(path)?)
    }

    /// Reads one from the text of such a file.
    ///
    /// # Errors
    /// If it is no authority of this cluster.
    pub fn from_pem(cluster: ClusterId, text: &[u8]) -> Result<Self, IdentityError> {
        let keys = key_file::sections::<PrivatePkcs8KeyDer<'static>>(text)?;
        let certificates = key_file::sections::<CertificateDer<'static>>(text)?;
        let ([key], [certificate]) = (&keys[..], &certificates[..]) else {
            let why = "it does not have one key and one certificate";
            return Err(IdentityError::unusable("authority", why));
        };
        let key = KeyPair::from_pkcs8_der_and_sign_algo(key, &PKCS_ED25519)
            .map_err(|error| IdentityError::unusable("authority", error))?;
        let now = SystemTime::now();
        let params = authority_params(cluster, Validity { from: now, to: now });
        let authority =
            Self { cluster, issuer: Issuer::new(params, key), certificate: certificate.clone() };
        // Its certificate must verify its signatures: else name or key is another's.
        drop(authority.identity(ServerId(0), Roles::default())?);
        Ok(authority)
    }

    /// Writes it to its file, durably.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), IdentityError> {
        key_file::write(path, &self.to_pem())
    }

    /// The text of its file. Anybody who reads it can be any server.
    #[must_use]
    pub fn to_pem(&self) -> String {
        key_file::pem("PRIVATE KEY", self.issuer.key().serialized_der())
            + &key_file::pem("CERTIFICATE", &self.certificate)
    }

    /// Its certificate, which verifies those that it signs; not secret.
    #[must_use]
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// Returns true if it signed this identity's certificate.
    #[must_use]
    pub fn signed(&self, identity: &Identity) -> bool {
        identity.chain().authority == self.certificate
    }

    /// Its cluster.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The fingerprint that a joiner knows it by.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        fingerprint(&self.certificate)
    }

    /// A new key with a certificate, for a server of this machine. Servers of other machines join instead.
    ///
    /// # Errors
    /// If the system gives no randomness.
    pub fn identity(&self, server: ServerId, roles: Roles) -> Result<Identity, IdentityError> {
        self.identity_for(server, roles, CERTIFICATE_VALIDITY)
    }

    /// As [`Authority::identity`], with a certificate that expires `life` from now.
    ///
    /// # Errors
    /// If the system gives no randomness.
    pub fn identity_for(
        &self,
        server: ServerId,
        roles: Roles,
        life: Duration,
    ) -> Result<Identity, IdentityError> {
        self.identity_valid(server, roles, Validity::for_the_next(life))
    }

    /// A certificate for the key of a server elsewhere, valid for so long from now on: see
    /// [`IdentityRequest::complete`](crate::IdentityRequest::complete).
    ///
    /// # Errors
    /// If no certificate can be made for the key.
    pub fn certify(
        &self,
        server: ServerId,
        roles: Roles,
        key: &PublicKey,
        life: Duration,
    ) -> Result<Vec<u8>, IdentityError> {
        Ok(self.sign(server, roles, key, Validity::for_the_next(life))?.to_vec())
    }

    /// As [`Authority::identity`], with a certificate that is valid during `valid`.
    ///
    /// # Errors
    /// If the system gives no randomness.
    pub fn identity_valid(
        &self,
        server: ServerId,
        roles: Roles,
        valid: Validity,
    ) -> Result<Identity, IdentityError> {
        let key = ServerKey::new()?;
        let certificate = self.sign(server, roles, &key.public(), valid)?;
        Identity::new(key, Chain { certificate, authority: self.certificate.clone() })
    }

    /// Signs a server's key.
    pub(crate) fn sign(
        &self,
        server: ServerId,
        roles: Roles,
        key: &PublicKey,
        valid: Validity,
    ) -> Result<CertificateDer<'static>, IdentityError> {
        let subject = Subject { cluster: self.cluster, server, roles };
        let unusable = |error| IdentityError::unusable("certificate", error);
        let mut params = CertificateParams::new(subject.names()).map_err(unusable)?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, format!("larder server {server}"));
        (params.not_before, params.not_after) = (calendar(valid.from), calendar(valid.to));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let signed = params.signed_by(&Ed25519Public(*key), &self.issuer).map_err(unusable)?;
        Ok(signed.into())
    }
}

pub(crate) fn fingerprint(certificate: &CertificateDer<'_>) -> Fingerprint {
    let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn authority_params(cluster: ClusterId, valid: Validity) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, format!("larder cluster {:016x}", cluster.0));
    (params.not_before, params.not_after) = (calendar(valid.from), calendar(valid.to));
    // It signs servers, and nothing that signs others.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

/// The time during which a certificate is valid.
#[derive(Debug, Clone, Copy)]
pub struct Validity {
    /// Its beginning.
    pub from: SystemTime,
    /// Its end.
    pub to: SystemTime,
}

impl Validity {
    /// From [`CLOCK_MARGIN`] ago, for servers whose clocks are behind, until `life` from now.
    #[must_use]
    pub fn for_the_next(life: Duration) -> Self {
        let now = SystemTime::now();
        Self { from: now - CLOCK_MARGIN, to: now + life }
    }
}

fn calendar(time: SystemTime) -> OffsetDateTime {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

struct Ed25519Public(PublicKey);

impl PublicKeyData for Ed25519Public {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ED25519
    }
}

#[cfg(test)]
mod tests;
