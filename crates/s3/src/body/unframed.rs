//! A body that comes in aws-chunks, without its framing. Each chunk may be signed, and trailers may follow the last.
//!
//! ```text
//!  SIZE[;chunk-signature=…]\r\n DATA \r\n … 0[;chunk-signature=…]\r\n [NAME:VALUE\r\n …] \r\n
//! ```
//!
//! Of trailers, minio-go ends each by `\n`, and the last by `\n\r\n`. That is taken, too.
//!
//! # Invariants
//!
//! 1. Data goes on as it comes, in pieces of the client's: no chunk is held in memory. The last piece of a chunk goes on
//!    only if the chunk's signature is right.
//! 2. The body ends well only after its last chunk, and with trailers that are right: its reader commits nothing before.
//! 3. Of a framing that could be read in two ways nothing is read.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use s3s::{S3Error, S3ErrorCode};
use sha2::{Digest, Sha256};

use crate::auth::signature::ChunkSigner;
use crate::auth::version_4::hex;
use crate::errors::error;
use crate::limits::{AWS_CHUNK_DIGITS_MAX, AWS_CHUNK_LINE_BYTES_MAX, TRAILERS_BYTES_MAX};

/// A fault of a body, once one was found. It is looked for where the answer is made.
pub(crate) type Found<Fault> = Arc<OnceLock<Fault>>;

/// The reason that a body in aws-chunks ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChunkFault {
    #[error("the body is not framed as aws-chunked")]
    Malformed,
    #[error("the body ends before the end of its aws-chunks")]
    Unended,
    #[error("the signature of a chunk is wrong")]
    Signature,
}

impl ChunkFault {
    /// The answer to it.
    pub(crate) fn refusal(self) -> S3Error {
        match self {
            Self::Malformed => error(S3ErrorCode::InvalidRequest, self.to_string()),
            Self::Unended => error(S3ErrorCode::IncompleteBody, self.to_string()),
            Self::Signature => error(
                S3ErrorCode::SignatureDoesNotMatch,
                "The signature of a chunk does not match the one we calculated.",
            ),
        }
    }
}

/// The trailers of a body, once all of it was read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trailers(Arc<OnceLock<HeaderMap>>);

impl Trailers {
    pub(crate) fn get(&self) -> Option<&HeaderMap> {
        self.0.get()
    }
}

/// Where in the framing the next byte stands.
#[derive(Debug)]
enum At {
    /// In a chunk's line.
    Line,
    /// In data, of which so many bytes are left.
    Data(u64),
    /// Before these bytes of the line end that follows data.
    LineEnd(&'static [u8]),
    /// After the last chunk.
    Trailers,
}

/// A chunk whose signature is to be checked: the hash of its data so far, and the signature given.
type Open = (Sha256, [u8; 64]);

/// A body without its framing.
pub(crate) struct Unframed<B> {
    inner: B,
    signer: Box<ChunkSigner>,
    at: At,
    /// The piece that is being read.
    piece: Bytes,
    /// The part of a line, or of trailers, that came.
    line: Vec<u8>,
    open: Option<Open>,
    /// Bytes of the body that are announced and did not come yet.
    left: u64,
    trailers: Trailers,
    fault: Found<ChunkFault>,
    has_ended: bool,
}

impl<B> Unframed<B> {
    /// The body of `len` bytes whose framing is in `inner`.
    pub(crate) fn new(inner: B, len: u64, signer: Box<ChunkSigner>) -> Self {
        Self {
            inner,
            signer,
            at: At::Line,
            piece: Bytes::new(),
            line: Vec::new(),
            open: None,
            left: len,
            trailers: Trailers::default(),
            fault: Found::default(),
            has_ended: false,
        }
    }

    /// Where trailers will be.
    pub(crate) fn trailers(&self) -> Trailers {
        self.trailers.clone()
    }

    /// Where a fault will be.
    pub(crate) fn fault(&self) -> Found<ChunkFault> {
        Arc::clone(&self.fault)
    }

    /// Reads on in the piece; returns data as soon as there is some.
    fn read(&mut self) -> Result<Option<Bytes>, ChunkFault> {
        while !self.piece.is_empty() {
            match &mut self.at {
                At::Line => self.read_line()?,
                At::Data(left) => {
                    let many = usize::try_from(*left).unwrap_or(usize::MAX).min(self.piece.len());
                    let data = self.piece.split_to(many);
                    *left -= many as u64;
                    let has_ended = *left == 0;
                    if let Some((hash, _)) = &mut self.open {
                        hash.update(&data);
                    }
                    if has_ended {
                        self.check_chunk()?;
                        self.at = At::LineEnd(b"\r\n");
                    }
                    self.left = self.left.saturating_sub(many as u64);
                    return Ok(Some(data));
                }
                At::LineEnd(end) => {
                    if self.piece[0] != end[0] {
                        return Err(ChunkFault::Malformed);
                    }
                    *end = &end[1..];
                    self.piece.advance(1);
                    if end.is_empty() {
                        self.at = At::Line;
                    }
                }
                At::Trailers => {
                    self.take_to_line(self.piece.len(), TRAILERS_BYTES_MAX)?;
                }
            }
        }
        Ok(None)
    }

    fn take_to_line(&mut self, bytes: usize, bytes_max: usize) -> Result<(), ChunkFault> {
        if self.line.len() + bytes > bytes_max {
            return Err(ChunkFault::Malformed);
        }
        self.line.extend_from_slice(&self.piece.split_to(bytes));
        Ok(())
    }

    fn read_line(&mut self) -> Result<(), ChunkFault> {
        let end = self.piece.iter().position(|byte| *byte == b'\n');
        self.take_to_line(end.map_or(self.piece.len(), |end| end + 1), AWS_CHUNK_LINE_BYTES_MAX)?;
        if end.is_none() {
            // A beginning that cannot become a line is refused without waiting for the end.
            return declared(&self.line).map(drop);
        }
        let (size, signature) = parse_line(&self.line)?;
        if signature.is_none() && self.signer.is_required {
            return Err(ChunkFault::Malformed);
        }
        self.open = signature.map(|signature| (Sha256::new(), signature));
        self.line.clear();
        self.at = match size {
            0 => {
                self.check_chunk()?;
                At::Trailers
            }
            size => At::Data(size),
        };
        Ok(())
    }

    fn check_chunk(&mut self) -> Result<(), ChunkFault> {
        let Some((hash, given)) = self.open.take() else { return Ok(()) };
        match self.signer.sign_chunk(hex(hash.finalize().into()).as_str()).is(&given) {
            true => Ok(()),
            false => Err(ChunkFault::Signature),
        }
    }

    /// Reads the trailers, once nothing more comes.
    fn end(&mut self) -> Result<(), ChunkFault> {
        if !matches!(self.at, At::Trailers) {
            return Err(ChunkFault::Unended);
        }
        let (trailers, signature) = parse_trailers(&self.line)?;
        let has_any = !trailers.is_empty() || signature.is_some();
        if !has_any && !self.signer.has_trailer {
            return Ok(());
        }
        match signature {
            Some(given) if !self.signer.sign_trailer(&canonical(&trailers)).is(given) => {
                return Err(ChunkFault::Signature);
            }
            None if self.signer.is_required => return Err(ChunkFault::Malformed),
            _ => {}
        }
        if has_any {
            self.trailers.0.get_or_init(|| trailers.into_iter().collect());
        }
        Ok(())
    }

    fn refuse(&self, fault: ChunkFault) -> Poll<Option<Result<Frame<Bytes>, s3s::StdError>>> {
        Poll::Ready(Some(Err((*self.fault.get_or_init(|| fault)).into())))
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Unframed<B>
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
        if let Some(fault) = this.fault.get() {
            return this.refuse(*fault);
        }
        loop {
            match this.read() {
                Ok(Some(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Ok(None) => {}
                Err(fault) => return this.refuse(fault),
            }
            if this.has_ended {
                return Poll::Ready(None);
            }
            match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                Some(Ok(frame)) => this.piece = frame.into_data().unwrap_or_default(),
                Some(Err(broken)) => return Poll::Ready(Some(Err(broken.into()))),
                None => match this.end() {
                    Ok(()) => this.has_ended = true,
                    Err(fault) => return this.refuse(fault),
                },
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// The size that a chunk's line declares, and what follows the size; `None` while its digits may go on.
fn declared(line: &[u8]) -> Result<Option<(u64, &[u8])>, ChunkFault> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (number, rest) = line.split_at(digits);
    let is_done = matches!(rest, [b';' | b'\r', ..]);
    if digits > AWS_CHUNK_DIGITS_MAX || !rest.is_empty() && !is_done || digits == 0 && is_done {
        return Err(ChunkFault::Malformed);
    }
    if !is_done {
        return Ok(None);
    }
    let text = std::str::from_utf8(number).unwrap_or_default();
    let declared = u64::from_str_radix(text, 16).map_err(|_| ChunkFault::Malformed)?;
    Ok(Some((declared, rest)))
}

/// Reads a chunk's line: its size, and the signature, if it has one.
fn parse_line(line: &[u8]) -> Result<(u64, Option<[u8; 64]>), ChunkFault> {
    let Some((size, rest)) = declared(line)? else { return Err(ChunkFault::Malformed) };
    let rest = rest.strip_suffix(b"\r\n").ok_or(ChunkFault::Malformed)?;
    if rest.is_empty() {
        return Ok((size, None));
    }
    let signature = rest.strip_prefix(b";chunk-signature=").ok_or(ChunkFault::Malformed)?;
    signature.try_into().map(|given| (size, Some(given))).map_err(|_| ChunkFault::Malformed)
}

type Trailer = (HeaderName, HeaderValue);

/// Reads trailers, each of which stands once, and the signature of all of them, which is the last line before the end.
fn parse_trailers(text: &[u8]) -> Result<(Vec<Trailer>, Option<&[u8]>), ChunkFault> {
    let mut rest = text.strip_suffix(b"\r\n").ok_or(ChunkFault::Unended)?;
    let mut trailers: Vec<Trailer> = Vec::new();
    let mut signature = None;
    while !rest.is_empty() {
        let (line, after) = trailer_line(rest)?;
        rest = after;
        if signature.is_some() {
            return Err(ChunkFault::Malformed);
        }
        let colon = line.iter().position(|byte| *byte == b':').ok_or(ChunkFault::Malformed)?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let name = HeaderName::from_bytes(name).map_err(|_| ChunkFault::Malformed)?;
        if name == "x-amz-trailer-signature" {
            signature = Some(value);
        } else {
            let value = HeaderValue::from_bytes(value).map_err(|_| ChunkFault::Malformed)?;
            trailers.push((name, value));
        }
    }
    trailers.sort_by(|(one, _), (other, _)| one.as_str().cmp(other.as_str()));
    match trailers.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        true => Err(ChunkFault::Malformed),
        false => Ok((trailers, signature)),
    }
}

/// The first line without its end, and what follows.
fn trailer_line(text: &[u8]) -> Result<(&[u8], &[u8]), ChunkFault> {
    let end = text.iter().position(|byte| *byte == b'\n').ok_or(ChunkFault::Unended)?;
    let (line, rest) = (&text[..end], &text[end + 1..]);
    Ok(match line.strip_suffix(b"\r") {
        Some(line) => (line, rest),
        None => (line, rest.strip_prefix(b"\r\n").unwrap_or(rest)),
    })
}

/// The text of trailers that is signed.
fn canonical(trailers: &[Trailer]) -> Vec<u8> {
    let mut text = Vec::new();
    for (name, value) in trailers {
        for part in [name.as_str().as_bytes(), b":", value.as_bytes(), b"\n"] {
            text.extend_from_slice(part);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use http_body_util::{BodyExt, StreamBody};

    use super::*;
    use crate::auth::version_4::{SigningKey, sha256};

    const DATA: &[u8] = b"hello, world: hello, chunks";

    fn signer(is_required: bool) -> Box<ChunkSigner> {
        let key = SigningKey::new("secret", "20260101", "r");
        let scope = ["20260101T000000Z", "20260101", "r"];
        Box::new(ChunkSigner::after(&"0".repeat(64), key, scope, is_required))
    }

    /// Chunks of the data, signed as the signer expects them.
    fn framed(chunk_bytes: usize, trailers: &[u8]) -> Vec<u8> {
        let mut signer = signer(true);
        let mut framed = Vec::new();
        for chunk in DATA.chunks(chunk_bytes).chain([&b""[..]]) {
            let signature = signer.sign_chunk(sha256(chunk).as_str());
            let (bytes, signature) = (chunk.len(), signature.as_str());
            framed.extend(format!("{bytes:x};chunk-signature={signature}\r\n").bytes());
            framed.extend(chunk);
            framed.extend(if chunk.is_empty() { &b""[..] } else { b"\r\n" });
        }
        if !trailers.is_empty() {
            let signature = signer.sign_trailer(trailers);
            let text = String::from_utf8(trailers.to_vec()).unwrap().replace('\n', "\r\n");
            let signature = signature.as_str();
            framed.extend(format!("{text}x-amz-trailer-signature:{signature}\r\n").bytes());
        }
        framed.extend(b"\r\n");
        framed
    }

    /// The result of reading a body that comes in pieces of so many bytes.
    async fn read(
        framed: &[u8],
        piece_bytes: usize,
        is_required: bool,
    ) -> (Result<Vec<u8>, ChunkFault>, Option<HeaderMap>) {
        let frames: Vec<Result<Frame<Bytes>, s3s::StdError>> = framed
            .chunks(piece_bytes)
            .map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece))))
            .collect();
        let inner = StreamBody::new(stream::iter(frames));
        let body = Unframed::new(inner, DATA.len() as u64, signer(is_required));
        let (trailers, fault) = (body.trailers(), body.fault());
        let read = body.collect().await.map(|read| read.to_bytes().to_vec());
        assert_eq!(read.is_err(), fault.get().is_some());
        (read.map_err(|_| *fault.get().unwrap()), trailers.get().cloned())
    }

    #[tokio::test]
    async fn a_body_is_read_however_it_is_chunked_and_cut() {
        for chunk_bytes in [1, 10, 100] {
            for trailers in [&b""[..], b"x-a:1\nx-b:2\n"] {
                let framed = framed(chunk_bytes, trailers);
                for piece_bytes in [1, 2, 3, 7, 90, framed.len()] {
                    let (data, shown) = read(&framed, piece_bytes, true).await;
                    assert_eq!(data.as_deref(), Ok(DATA), "{chunk_bytes} {piece_bytes}");
                    assert_eq!(shown.map(|it| it.len()), (!trailers.is_empty()).then_some(2));
                }
            }
        }
    }

    #[tokio::test]
    async fn what_was_changed_after_it_was_signed_is_refused() {
        let good = framed(10, b"x-a:1\n");
        for (from, to) in [(&b"hello"[..], &b"hullo"[..]), (b"x-a:1", b"x-a:2")] {
            let at = good.windows(from.len()).position(|window| window == from).unwrap();
            let mut changed = good.clone();
            changed[at..at + to.len()].copy_from_slice(to);
            assert_eq!(read(&changed, 5, true).await.0, Err(ChunkFault::Signature));
        }
        let text = String::from_utf8(good).unwrap();
        let (signed, _) = text.split_once("x-amz-trailer-signature").unwrap();
        let unsigned = format!("{signed}\r\n");
        assert_eq!(read(unsigned.as_bytes(), 5, true).await.0, Err(ChunkFault::Malformed));
        assert_eq!(read(signed.as_bytes(), 5, true).await.0, Err(ChunkFault::Unended));
    }

    #[tokio::test]
    async fn trailers_that_are_announced_cannot_be_cut_off_with_their_signature() {
        for (is_required, expected) in [(true, Err(ChunkFault::Malformed)), (false, Ok(()))] {
            let mut signer = signer(is_required);
            signer.has_trailer = true;
            let inner = http_body_util::Full::new(Bytes::from(framed(10, b"")));
            let body = Unframed::new(inner, DATA.len() as u64, signer);
            let fault = body.fault();
            let read = body.collect().await.map(drop).map_err(|_| *fault.get().unwrap());
            assert_eq!(read, expected);
        }
    }

    /// minio-go writes them so, with and without signatures.
    #[tokio::test]
    async fn trailers_with_line_feeds_are_read() {
        for ends in ["\n\r\n\r\n", "\n\r\n", "\r\n\r\n"] {
            let (data, trailers) = read(format!("0\r\nx-a:1{ends}").as_bytes(), 1, false).await;
            assert_eq!(data.as_deref(), Ok(&b""[..]), "{ends:?}");
            assert_eq!(trailers.unwrap()["x-a"], "1");
        }
        let good = String::from_utf8(framed(10, b"x-a:1\n")).unwrap();
        let spaced = good.replace("x-a:1\r\n", "x-a:1\n\r\n");
        assert_ne!(spaced, good);
        assert_eq!(read(spaced.as_bytes(), 7, true).await.0.as_deref(), Ok(DATA));
    }

    #[tokio::test]
    async fn chunks_come_without_a_signature_only_where_none_is_required() {
        let plain = b"b\r\nhello, worl\r\n10\r\nd: hello, chunks\r\n0\r\nx-a: 1 \r\n\r\n";
        let (data, trailers) = read(plain, 4, false).await;
        assert_eq!((data.as_deref(), &trailers.unwrap()["x-a"]), (Ok(DATA), &"1".parse().unwrap()));
        assert_eq!(read(plain, 4, true).await.0, Err(ChunkFault::Malformed));
        assert_eq!(read(&framed(10, b""), 4, false).await.0.as_deref(), Ok(DATA));
    }

    #[tokio::test]
    async fn a_body_without_its_last_chunk_is_refused() {
        assert!(read(b"1\r\na\r\n0\r\n\r\n", 1, false).await.0.is_ok());
        for cut in [
            &b"1\r\na\r\n"[..],
            b"1\r\na\r\n0",
            b"1\r\n",
            b"",
            b"0\r\n",
            b"0\r\nx-a:1\r\n",
            b"0\r\nx-a:1\r\nx-b:2",
            b"0\r\nx-a:1\nx-b:2",
            b"0\r\n\n\n\n",
        ] {
            assert_eq!(read(cut, 1, false).await.0, Err(ChunkFault::Unended), "{cut:?}");
        }
    }

    #[tokio::test]
    async fn framing_that_could_be_read_in_two_ways_is_refused() {
        for framed in [
            &b"\r\n"[..],
            b"x\r\n",
            b"+5\r\n",
            b"0000000001\r\n",
            b"1\r\nab\r\n",
            b"1\r\na\n\n",
            b" 1\r\n",
            b"1\n",
            b"1;a=b\r\na\r\n",
            b"1;chunk-signature=00\r\na\r\n",
            b"0\r\nno colon\r\n\r\n",
            b"0\r\n: no name\r\n\r\n",
            b"0\r\n\r\nx-a:1\r\n\r\n",
            b"0\r\n\r\n\r\n",
            b"0\r\n\nx-a:1\r\n\r\n",
            b"0\r\nx-a:1\r\n\r\nx-b:2\r\n\r\n",
            b"0\r\nx-a:1\r\nX-A:2\r\n\r\n",
            b"0\r\nx-amz-trailer-signature:0\r\nx-a:1\r\n\r\n",
            b"0\r\nx-amz-trailer-signature:0\r\nx-amz-trailer-signature:0\r\n\r\n",
        ] {
            assert_eq!(read(framed, 1, false).await.0, Err(ChunkFault::Malformed), "{framed:?}");
        }
        assert_eq!(declared(b"fffffffff\r\n").unwrap().unwrap().0, (1 << 36) - 1);
        let long = [b"1;".to_vec(), vec![b'x'; AWS_CHUNK_LINE_BYTES_MAX]].concat();
        assert_eq!(read(&long, 7, false).await.0, Err(ChunkFault::Malformed));
        let long = [b"0\r\nx:".to_vec(), vec![b'x'; TRAILERS_BYTES_MAX]].concat();
        assert_eq!(read(&long, 700, false).await.0, Err(ChunkFault::Malformed));
    }
}
