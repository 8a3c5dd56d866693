//! Version 3 of what workers say to each other: `docs/formats/workers.md` gives it byte by byte. Earlier ones are neither
//! asked nor answered: version 1 knew no bundles, and in version 2 nothing proved an answer.

use std::ops::Range;

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::{Method, StatusCode};
use larder_types::codec::{decode, encode};
use larder_types::{HybridClock, OpSeq};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::backend::{Backend, Unread};
use crate::error::PackError;
use crate::format::lot::Lot;
use crate::format::rows::BlobRow;
use crate::ids::{BlobId, WorkerId};
use crate::limits::CALL_AGE_MAX;

/// Header with the time of a call, in milliseconds since 1970.
pub(super) const DATE: &str = "x-larder-date";
/// Header with what was drawn for a call, and binds its answer to it.
pub(super) const NONCE: &str = "x-larder-nonce";
/// Header with the proof that the caller, or the worker that answers, knows the secret.
pub(super) const PROOF: &str = "x-larder-proof";
/// Header of a request of a client that a worker hands on to the one that began the upload; with it the path is S3's.
pub(super) const HANDED_ON: &str = "x-larder-handed-on";
/// Path of changes.
pub(super) const CHANGES: &str = "/larder/v3/changes";
/// Path of bodies.
pub(super) const BODY: &str = "/larder/v3/body";
/// Header of an answer to what was handed on: the clock of the last change that the worker had made by then.
pub(crate) const CLOCK: &str = "x-larder-clock";
/// Stands in a proof for a body that is not known when the proof is made.
pub(super) const STREAMED: &str = "streamed";
const NONCE_BYTES: usize = 16;
/// Name of the secret in the bucket.
const SECRET: &str = "secret";
const SECRET_BYTES: usize = 32;

/// From where on a worker's changes are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) blob: u64,
    /// Bytes of the blob's entries that are known.
    pub(crate) from: u64,
    /// Number and clock of the entry that ends there. No two processes give both alike: one that has the entry too has
    /// told all before it.
    pub(crate) last: Option<(OpSeq, HybridClock)>,
}

/// The path and query that ask for a worker's changes.
pub(crate) fn ask_changes(worker: WorkerId, asked: &Asked) -> String {
    let Asked { blob, from, last } = asked;
    let last = last.map(|(seq, clock)| format!("&seq={}&clock={}", seq.0, clock.0));
    let last = last.unwrap_or_default();
    format!("{CHANGES}?worker={}&blob={blob}&from={from}{last}", worker.0)
}

/// The path and query that ask for bytes of the bodies of a blob's lot.
pub(crate) fn ask_body(id: BlobId, lot: Lot, range: &Range<u64>) -> String {
    let (worker, blob, lot) = (id.worker.0, id.seq, lot.nth());
    let Range { start, end } = range;
    format!("{BODY}?worker={worker}&blob={blob}&lot={lot}&from={start}&to={end}")
}

/// An answer of a worker about one of its blobs. Bytes follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Told {
    /// Entries of a blob that waits, from this byte on, at most as many as one answer has.
    Entries {
        blob: u64,
        from: u64,
        /// True if these are the last of it.
        is_whole: bool,
        /// Bytes of entries behind these that wait, in this blob and later ones.
        behind: u64,
    },
    /// The blob is in the bucket.
    Uploaded { blob: u64, row: BlobRow },
    /// There is nothing to tell of it.
    Nothing { blob: u64 },
}

/// An answer as it was heard of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Heard {
    Entries { blob: u64, from: u64, bytes: Bytes, is_whole: bool },
    Uploaded { blob: u64, row: BlobRow },
    Nothing { blob: u64 },
}

impl Heard {
    pub(crate) fn blob(&self) -> u64 {
        match self {
            Self::Entries { blob, .. } | Self::Uploaded { blob, .. } | Self::Nothing { blob } => {
                *blob
            }
        }
    }
}

impl Told {
    /// As it travels, before its bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let head = encode(self);
        let len = u16::try_from(head.len()).expect("a head has a few numbers");
        [&len.to_le_bytes()[..], &head].concat()
    }

    /// Reads an answer; and how many bytes wait behind it.
    pub(crate) fn read(answer: &Bytes) -> Result<(Heard, u64), PackError> {
        let short = || PackError::damaged("a worker's answer", "it is too short");
        let (len, rest) = answer.split_first_chunk::<2>().ok_or_else(short)?;
        let len = usize::from(u16::from_le_bytes(*len));
        let head = rest.get(..len).ok_or_else(short)?;
        Ok(match decode::<Self>("a worker's answer", head)? {
            Self::Entries { blob, from, is_whole, behind } => {
                let bytes = answer.slice(2 + len..);
                (Heard::Entries { blob, from, bytes, is_whole }, behind)
            }
            Self::Uploaded { blob, row } => (Heard::Uploaded { blob, row }, 0),
            Self::Nothing { blob } => (Heard::Nothing { blob }, 0),
        })
    }
}

/// The secret that all workers of a bucket know, and nobody who cannot read the bucket.
#[derive(Clone)]
pub(crate) struct Secret(Bytes);

impl Secret {
    /// The bucket's; drawn by the first worker.
    pub(crate) async fn of(root: &Backend) -> Result<Self, PackError> {
        let found = match root.whole(SECRET, SECRET_BYTES as u64).await {
            Ok(found) => found,
            Err(Unread::Failed(error)) => return Err(error),
            Err(Unread::Missing) => {
                let mut drawn = [0; SECRET_BYTES];
                larder_env::rng::fill_secret(&mut drawn);
                root.put_new(SECRET, Bytes::copy_from_slice(&drawn)).await?;
                // Another may have been quicker.
                match root.whole(SECRET, SECRET_BYTES as u64).await {
                    Ok(found) => found,
                    Err(Unread::Missing) => {
                        return Err(PackError::damaged(SECRET, "it was written and is not there"));
                    }
                    Err(Unread::Failed(error)) => return Err(error),
                }
            }
        };
        match found.len() == SECRET_BYTES {
            true => Ok(Self(found)),
            false => Err(PackError::damaged(SECRET, "it is not as long as a secret")),
        }
    }

    #[cfg(test)]
    pub(crate) fn known(bytes: &'static [u8]) -> Self {
        Self(Bytes::from_static(bytes))
    }

    fn mac(&self, text: &str) -> Hmac<Sha256> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.0);
        let mut mac = mac.expect("a key may have any length");
        mac.update(text.as_bytes());
        mac
    }

    fn verifies(&self, text: &str, proof: &str) -> bool {
        let proof: Option<Vec<u8>> = (0..proof.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(proof.get(at..at + 2)?, 16).ok())
            .collect();
        // In constant time.
        proof.is_some_and(|proof| self.mac(text).verify_slice(&proof).is_ok())
    }

    /// The proof of a call.
    pub(crate) fn prove(&self, call: &Call<'_>) -> String {
        hex(&self.mac(&call.text()).finalize().into_bytes())
    }

    /// Returns true if a call proves that it is one of the bucket's workers, not long ago.
    pub(crate) fn is_proven(&self, call: &Call<'_>, now_ms: u64, proof: &str) -> bool {
        let age = u128::from(call.date_ms.abs_diff(now_ms));
        let is_drawn = call.nonce.len() == 2 * NONCE_BYTES;
        is_drawn && age <= CALL_AGE_MAX.as_millis() && self.verifies(&call.text(), proof)
    }

    /// The proof of an answer to the call with this nonce.
    pub(crate) fn prove_answer(&self, nonce: &str, status: StatusCode, body: &str) -> String {
        hex(&self.mac(&answer_text(nonce, status, body)).finalize().into_bytes())
    }

    /// Returns true if an answer is that of one of the bucket's workers to the call with this
    /// nonce.
    pub(crate) fn is_answer(
        &self,
        nonce: &str,
        status: StatusCode,
        body: &str,
        proof: &str,
    ) -> bool {
        self.verifies(&answer_text(nonce, status, body), proof)
    }
}

/// The parts of a call that its proof covers.
pub(crate) struct Call<'a> {
    pub(crate) method: &'a Method,
    /// Path and query.
    pub(crate) asked: &'a str,
    pub(crate) date_ms: u64,
    /// Drawn for this call.
    pub(crate) nonce: &'a str,
    /// Its body's digest, or [`STREAMED`].
    pub(crate) body: &'a str,
}

impl Call<'_> {
    fn text(&self) -> String {
        let Self { method, asked, date_ms, nonce, body } = self;
        format!("larder 2 call\n{method}\n{asked}\n{date_ms}\n{nonce}\n{body}")
    }
}

fn answer_text(nonce: &str, status: StatusCode, body: &str) -> String {
    format!("larder 2 answer\n{nonce}\n{}\n{body}", status.as_u16())
}

/// The text that stands in a proof for the body of an answer to a request that was handed on: the
/// clock with it.
pub(crate) fn streamed_with(clock: &str) -> String {
    format!("{STREAMED} {clock}")
}

/// The digest of a body.
pub(crate) fn digest(body: &[u8]) -> String {
    hex(&Sha256::digest(body))
}

/// A nonce that no other call has.
pub(super) fn draw_nonce() -> String {
    let mut drawn = [0; NONCE_BYTES];
    larder_env::rng::fill_secret(&mut drawn);
    hex(&drawn)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000_000;

    fn call() -> Call<'static> {
        Call {
            method: &Method::GET,
            asked: "/larder/v3/changes?blob=1",
            date_ms: NOW,
            nonce: "00112233445566778899aabbccddeeff",
            body: STREAMED,
        }
    }

    #[test]
    fn only_who_knows_the_secret_is_answered_and_only_what_it_asked() {
        let secret = Secret::known(b"0123456789abcdef0123456789abcdef");
        let other = Secret::known(b"0123456789abcdef0123456789abcdeF");
        let proof = secret.prove(&call());
        assert!(secret.is_proven(&call(), NOW, &proof));
        assert!(secret.is_proven(&call(), NOW + 1000, &proof));
        assert!(!other.is_proven(&call(), NOW, &proof));
        let none = digest(b"");
        for changed in [
            Call { method: &Method::DELETE, ..call() },
            Call { asked: "/larder/v3/changes?blob=2", ..call() },
            Call { date_ms: NOW + 1, ..call() },
            Call { nonce: "00112233445566778899aabbccddeefe", ..call() },
            Call { body: &none, ..call() },
        ] {
            assert!(!secret.is_proven(&changed, NOW, &proof), "{}", changed.text());
        }
        let short = Call { nonce: "00", ..call() };
        assert!(!secret.is_proven(&short, NOW, &secret.prove(&short)));
        let late = NOW + CALL_AGE_MAX.as_millis() as u64 + 1;
        assert!(!secret.is_proven(&call(), late, &proof), "heard long ago");
        for wrong in ["", "0", "zz", "é", &proof[2..], &"0".repeat(64)] {
            assert!(!secret.is_proven(&call(), NOW, wrong), "{wrong}");
        }
    }

    #[test]
    fn an_answer_is_one_to_its_call_alone() {
        let secret = Secret::known(b"0123456789abcdef0123456789abcdef");
        let (nonce, body) = (call().nonce, digest(b"told"));
        let proof = secret.prove_answer(nonce, StatusCode::OK, &body);
        assert!(secret.is_answer(nonce, StatusCode::OK, &body, &proof));
        assert!(!secret.is_answer(nonce, StatusCode::GONE, &body, &proof));
        assert!(!secret.is_answer(nonce, StatusCode::OK, &digest(b"sold"), &proof));
        assert!(!secret.is_answer(&draw_nonce(), StatusCode::OK, &body, &proof));
        assert!(!secret.is_answer(nonce, StatusCode::OK, &body, &secret.prove(&call())));
    }

    #[test]
    fn an_answer_reads_back_and_one_cut_off_does_not() {
        let told = Told::Entries { blob: 7, from: 300, is_whole: true, behind: 5 };
        let answer = Bytes::from([told.encode(), vec![1, 2, 3]].concat());
        let bytes = Bytes::from_static(&[1, 2, 3]);
        let heard = Heard::Entries { blob: 7, from: 300, bytes, is_whole: true };
        assert_eq!(Told::read(&answer).unwrap(), (heard, 5));
        for len in 0..told.encode().len() {
            assert!(Told::read(&answer.slice(..len)).is_err(), "{len} bytes");
        }
    }
}
