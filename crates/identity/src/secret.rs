//! The secret that the machines of a cluster share before they are one: a line of text, made once by the operator.
//!
//! # Invariants
//!
//! 1. It is 32 random bytes and never a passphrase: nobody can guess it from a proof.
//! 2. It is never sent: it keys proofs.
//! 3. A mistyped secret is reported as such before anything is sent.

use std::fmt;
use std::str::FromStr;

use crate::error::{IdentityError, SecretError};
use crate::proof::{Proof, SECRET_BYTES, Secret};
use crate::session::SessionSecret;
use crate::text::{from_base32, sum, to_base32};

/// The secret of the machines that are to form one cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct PeerSecret(Secret);

impl fmt::Debug for PeerSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerSecret")
    }
}

/// The side of a session that proves something.
#[derive(Debug, Clone, Copy)]
pub enum Prover {
    /// The one that asks.
    DiscoveryRequester,
    /// The one that answers.
    DiscoveryResponder,
}

impl PeerSecret {
    /// Draws one.
    ///
    /// # Errors
    /// If the system gives no randomness.
    pub fn draw() -> Result<Self, IdentityError> {
        Secret::draw().map(Self)
    }

    /// Proves that this side of the session has the secret and sent this message. The proof holds for no other session,
    /// side or message.
    #[must_use]
    pub fn prove(&self, by: Prover, session: &SessionSecret, said: &[u8]) -> Proof {
        self.0.prove(&proved(by, session, said))
    }

    /// Returns true if the proof is `by` that side, in this session and over this message. Takes as long for a wrong proof as
    /// for a right one.
    #[must_use]
    pub fn verifies(
        &self,
        by: Prover,
        session: &SessionSecret,
        said: &[u8],
        proof: &Proof,
    ) -> bool {
        self.0.verifies(&proved(by, session, said), proof)
    }
}

fn proved<'a>(by: Prover, session: &'a SessionSecret, said: &'a [u8]) -> [&'a [u8]; 3] {
    let label: &[u8] = match by {
        Prover::DiscoveryRequester => b"larder knock 1",
        Prover::DiscoveryResponder => b"larder admit 1",
    };
    [label, session, said]
}

const PREFIX: &str = "larder-secret-";
const VERSION: u8 = 1;
/// Version, secret, checksum.
const BYTES: usize = 1 + SECRET_BYTES + 4;

impl fmt::Display for PeerSecret {
    /// The secret itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = vec![VERSION];
        bytes.extend(self.0.bytes());
        bytes.extend(sum(&bytes));
        f.write_str(PREFIX)?;
        f.write_str(&to_base32(&bytes))
    }
}

impl FromStr for PeerSecret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        let digits = text.trim().strip_prefix(PREFIX).ok_or(SecretError::NotASecret)?;
        let bytes = from_base32(digits).ok_or(SecretError::Mistyped)?;
        let (body, sum_read) = bytes.split_last_chunk::<4>().ok_or(SecretError::Mistyped)?;
        if sum(body) != *sum_read {
            return Err(SecretError::Mistyped);
        }
        match body {
            [VERSION, secret @ ..] if bytes.len() == BYTES => secret
                .try_into()
                .map(|secret| Self(Secret::of(secret)))
                .map_err(|_length| SecretError::Mistyped),
            [version, ..] if *version > VERSION => Err(SecretError::Version(*version)),
            _ => Err(SecretError::Mistyped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_golden_text_and_typing_errors_are_detected() {
        let secret = PeerSecret(Secret::of([7; 32]));
        let text = secret.to_string();
        assert_eq!(
            text,
            "larder-secret-043ge1r70w3ge1r70w3ge1r70w3ge1r70w3ge1r70w3ge1r70w3gfk8ek0mg"
        );
        assert_eq!(format!(" {text}\n").parse(), Ok(secret));
        for at in PREFIX.len()..text.len() {
            let mut typed = text.clone().into_bytes();
            typed[at] = if typed[at] == b'7' { b'8' } else { b'7' };
            let typed = String::from_utf8(typed).unwrap();
            assert_eq!(typed.parse::<PeerSecret>(), Err(SecretError::Mistyped), "at {at}");
            assert!(text[..at].parse::<PeerSecret>().is_err(), "cut at {at}");
        }
        assert_eq!("hunter2".parse::<PeerSecret>(), Err(SecretError::NotASecret));
        assert_eq!(format!("{:?}", PeerSecret(Secret::of([7; 32]))), "PeerSecret");
    }

    #[test]
    fn a_proof_holds_for_its_session_side_and_words_alone() {
        let (secret, session) = (PeerSecret::draw().unwrap(), [1; 32]);
        let proof = secret.prove(Prover::DiscoveryRequester, &session, b"said");
        assert!(secret.verifies(Prover::DiscoveryRequester, &session, b"said", &proof));
        assert!(
            !secret.verifies(Prover::DiscoveryRequester, &[2; 32], b"said", &proof),
            "replayed"
        );
        assert!(
            !secret.verifies(Prover::DiscoveryResponder, &session, b"said", &proof),
            "reflected"
        );
        assert!(
            !secret.verifies(Prover::DiscoveryRequester, &session, b"else", &proof),
            "other words"
        );
        let other = PeerSecret::draw().unwrap();
        assert!(
            !other.verifies(Prover::DiscoveryRequester, &session, b"said", &proof),
            "another secret"
        );
    }
}
