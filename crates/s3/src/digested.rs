//! Verifies the digests of request bodies that the protocol library reads by itself: XML.
//!
//! The library parses such a body before an operation sees it, and ignores its digests. This body
//! stands in front of it, digests what passes, and ends the stream in an error if the digest is not
//! the one announced, so that the operation never runs.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use larder_objects::BodyError;
use s3s::S3Result;

use crate::body::{Digests, parse_md5};
use crate::checksums::{self, Announced, Expected};

/// Whether a digested body was not what was announced; the library passes on an error's text only.
pub(crate) type Mismatch = Arc<AtomicBool>;

/// What a request's headers announce of its XML body.
pub(crate) struct Expectation {
    md5: Option<[u8; 16]>,
    checksum: Announced,
}

impl Expectation {
    /// `None` if nothing is announced. In a completion, checksum headers speak of the object.
    ///
    /// # Errors
    /// `InvalidDigest` or `InvalidRequest` if an announcement is malformed.
    pub(crate) fn of(headers: &HeaderMap, op: &str) -> S3Result<Option<Self>> {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let md5 = header("content-md5").map(parse_md5).transpose()?;
        let mut checksum = Announced::nothing();
        if op != "CompleteMultipartUpload" {
            let given =
                checksums::ALL.map(|algorithm| (algorithm, header(checksums::header(algorithm))));
            checksum = checksums::announced(&given, None, None)?;
        }
        let announced = md5.is_some() || checksum.expected != Expected::Nothing;
        Ok(announced.then_some(Self { md5, checksum }))
    }
}

/// A body whose digests are verified as it passes.
pub(crate) struct DigestedBody<B> {
    inner: B,
    digests: Option<Digests>,
    expectation: Expectation,
    mismatch: Mismatch,
}

impl<B> DigestedBody<B> {
    pub(crate) fn new(inner: B, expectation: Expectation, mismatch: Mismatch) -> Self {
        let digests = Some(Digests::new(expectation.checksum.clone()));
        Self { inner, digests, expectation, mismatch }
    }

    fn verify(&mut self) -> Result<(), BodyError> {
        let Some(digests) = self.digests.take() else { return Ok(()) };
        let digest = digests.finish();
        let md5 = self.expectation.md5.is_none_or(|expected| expected == digest.md5);
        let checksum = match &self.expectation.checksum.expected {
            Expected::Value(value) => digest.checksum.is_some_and(|sum| sum.value == *value),
            Expected::Nothing | Expected::Trailer => true,
        };
        if md5 && checksum {
            return Ok(());
        }
        self.mismatch.store(true, Ordering::Relaxed);
        Err(BodyError::BadDigest)
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for DigestedBody<B>
where
    B::Error: Into<s3s::StdError>,
{
    type Data = Bytes;
    type Error = s3s::StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, s3s::StdError>>> {
        let this = &mut *self;
        Poll::Ready(match std::task::ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
            Some(Ok(frame)) => {
                if let (Some(data), Some(digests)) = (frame.data_ref(), &mut this.digests) {
                    digests.update(data);
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => Some(Err(error.into())),
            None => this.verify().err().map(|refused| Err(refused.into())),
        })
    }

    // Not the inner body's: the end is only reached when the digests have been verified.
    fn is_end_stream(&self) -> bool {
        self.digests.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
