//! Keys: Ed25519, drawn where they are used.

use rcgen::{KeyPair, PKCS_ED25519};
use rustls::pki_types::PrivatePkcs8KeyDer;

use crate::error::IdentityError;

/// A server's public key: Ed25519.
pub type PublicKey = [u8; 32];

/// Draws a key pair.
pub(crate) fn draw() -> Result<KeyPair, IdentityError> {
    KeyPair::generate_for(&PKCS_ED25519).map_err(|_no_randomness| IdentityError::Random)
}

/// A server's key pair. It never leaves the server.
pub(crate) struct ServerKey(KeyPair);

impl ServerKey {
    pub(crate) fn new() -> Result<Self, IdentityError> {
        draw().map(Self)
    }

    pub(crate) fn public(&self) -> PublicKey {
        self.0.public_key_raw().try_into().expect("an Ed25519 key has 32 bytes")
    }

    pub(crate) fn private(&self) -> PrivatePkcs8KeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.0.serialized_der().to_vec())
    }
}
