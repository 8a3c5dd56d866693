//! Join tokens: what an operator carries from the cluster to a new server, as one line of text.
//!
//! # Invariants
//!
//! 1. A token serves for joining alone. Its secret is never sent: it keys a proof.
//! 2. A mistyped token is reported as such before anything is sent.
//! 3. The cluster's record of a token has its secret too: a reader of the record can join as that one server.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use larder_types::ServerId;
use serde::{Deserialize, Serialize};

use crate::authority::Fingerprint;
use crate::error::{IdentityError, TokenError};
use crate::key::PublicKey;
use crate::proof::{self, Proof, SECRET_BYTES, Secret};
use crate::session::SessionSecret;
use crate::subject::Roles;
use crate::text::{from_base32, sum, to_base32};

/// Names a token; not secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TokenId(pub u64);

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl TokenId {
    /// Draws one.
    ///
    /// # Errors
    /// If the system gives no randomness.
    pub fn draw() -> Result<Self, IdentityError> {
        proof::random().map(u64::from_le_bytes).map(Self)
    }

    /// Its bytes in a token and in proofs, little-endian.
    #[must_use]
    pub fn bytes(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }
}

/// The token that a joiner has.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    id: TokenId,
    secret: Secret,
    authority: Fingerprint,
}

/// The cluster's record of a token. To revoke it, forget this.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    id: TokenId,
    secret: Secret,
    server: ServerId,
    roles: Roles,
    expires: Option<SystemTime>,
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken").field("id", &self.id).finish_non_exhaustive()
    }
}

impl fmt::Debug for TokenRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenRecord")
            .field("id", &self.id)
            .field("server", &self.server)
            .field("roles", &self.roles)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

impl TokenRecord {
    /// Issues a token for one server, with the id and the roles that this will have. A server that lost the answer may use
    /// the token again, until it expires or is revoked: revoke it when the server is in the map.
    ///
    /// # Errors
    /// If the system gives no randomness.
    pub fn issue(
        authority: Fingerprint,
        server: ServerId,
        roles: Roles,
        expires: Option<SystemTime>,
    ) -> Result<(Self, JoinToken), IdentityError> {
        let (id, secret) = (TokenId::draw()?, Secret::draw()?);
        let token = JoinToken { id, secret: secret.clone(), authority };
        Ok((Self { id, secret, server, roles, expires }, token))
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> TokenId {
        self.id
    }

    /// The server that it is for.
    #[must_use]
    pub fn server(&self) -> ServerId {
        self.server
    }

    /// The roles that the server will have.
    #[must_use]
    pub fn roles(&self) -> Roles {
        self.roles
    }

    pub(crate) fn expired(&self, now: SystemTime) -> bool {
        self.expires.is_some_and(|expires| expires < now)
    }

    /// Returns true if the proof was made with this token, in this session, for this key. Takes as long for a
    /// wrong proof as for a right one.
    pub(crate) fn proves(&self, session: &SessionSecret, key: &PublicKey, proof: &[u8]) -> bool {
        self.secret.verifies(&proved(&self.id.bytes(), session, key), proof)
    }
}

impl JoinToken {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> TokenId {
        self.id
    }

    pub(crate) fn authority(&self) -> &Fingerprint {
        &self.authority
    }

    /// Proves that the joiner has the token. The proof holds for no other session, and for no other key.
    #[must_use]
    pub fn prove(&self, session: &SessionSecret, key: &PublicKey) -> Proof {
        self.secret.prove(&proved(&self.id.bytes(), session, key))
    }
}

fn proved<'a>(id: &'a [u8], session: &'a SessionSecret, key: &'a PublicKey) -> [&'a [u8]; 4] {
    [b"larder join 1", id, session, key]
}

const PREFIX: &str = "larder-join-";
const VERSION: u8 = 1;
/// Version, id, secret, fingerprint, checksum.
const BYTES: usize = 1 + 8 + SECRET_BYTES + 32 + 4;

impl fmt::Display for JoinToken {
    /// The token itself: anybody who reads it may join.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = vec![VERSION];
        bytes.extend(self.id.bytes());
        bytes.extend(self.secret.bytes());
        bytes.extend(self.authority);
        bytes.extend(sum(&bytes));
        f.write_str(PREFIX)?;
        f.write_str(&to_base32(&bytes))
    }
}

impl FromStr for JoinToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let digits = text.trim().strip_prefix(PREFIX).ok_or(TokenError::NotAToken)?;
        let bytes = from_base32(digits).ok_or(TokenError::Mistyped)?;
        let (body, sum_read) = bytes.split_last_chunk::<4>().ok_or(TokenError::Mistyped)?;
        if sum(body) != *sum_read {
            return Err(TokenError::Mistyped);
        }
        match body {
            [VERSION, rest @ ..] if bytes.len() == BYTES => {
                let (id, rest) = rest.split_first_chunk::<8>().ok_or(TokenError::Mistyped)?;
                let (secret, rest) = rest.split_first_chunk::<32>().ok_or(TokenError::Mistyped)?;
                let authority = rest.try_into().map_err(|_length| TokenError::Mistyped)?;
                Ok(Self {
                    id: TokenId(u64::from_le_bytes(*id)),
                    secret: Secret::of(*secret),
                    authority,
                })
            }
            [version, ..] if *version > VERSION => Err(TokenError::Version(*version)),
            _ => Err(TokenError::Mistyped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Role;

    fn token() -> JoinToken {
        let roles = Roles::of(&[Role::Data]);
        TokenRecord::issue([7; 32], ServerId(3), roles, None).unwrap().1
    }

    #[test]
    fn a_token_reads_back_in_either_case() {
        let token = token();
        let text = token.to_string();
        assert_eq!(text.parse(), Ok(token.clone()));
        let digits = text.strip_prefix(PREFIX).unwrap().to_uppercase();
        assert_eq!(format!("  {PREFIX}{digits}\n").parse(), Ok(token));
    }

    #[test]
    fn a_token_has_golden_text_and_its_proof_golden_bytes() {
        let secret = Secret::of([1; 32]);
        let token = JoinToken { id: TokenId(7), secret, authority: [2; 32] };
        let golden = "larder-join-043g000000000001040g2081040g2081040g2081040g2081040g2081040g2081041040g2081040g2081040g2081040g2081040g2081040g208104220j37g";
        assert_eq!(token.to_string(), golden);
        assert_eq!(golden.parse(), Ok(token.clone()));
        let golden = "65423840975d8357d28189e08ee3a0cfde49b8fd3df229f5889bb5868ad88fc4";
        let proof = token.prove(&[3; 32], &[4; 32]);
        assert_eq!(proof.map(|byte| format!("{byte:02x}")).concat(), golden);
    }

    #[test]
    fn every_single_typing_error_is_detected() {
        let text = token().to_string();
        for at in PREFIX.len()..text.len() {
            let mut typed = text.clone().into_bytes();
            typed[at] = if typed[at] == b'7' { b'8' } else { b'7' };
            let typed = String::from_utf8(typed).unwrap();
            assert_eq!(typed.parse::<JoinToken>(), Err(TokenError::Mistyped), "at {at}");
            assert!(text[..at].parse::<JoinToken>().is_err(), "cut at {at}");
        }
        assert_eq!("larder".parse::<JoinToken>(), Err(TokenError::NotAToken));
    }

    #[test]
    fn a_later_token_is_named_as_such() {
        let mut bytes = vec![VERSION + 1, 2, 3];
        bytes.extend(sum(&bytes));
        let text = format!("{PREFIX}{}", to_base32(&bytes));
        assert_eq!(text.parse::<JoinToken>(), Err(TokenError::Version(VERSION + 1)));
    }

    #[test]
    fn a_proof_holds_for_its_session_and_key_alone() {
        let roles = Roles::of(&[Role::Data]);
        let (record, token) = TokenRecord::issue([7; 32], ServerId(3), roles, None).unwrap();
        let proof = token.prove(&[1; 32], &[2; 32]);
        assert!(record.proves(&[1; 32], &[2; 32], &proof));
        assert!(!record.proves(&[9; 32], &[2; 32], &proof), "replayed in another session");
        assert!(!record.proves(&[1; 32], &[9; 32], &proof), "for another key");
        let (other, _) = TokenRecord::issue([7; 32], ServerId(3), roles, None).unwrap();
        assert!(!other.proves(&[1; 32], &[2; 32], &proof), "with another token");
    }
}
