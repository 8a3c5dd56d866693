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

/// The key pair of a seed (RFC 8032, 5.1.5).
pub(crate) fn of_seed(seed: &[u8; 32]) -> Result<KeyPair, IdentityError> {
    let key = PrivatePkcs8KeyDer::from([&PKCS8_BEFORE_SEED[..], seed].concat());
    KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ED25519)
        .map_err(|error| IdentityError::unusable("key", error))
}

/// The bytes before the seed in every Ed25519 key of PKCS #8, version 1 (RFC 8410, 7).
const PKCS8_BEFORE_SEED: [u8; 16] =
    [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

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

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8032, 7.1, test 1.
    #[test]
    fn a_seed_gives_the_key_of_the_standard() {
        let bytes = |hex: &str| -> [u8; 32] {
            std::array::from_fn(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap())
        };
        let seed = bytes("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");
        let public = bytes("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
        assert_eq!(of_seed(&seed).unwrap().public_key_raw(), public);
    }
}
