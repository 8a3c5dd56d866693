//! Proofs that one end of a session has a secret which both ends know, and which neither sends.
//!
//! # Invariants
//!
//! 1. A secret is 32 random bytes and never a passphrase: nobody can guess it from a proof.
//! 2. A proof is an HMAC-SHA256. The caller has it cover a label, the value exported from the session, and the message,
//!    so that it holds for no other purpose, session or message.

use std::fmt;

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

use crate::error::IdentityError;

/// Bytes of a secret.
pub const SECRET_BYTES: usize = 32;

/// An HMAC-SHA256.
pub type Proof = [u8; 32];

/// A secret that both ends of a session know. Stored as its bytes.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret([u8; SECRET_BYTES]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Draws one.
    ///
    /// # Errors
    /// If the system gives no randomness.
    pub fn draw() -> Result<Self, IdentityError> {
        random().map(Self)
    }

    /// The secret with these bytes, which [`Secret::draw`] drew before.
    #[must_use]
    pub const fn of(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(bytes)
    }

    /// The secret itself.
    #[must_use]
    pub fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }

    /// Makes a proof over these parts, one after another.
    #[must_use]
    pub fn prove(&self, parts: &[&[u8]]) -> Proof {
        let mut tag = hmac::Context::with_key(&self.key());
        parts.iter().for_each(|part| tag.update(part));
        tag.sign().as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    /// Returns true if the proof is over these parts with this secret. Takes as long for a wrong proof as for a right one.
    #[must_use]
    pub fn verifies(&self, parts: &[&[u8]], proof: &[u8]) -> bool {
        hmac::verify(&self.key(), &parts.concat(), proof).is_ok()
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }
}

/// Random bytes, from the system.
///
/// # Errors
/// If it gives none.
pub fn random<const N: usize>() -> Result<[u8; N], IdentityError> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_unspecified| IdentityError::Random)?;
    Ok(bytes)
}
