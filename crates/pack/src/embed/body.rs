//! Bodies that a program gives: in memory, or read from another object. Their MD5 becomes the etag.

use std::collections::VecDeque;

use bytes::Bytes;
use futures::StreamExt;
use larder_objects::{BodyDigest, BodyError, ObjectError, PieceStream, PutBody, ReadBody};
use md5::{Digest, Md5};

/// A body.
pub(super) struct Given {
    at_hand: VecDeque<Bytes>,
    coming: Option<PieceStream>,
    len: u64,
    taken: u64,
    md5: Md5,
}

impl Given {
    pub(super) fn whole(pieces: Vec<Bytes>) -> Self {
        let len = pieces.iter().map(|piece| piece.len() as u64).sum();
        Self { at_hand: pieces.into(), coming: None, len, taken: 0, md5: Md5::new() }
    }

    /// Takes what is read of an object that has `len` bytes.
    pub(super) fn read(body: ReadBody, len: u64) -> Self {
        match body {
            ReadBody::Whole(bytes) => Self::whole(vec![bytes]),
            ReadBody::Stream(pieces) => {
                Self { coming: Some(pieces), len, ..Self::whole(Vec::new()) }
            }
        }
    }

    async fn piece(&mut self) -> Option<Result<Bytes, ObjectError>> {
        if let Some(piece) = self.at_hand.pop_front() {
            return Some(Ok(piece));
        }
        self.coming.as_mut()?.next().await
    }
}

impl PutBody for Given {
    fn len(&self) -> Option<u64> {
        Some(self.len)
    }

    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        match self.piece().await? {
            Ok(piece) => {
                self.taken += piece.len() as u64;
                self.md5.update(&piece);
                Some(Ok(piece))
            }
            Err(error) => {
                tracing::warn!(%error, "an object that is being copied could not be read");
                Some(Err(BodyError::Incomplete))
            }
        }
    }

    fn finish(&mut self) -> Result<BodyDigest, BodyError> {
        if self.taken != self.len {
            return Err(BodyError::Incomplete);
        }
        let md5 = std::mem::replace(&mut self.md5, Md5::new()).finalize().into();
        Ok(BodyDigest { md5, checksum: None })
    }
}
