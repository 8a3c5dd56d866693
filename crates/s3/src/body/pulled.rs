//! The body of a put as the store pulls it. Every piece is digested once, while it is in cache.
//! Everything that the client announced is verified before the store commits.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use http::StatusCode;
use http_body::Body as _;
use larder_objects::{BodyDigest, BodyError, ObjectError, PutBody};
use larder_types::ChecksumAlgorithm;
use s3s::stream::ByteStream as _;
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::inbound::Inbound;
use super::unframed::{ChunkFault, Found, Trailers, Unframed};
use crate::auth::gate::Gate;
use crate::auth::signature::Payload;
use crate::auth::version_4::{Hex, hex};
use crate::digest::announced::{Announced, Expected};
use crate::digest::checksums::Hasher;
use crate::digest::digests::{Digested, Digests, parse_md5, whole};
use crate::errors::{self, custom};
use crate::limits::XML_BYTES_MAX;
use crate::request::bytes_moved::BytesMoved;

/// The things known of a body beside its bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sent {
    /// The SHA-256 of its bytes that the request signs.
    pub(crate) hash: Option<[u8; 32]>,
    /// Its length without its framing, if it comes in aws-chunks.
    pub(crate) len: Option<u64>,
    /// Where its trailers will be.
    pub(crate) trailers: Trailers,
    /// Where a fault of its framing will be.
    pub(crate) fault: Found<ChunkFault>,
}

impl Sent {
    /// A body without its framing, and what the request's signature says of it.
    pub(crate) fn of(body: Inbound, payload: Payload) -> (s3s::Body, Self) {
        let mut sent = Self::default();
        if let Payload::Chunks { len, signer } = payload {
            let body = Unframed::new(body, len, signer);
            sent.len = Some(len);
            (sent.trailers, sent.fault) = (body.trailers(), body.fault());
            return (s3s::Body::http_body(body), sent);
        }
        if let Payload::Hash(hash) = payload {
            sent.hash = Some(hash);
        }
        // Less is done about a body of which it shows that it is empty.
        match body.is_end_stream() {
            true => (s3s::Body::empty(), sent),
            false => (s3s::Body::http_body(body), sent),
        }
    }
}

/// The body that arrives from a client. The store gets it by reference, so that the operation can still
/// ask it what went wrong ([`RequestBody::explain`]).
pub(crate) struct RequestBody {
    stream: s3s::Body,
    len: Option<u64>,
    received: u64,
    ended: bool,
    digests: Option<Digests>,
    /// A checksum to be stored in place of the announced one.
    stored: Option<(ChecksumAlgorithm, Hasher)>,
    announced: Announced,
    content_md5: Option<[u8; 16]>,
    sent: Sent,
    failure: Option<S3Error>,
    gate: Option<Arc<Gate>>,
}

impl RequestBody {
    /// A body of which nothing but its own length is announced.
    pub(crate) fn new(stream: s3s::Body, announced: Announced) -> Self {
        let len = stream.remaining_length().exact().map(|len| len as u64);
        Self {
            stream,
            len,
            received: 0,
            ended: false,
            digests: Some(Digests::new(&announced)),
            stored: None,
            announced,
            content_md5: None,
            sent: Sent::default(),
            failure: None,
            gate: None,
        }
    }

    /// Adds the gate of its request, which notes what becomes of it.
    pub(crate) fn of(mut self, gate: &Arc<Gate>) -> Self {
        self.gate = Some(Arc::clone(gate));
        self
    }

    /// Notes that the bytes that came are part of an object now: one that was put, or appended to.
    pub(crate) fn note_moved(&self, how: fn(u64) -> BytesMoved) {
        if let Some(gate) = &self.gate {
            gate.note_moved(how(self.received));
        }
    }

    /// Adds `Content-MD5`.
    ///
    /// # Errors
    /// `InvalidDigest` if it is not 16 bytes in base64.
    pub(crate) fn content_md5(mut self, header: Option<&str>) -> S3Result<Self> {
        self.content_md5 = header.map(parse_md5).transpose()?;
        Ok(self)
    }

    /// Adds how it was sent.
    pub(crate) fn sent(mut self, sent: &Sent) -> Self {
        self.sent = sent.clone();
        if self.sent.hash.is_some() {
            self.digests = self.digests.map(Digests::with_sha256);
        }
        self
    }

    /// Has the store get the checksum of this algorithm. What was announced is verified all the same.
    pub(crate) fn stored_as(mut self, algorithm: ChecksumAlgorithm) -> Self {
        let differs = algorithm != self.announced.algorithm;
        self.stored = differs.then(|| (algorithm, Hasher::new(algorithm)));
        self
    }

    /// The length that the client announced.
    pub(crate) fn announced_len(&self) -> Option<u64> {
        self.len
    }

    /// The answer to a put that the store refused: what this body knows better, or what the store says.
    pub(crate) fn explain(&mut self, refused: ObjectError) -> S3Error {
        match (self.failure.take(), refused) {
            (Some(failure), ObjectError::Body(_)) => failure,
            (_, refused) => errors::from_store(refused),
        }
    }

    /// All of it, verified, for an operation that needs it whole or not at all.
    ///
    /// # Errors
    /// `MaxMessageLengthExceeded`, `MissingContentLength`, and as [`Self::explain`].
    pub(crate) async fn into_document(mut self) -> S3Result<Bytes> {
        let too_long = || S3Error::new(S3ErrorCode::MaxMessageLengthExceeded);
        if self.len.is_some_and(|len| len > XML_BYTES_MAX as u64) {
            return Err(too_long());
        }
        let mut document = BytesMut::new();
        while let Some(piece) = self.next_digested().await {
            let piece = piece.map_err(|broken| self.explain(ObjectError::Body(broken)))?;
            if document.len() + piece.len() > XML_BYTES_MAX {
                return Err(too_long());
            }
            document.extend_from_slice(&piece);
        }
        if self.len.is_none() && !document.is_empty() {
            return Err(S3Error::new(S3ErrorCode::MissingContentLength));
        }
        match self.finish_digests() {
            Ok(_) => Ok(document.freeze()),
            Err(refused) => Err(self.explain(ObjectError::Body(refused))),
        }
    }

    async fn next_digested(&mut self) -> Option<Result<Bytes, BodyError>> {
        let piece = self.pull().await?;
        if let (Ok(piece), Some(digests)) = (&piece, &mut self.digests) {
            digests.update_in_company(piece).await;
        }
        if let (Ok(piece), Some((_, hasher))) = (&piece, &mut self.stored) {
            hasher.update(piece);
        }
        Some(piece)
    }

    fn finish_digests(&mut self) -> Result<BodyDigest, BodyError> {
        // A body that was not read to its end is not complete, whatever was announced.
        let digests = self.digests.take().filter(|_| self.ended).ok_or(BodyError::Incomplete)?;
        let digested = digests.finish();
        self.verify(&digested)?;
        let mut digest = digested.digest;
        if let Some((algorithm, hasher)) = self.stored.take() {
            digest.checksum = Some(whole(algorithm, hasher));
        }
        Ok(digest)
    }

    async fn pull(&mut self) -> Option<Result<Bytes, BodyError>> {
        let piece = match self.stream.next().await {
            Some(Ok(piece)) => piece,
            Some(Err(_cause)) => {
                self.ended = true;
                return Some(Err(self.broken()));
            }
            None => {
                self.ended = true;
                return None;
            }
        };
        self.received += piece.len() as u64;
        if self.len.is_some_and(|len| self.received > len) {
            self.ended = true;
            return Some(Err(BodyError::Incomplete));
        }
        Some(Ok(piece))
    }

    fn fail(&mut self, short: BodyError, exact: S3Error) -> BodyError {
        self.failure = Some(exact);
        short
    }

    /// Tells what broke the stream.
    fn broken(&mut self) -> BodyError {
        match self.sent.fault.get().copied() {
            Some(fault) => self.fail(BodyError::Malformed(fault.to_string()), fault.refusal()),
            None => BodyError::Incomplete,
        }
    }

    fn verify(&mut self, digested: &Digested) -> Result<(), BodyError> {
        if self.len.is_some_and(|len| len != self.received) {
            return Err(BodyError::Incomplete);
        }
        if let Some(signed) = self.sent.hash
            && digested.sha256() != Some(signed)
        {
            let computed = digested.sha256().map(hex);
            let computed = computed.as_ref().map_or("", Hex::as_str);
            let exact = errors::payload_mismatch(hex(signed).as_str(), computed);
            return Err(self.fail(BodyError::BadChecksum("SHA256"), exact));
        }
        let computed = digested.digest.md5;
        if let Some(expected) = self.content_md5.filter(|expected| *expected != computed) {
            return Err(self.fail(BodyError::BadDigest, errors::bad_md5(&expected, &computed)));
        }
        let same = match self.announced.expected().1 {
            Expected::Nothing => true,
            Expected::Value(value) => digested.value() == Some(value),
            Expected::Trailer => {
                let value = self.trailer()?;
                digested.value() == Some(&value)
            }
        };
        if same { Ok(()) } else { Err(BodyError::BadChecksum(self.announced.expected().0)) }
    }

    fn trailer(&mut self) -> Result<Vec<u8>, BodyError> {
        match self.sent.trailers.get().and_then(|trailers| self.announced.trailer(trailers)) {
            Some(Ok(value)) => Ok(value),
            Some(Err(exact)) => Err(self.fail(malformed_trailer(), exact)),
            None => {
                let message = "The trailer announced in x-amz-trailer did not follow the body.";
                let exact =
                    custom("MalformedTrailerError", StatusCode::BAD_REQUEST, message.to_owned());
                Err(self.fail(malformed_trailer(), exact))
            }
        }
    }
}

impl PutBody for &mut RequestBody {
    fn len(&self) -> Option<u64> {
        self.len
    }

    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        self.next_digested().await
    }

    fn finish(&mut self) -> Result<BodyDigest, BodyError> {
        self.finish_digests()
    }
}

fn malformed_trailer() -> BodyError {
    BodyError::Malformed("its trailer".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::checksums::parse_value;

    fn body(data: &'static [u8], announced: Announced) -> RequestBody {
        RequestBody::new(s3s::Body::from(Bytes::from_static(data)), announced)
    }

    async fn read(body: &mut RequestBody) -> Result<BodyDigest, BodyError> {
        let mut body = body;
        while let Some(piece) = PutBody::next(&mut body).await {
            piece?;
        }
        PutBody::finish(&mut body)
    }

    fn expect(value: &str) -> Announced {
        let value = parse_value(ChecksumAlgorithm::Crc32, value).unwrap();
        Announced {
            algorithm: ChecksumAlgorithm::Crc32,
            expected: Expected::Value(value),
            asked: true,
            verified: None,
        }
    }

    #[tokio::test]
    async fn what_was_announced_is_verified() {
        let md5 = Some("JfnnlDI7RTiF9RgfG2JNCw==");
        let mut good = body(b"123456789", expect("y/Q5Jg==")).content_md5(md5).unwrap();
        let digest = read(&mut good).await.unwrap();
        assert_eq!(digest.checksum.unwrap().value, [0xcb, 0xf4, 0x39, 0x26]);
        let mut bad = body(b"123456780", Announced::nothing()).content_md5(md5).unwrap();
        assert_eq!(read(&mut bad).await, Err(BodyError::BadDigest));
        let mut bad = body(b"123456780", expect("y/Q5Jg=="));
        assert_eq!(read(&mut bad).await, Err(BodyError::BadChecksum("CRC32")));
        let mut short = body(b"1234", Announced::nothing());
        short.len = Some(5);
        assert_eq!(read(&mut short).await, Err(BodyError::Incomplete));
        let mut long = body(b"1234", Announced::nothing());
        long.len = Some(3);
        assert_eq!(read(&mut long).await, Err(BodyError::Incomplete));
    }

    #[tokio::test]
    async fn another_checksum_than_the_announced_can_be_stored() {
        let md5_of = |digest: &BodyDigest| digest.md5;
        let plain = read(&mut body(b"123456789", Announced::nothing())).await.unwrap();
        let mut good =
            body(b"123456789", expect("y/Q5Jg==")).stored_as(ChecksumAlgorithm::Crc64Nvme);
        let digest = read(&mut good).await.unwrap();
        assert_eq!((md5_of(&digest), &digest.checksum), (plain.md5, &plain.checksum));
        let mut bad =
            body(b"123456780", expect("y/Q5Jg==")).stored_as(ChecksumAlgorithm::Crc64Nvme);
        assert_eq!(read(&mut bad).await, Err(BodyError::BadChecksum("CRC32")));
    }

    #[tokio::test]
    async fn a_body_not_read_to_its_end_does_not_finish() {
        let mut half = body(b"1234", Announced::nothing());
        let mut reference = &mut half;
        assert!(PutBody::next(&mut reference).await.is_some());
        assert_eq!(PutBody::finish(&mut reference), Err(BodyError::Incomplete));
    }

    #[tokio::test]
    async fn an_announced_trailer_must_come() {
        let announced = Announced {
            algorithm: ChecksumAlgorithm::Crc32,
            expected: Expected::Trailer,
            asked: true,
            verified: None,
        };
        let mut without = body(b"1", announced);
        let refused = read(&mut without).await.unwrap_err();
        let exact = without.explain(ObjectError::Body(refused));
        assert_eq!(exact.code().as_str(), "MalformedTrailerError");
    }
}
