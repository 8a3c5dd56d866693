//! Version 3 of what workers say to each other: `docs/formats/workers.md` gives it byte by byte. Version 1 knew no
//! bundles, version 2 no incarnations: they are neither asked nor answered, so that nobody takes bytes of a blob for
//! those of its bundle, or entries of one copy of a directory for those of another.

use std::ops::Range;

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use larder_types::codec::{decode, encode};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::backend::{Backend, Unread};
use crate::entry::{BlobId, WorkerId};
use crate::error::PackError;
use crate::limits::CALL_AGE_MAX;
use crate::lineage::{Incarnation, Lineage};
use crate::lot::Lot;
use crate::rows::BlobRow;

/// Header with the time of a call, in milliseconds since 1970.
pub(super) const DATE: &str = "x-larder-date";
/// Header with the proof that the caller knows the secret.
pub(super) const PROOF: &str = "x-larder-proof";
/// Header of a request of a client that a worker hands on to the one that began the upload; with it the path is S3's.
pub(super) const HANDED_ON: &str = "x-larder-handed-on";
/// Path of changes.
pub(super) const CHANGES: &str = "/larder/v3/changes";
/// Path of bodies.
pub(super) const BODY: &str = "/larder/v3/body";
/// Name of the secret in the bucket.
const SECRET: &str = "secret";
const SECRET_BYTES: usize = 32;

/// How a worker's changes are asked for, from a byte of a blob's entries on.
pub(crate) fn ask_changes(
    (worker, incarnation): (WorkerId, Incarnation),
    blob: u64,
    from: u64,
) -> String {
    let (worker, incarnation) = (worker.0, incarnation.0);
    format!("{CHANGES}?worker={worker}&incarnation={incarnation}&blob={blob}&from={from}")
}

/// How bytes of the bodies of a blob's lot are asked for.
pub(crate) fn ask_body(id: BlobId, lot: Lot, range: &Range<u64>) -> String {
    let (worker, blob, lot) = (id.worker.0, id.seq, lot.nth());
    let Range { start, end } = range;
    format!("{BODY}?worker={worker}&blob={blob}&lot={lot}&from={start}&to={end}")
}

/// What a worker tells of one of its blobs. Bytes follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Told {
    /// Entries of a blob that waits, from this byte on, at most as many as one answer has.
    Entries {
        blob: u64,
        from: u64,
        /// Whether these are the last of it.
        is_whole: bool,
        /// Bytes of entries behind these that wait, in this blob and later ones.
        behind: u64,
    },
    /// The blob is in the bucket.
    Uploaded { blob: u64, row: BlobRow },
    /// There is nothing to tell of it.
    Nothing { blob: u64 },
    /// It was asked for changes of another incarnation: these are the ones before it, and itself.
    Incarnation { lineage: Lineage },
}

/// What was heard of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Heard {
    Entries { blob: u64, from: u64, bytes: Bytes, is_whole: bool },
    Uploaded { blob: u64, row: BlobRow },
    Nothing { blob: u64 },
    Incarnation { lineage: Lineage },
}

impl Heard {
    /// Whether it says something of a blob.
    pub(crate) fn is_of(&self, of: u64) -> bool {
        match self {
            Self::Entries { blob, .. } | Self::Uploaded { blob, .. } | Self::Nothing { blob } => {
                *blob == of
            }
            Self::Incarnation { .. } => true,
        }
    }
}

impl Told {
    /// As it travels, before its bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let head = encode(self);
        let len = u16::try_from(head.len())
            .expect("a head has a few numbers, or a lineage, which is bounded");
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
            Self::Incarnation { lineage } if lineage.is_whole() => {
                (Heard::Incarnation { lineage }, 0)
            }
            Self::Incarnation { .. } => {
                let reason = "its incarnations are not in their order";
                return Err(PackError::damaged("a worker's answer", reason));
            }
        })
    }
}

/// What all workers of a bucket know, and nobody else who cannot read the bucket.
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

    fn mac(&self, path_and_query: &str, date_ms: u64) -> Hmac<Sha256> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.0);
        let mut mac = mac.expect("a key may have any length");
        mac.update(format!("larder 1\n{path_and_query}\n{date_ms}").as_bytes());
        mac
    }

    /// The proof of a call.
    pub(crate) fn prove(&self, path_and_query: &str, date_ms: u64) -> String {
        let proof = self.mac(path_and_query, date_ms).finalize().into_bytes();
        proof.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether a call proves that it is one of the bucket's workers, not long ago.
    pub(crate) fn is_proven(
        &self,
        path_and_query: &str,
        (date_ms, now_ms): (u64, u64),
        proof: &str,
    ) -> bool {
        let proof: Option<Vec<u8>> = (0..proof.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(proof.get(at..at + 2)?, 16).ok())
            .collect();
        let is_recent = u128::from(date_ms.abs_diff(now_ms)) <= CALL_AGE_MAX.as_millis();
        let verifies =
            |proof: Vec<u8>| self.mac(path_and_query, date_ms).verify_slice(&proof).is_ok();
        is_recent && proof.is_some_and(verifies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_knows_the_secret_is_answered_and_only_what_it_asked() {
        let secret = Secret::known(b"0123456789abcdef0123456789abcdef");
        let other = Secret::known(b"0123456789abcdef0123456789abcdeF");
        let (path, now) = ("/larder/v3/changes?blob=1", 1_700_000_000_000);
        let proof = secret.prove(path, now);
        assert!(secret.is_proven(path, (now, now), &proof));
        assert!(secret.is_proven(path, (now, now + 1000), &proof));
        assert!(!secret.is_proven("/larder/v3/changes?blob=2", (now, now), &proof));
        assert!(!secret.is_proven(path, (now + 1, now), &proof));
        let late = now + CALL_AGE_MAX.as_millis() as u64 + 1;
        assert!(!secret.is_proven(path, (now, late), &proof), "heard long ago");
        assert!(!other.is_proven(path, (now, now), &proof));
        for wrong in ["", "0", "zz", "é", &proof[2..], &"0".repeat(64)] {
            assert!(!secret.is_proven(path, (now, now), wrong), "{wrong}");
        }
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
