//! Join tokens: what an operator carries from the cluster to a new server, as one line of text.
//!
//! # Invariants
//!
//! 1. A token is of use for joining alone. Its secret never leaves the joiner: it keys a proof.
//! 2. A mistyped token is told as such before anything is sent.
//! 3. What the cluster keeps of it is as secret as the token, for that one server's place.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use larder_types::ServerId;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::authority::Fingerprint;
use super::error::{IdentityError, TokenError};
use super::key::PublicKey;
use super::subject::Roles;

/// Names a token; not secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TokenId(pub u64);

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The token that a joiner has.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    id: TokenId,
    secret: [u8; 32],
    authority: Fingerprint,
}

/// The cluster's record of a token. To revoke it, forget this.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    id: TokenId,
    secret: [u8; 32],
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
    /// A token for one server: the id and the roles that it will have. It may be used again, by a server
    /// that lost the answer, until it expires or is revoked: revoke it when the server is in the map.
    ///
    /// # Errors
    /// If the system gives no randomness.
    pub fn issue(
        authority: Fingerprint,
        server: ServerId,
        roles: Roles,
        expires: Option<SystemTime>,
    ) -> Result<(Self, JoinToken), IdentityError> {
        let (mut id, mut secret) = ([0; 8], [0; 32]);
        let random = SystemRandom::new();
        random.fill(&mut id).map_err(|_unspecified| IdentityError::Random)?;
        random.fill(&mut secret).map_err(|_unspecified| IdentityError::Random)?;
        let id = TokenId(u64::from_le_bytes(id));
        Ok((Self { id, secret, server, roles, expires }, JoinToken { id, secret, authority }))
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> TokenId {
        self.id
    }

    /// For which server it is.
    #[must_use]
    pub fn server(&self) -> ServerId {
        self.server
    }

    /// The roles that the server will have.
    #[must_use]
    pub fn roles(&self) -> Roles {
        self.roles
    }

    pub(super) fn expired(&self, now: SystemTime) -> bool {
        self.expires.is_some_and(|expires| expires < now)
    }

    /// Returns true if the proof was made with this token, in this session, for this key. Takes as long for a
    /// wrong proof as for a right one.
    pub(super) fn proves(&self, session: &SessionSecret, key: &PublicKey, proof: &[u8]) -> bool {
        hmac::verify(&proof_key(&self.secret), &proved(self.id, session, key), proof).is_ok()
    }
}

/// A secret that only the two ends of one TLS session know.
pub(crate) type SessionSecret = [u8; 32];

impl JoinToken {
    /// Its name.
    #[must_use]
    pub fn id(&self) -> TokenId {
        self.id
    }

    pub(super) fn authority(&self) -> &Fingerprint {
        &self.authority
    }

    /// Proves that the joiner has the token. It is of no use in another session, nor for another key.
    pub(crate) fn prove(&self, session: &SessionSecret, key: &PublicKey) -> [u8; 32] {
        let tag = hmac::sign(&proof_key(&self.secret), &proved(self.id, session, key));
        tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }
}

fn proof_key(secret: &[u8; 32]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, secret)
}

fn proved(id: TokenId, session: &SessionSecret, key: &PublicKey) -> Vec<u8> {
    [b"larder join 1".as_slice(), &id.0.to_le_bytes(), session, key].concat()
}

const PREFIX: &str = "larder-join-";
const VERSION: u8 = 1;
/// Version, id, secret, fingerprint, checksum.
const BYTES: usize = 1 + 8 + 32 + 32 + 4;
/// Letters and digits that are not taken for one another, in either case.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

impl fmt::Display for JoinToken {
    /// The token itself: anybody who reads it may join.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = vec![VERSION];
        bytes.extend(self.id.0.to_le_bytes());
        bytes.extend(self.secret);
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
        let (told, sum_told) = bytes.split_last_chunk::<4>().ok_or(TokenError::Mistyped)?;
        if sum(told) != *sum_told {
            return Err(TokenError::Mistyped);
        }
        match told {
            [VERSION, rest @ ..] if bytes.len() == BYTES => {
                let (id, rest) = rest.split_first_chunk::<8>().ok_or(TokenError::Mistyped)?;
                let (secret, rest) = rest.split_first_chunk::<32>().ok_or(TokenError::Mistyped)?;
                let authority = rest.try_into().map_err(|_length| TokenError::Mistyped)?;
                Ok(Self { id: TokenId(u64::from_le_bytes(*id)), secret: *secret, authority })
            }
            [version, ..] if *version > VERSION => Err(TokenError::Version(*version)),
            _ => Err(TokenError::Mistyped),
        }
    }
}

pub(super) fn sum(bytes: &[u8]) -> [u8; 4] {
    (xxh3_64(bytes) as u32).to_le_bytes()
}

/// Five bits a digit, most significant first; the last digit is filled with zeros.
pub(super) fn to_base32(bytes: &[u8]) -> String {
    let bit = |at: usize| bytes.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1);
    let digit = |n: usize| (0..5).fold(0, |digit, b| digit << 1 | bit(n * 5 + b));
    (0..(bytes.len() * 8).div_ceil(5)).map(|n| char::from(DIGITS[usize::from(digit(n))])).collect()
}

pub(super) fn from_base32(text: &str) -> Option<Vec<u8>> {
    if text.len() > BYTES * 8 {
        return None;
    }
    let (mut bytes, mut held, mut bits) = (Vec::new(), 0_u32, 0);
    for letter in text.bytes() {
        let digit = DIGITS.iter().position(|d| *d == letter.to_ascii_lowercase())?;
        held = held << 5 | digit as u32;
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
            held &= (1 << bits) - 1;
        }
    }
    (bits < 5 && held == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Role;

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
    fn every_single_typing_error_is_told() {
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
