//! Join tokens: a line of text that an operator carries from the first region to a new one.
//!
//! # Invariants
//!
//! 1. A token is of use for joining alone, once, for an hour. Its secret never leaves the joiner: it keys a proof.
//! 2. A proof is of no use in another session, nor for another key.
//! 3. The joiner finds out that a token is mistyped before it sends anything.

use std::fmt;
use std::str::FromStr;

use larder_identity::proof::{Proof, Secret};
use larder_identity::session::SessionSecret;
use larder_identity::text::sum;
use larder_identity::{IdentityError, TokenId};
use serde::{Deserialize, Serialize};

use crate::error::{LinkError, TokenFault};
use crate::identity::Fingerprint;
use crate::limits::TOKEN_LIFE;
use crate::name::Address;

/// A token, as the joiner has it.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    id: TokenId,
    secret: Secret,
    founder: Fingerprint,
    address: Address,
}

/// A token, as the first region keeps it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TokenRecord {
    id: TokenId,
    secret: Secret,
    expires_ms: u64,
    /// The key that joined with it.
    used_by: Option<Fingerprint>,
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
            .field("expires_ms", &self.expires_ms)
            .field("used_by", &self.used_by)
            .finish_non_exhaustive()
    }
}

impl TokenRecord {
    /// Issues a token of the region with this key and address.
    pub(crate) fn issue(
        now_ms: u64,
        founder: Fingerprint,
        address: Address,
    ) -> Result<(Self, JoinToken), LinkError> {
        let unusable = |error: IdentityError| LinkError::Key(error.to_string());
        let id = TokenId::draw().map_err(unusable)?;
        let secret = Secret::draw().map_err(unusable)?;
        let expires_ms = now_ms.saturating_add(TOKEN_LIFE.as_millis() as u64);
        let record = Self { id, secret: secret.clone(), expires_ms, used_by: None };
        Ok((record, JoinToken { id, secret, founder, address }))
    }

    pub(crate) fn id(&self) -> TokenId {
        self.id
    }

    pub(crate) fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_ms < now_ms
    }

    pub(crate) fn used_by(&self) -> Option<Fingerprint> {
        self.used_by
    }

    pub(crate) fn use_by(&mut self, joiner: Fingerprint) {
        self.used_by = Some(joiner);
    }

    /// True if the proof was made with this token, in this session, for this key. Takes as long for a wrong proof as
    /// for a right one.
    pub(crate) fn proves(&self, session: &SessionSecret, key: &Fingerprint, proof: &[u8]) -> bool {
        self.secret.verifies(&proved(&self.id.bytes(), session, key), proof)
    }

    #[cfg(test)]
    pub(crate) fn fixed(id: u64, used_by: Option<Fingerprint>) -> Self {
        Self {
            id: TokenId(id),
            secret: Secret::of([3; 32]),
            expires_ms: 1_800_000_000_000,
            used_by,
        }
    }
}

impl JoinToken {
    pub(crate) fn id(&self) -> TokenId {
        self.id
    }

    pub(crate) fn founder(&self) -> Fingerprint {
        self.founder
    }

    /// Address of the first region.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    #[cfg(test)]
    pub(crate) fn with_another_secret(&self) -> Self {
        Self { secret: Secret::of([0; 32]), ..self.clone() }
    }

    /// Proves that the joiner with this key has the token.
    pub(crate) fn prove(&self, session: &SessionSecret, key: &Fingerprint) -> Proof {
        self.secret.prove(&proved(&self.id.bytes(), session, key))
    }
}

fn proved<'a>(id: &'a [u8], session: &'a SessionSecret, key: &'a Fingerprint) -> [&'a [u8]; 4] {
    [b"larder region join 1", id, session, &key.0]
}

const PREFIX: &str = "larder-region-";
const VERSION: u32 = 1;

impl fmt::Display for JoinToken {
    /// The token itself: its readers may join.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = Vec::new();
        bytes.extend(self.id.bytes());
        bytes.extend(self.secret.bytes());
        bytes.extend(self.founder.0);
        bytes.extend(self.address.as_str().as_bytes());
        bytes.extend(sum(&bytes));
        let text = base64_simd::URL_SAFE_NO_PAD.encode_to_string(&bytes);
        write!(f, "{PREFIX}{VERSION}.{text}")
    }
}

impl FromStr for JoinToken {
    type Err = TokenFault;

    fn from_str(text: &str) -> Result<Self, TokenFault> {
        let rest = text.trim().strip_prefix(PREFIX).ok_or(TokenFault::NotAToken)?;
        let (version, text) = rest.split_once('.').ok_or(TokenFault::NotAToken)?;
        match version.parse() {
            Ok(VERSION) => read(text).ok_or(TokenFault::Mistyped),
            Ok(version) if version > VERSION => Err(TokenFault::Version(version)),
            _ => Err(TokenFault::NotAToken),
        }
    }
}

fn read(text: &str) -> Option<JoinToken> {
    let bytes = base64_simd::URL_SAFE_NO_PAD.decode_to_vec(text).ok()?;
    let (body, sum_read) = bytes.split_last_chunk::<4>()?;
    if sum(body) != *sum_read {
        return None;
    }
    let (id, rest) = body.split_first_chunk::<8>()?;
    let (secret, rest) = rest.split_first_chunk::<32>()?;
    let (founder, address) = rest.split_first_chunk::<32>()?;
    let address = String::from_utf8(address.to_vec()).ok()?.try_into().ok()?;
    let id = TokenId(u64::from_le_bytes(*id));
    Some(JoinToken { id, secret: Secret::of(*secret), founder: Fingerprint(*founder), address })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed() -> JoinToken {
        let address = "store.example:7001".parse().unwrap();
        JoinToken {
            id: TokenId(7),
            secret: Secret::of([1; 32]),
            founder: Fingerprint([2; 32]),
            address,
        }
    }

    #[test]
    fn a_token_has_golden_text() {
        let golden = "larder-region-1.BwAAAAAAAAABAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQICAgICAgICAgICAgIC\
                      AgICAgICAgICAgICAgICAgICc3RvcmUuZXhhbXBsZTo3MDAxX-JVHA";
        assert_eq!(fixed().to_string(), golden);
        assert_eq!(golden.parse(), Ok(fixed()));
        assert_eq!(format!(" {golden}\n").parse(), Ok(fixed()));
    }

    #[test]
    fn every_single_typing_error_is_detected() {
        let text = fixed().to_string();
        for at in PREFIX.len() + 2..text.len() {
            let mut typed = text.clone().into_bytes();
            typed[at] = if typed[at] == b'7' { b'8' } else { b'7' };
            let typed = String::from_utf8(typed).unwrap();
            assert_eq!(typed.parse::<JoinToken>(), Err(TokenFault::Mistyped), "at {at}");
            let cut = text[..at].parse::<JoinToken>();
            assert_eq!(cut, Err(TokenFault::Mistyped), "cut at {at}");
        }
        assert_eq!("larder".parse::<JoinToken>(), Err(TokenFault::NotAToken));
        let later = text.replace("region-1.", "region-2.");
        assert_eq!(later.parse::<JoinToken>(), Err(TokenFault::Version(2)));
    }

    #[test]
    fn a_proof_holds_for_its_session_and_key_alone() {
        let issue = || TokenRecord::issue(0, Fingerprint([9; 32]), fixed().address).unwrap();
        let ((record, token), (other, _)) = (issue(), issue());
        let (own, its) = (Fingerprint([2; 32]), Fingerprint([3; 32]));
        let proof = token.prove(&[1; 32], &own);
        assert!(record.proves(&[1; 32], &own, &proof));
        assert!(!record.proves(&[9; 32], &own, &proof), "replayed in another session");
        assert!(!record.proves(&[1; 32], &its, &proof), "for another key");
        assert!(!other.proves(&[1; 32], &own, &proof), "with another token");
        let life = TOKEN_LIFE.as_millis() as u64;
        assert!(!record.is_expired(life) && record.is_expired(life + 1));
    }
}
