//! The file of an HTML form, read to its end. Its length is known only there, and its policy bounds it.
//!
//! # Invariants
//!
//! 1. No more than [`FORM_FILE_BYTES_MAX`] bytes are held, nor more than the form's policy allows, but for a delimiter and the rest
//!    of the frame in which the last came.
//! 2. Each byte is looked at once, but for those that may begin a delimiter, however the body is cut.

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use larder_objects::BodyError;
use memchr::memmem;
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::head::malformed;
use crate::errors::{self, error};
use crate::limits::FORM_FILE_BYTES_MAX;

/// Line ends around a delimiter, and the two hyphens of the last.
const LINE_END: &[u8] = b"\r\n";
const LAST: &[u8] = b"--";

/// Reads the file up to the form's next delimiter, of which `delimiter` has all but the line ends. `came` is what came of it with
/// the head, and `bytes_max` is the policy's bound. What is behind it is of no account: S3 looks at no field behind the file.
///
/// # Errors
/// `EntityTooLarge`, `IncompleteBody`, `MalformedPOSTRequest` without a delimiter.
pub(crate) async fn read<B: Body<Data = Bytes> + Unpin>(
    delimiter: &[u8],
    came: &[u8],
    body: &mut B,
    bytes_max: u64,
) -> S3Result<Bytes> {
    let mut file = File::new(delimiter, bytes_max.min(FORM_FILE_BYTES_MAX));
    // In one piece: a buffer that grows is there twice while it does.
    let announced = body.size_hint().exact().unwrap_or(0).min(FORM_FILE_BYTES_MAX);
    file.held.reserve(came.len() + announced as usize);
    file.held.extend_from_slice(came);
    loop {
        if let Some(end) = file.end()? {
            return Ok(file.held.split_to(end).freeze().slice(LINE_END.len()..));
        }
        let frame = body.frame().await.ok_or_else(malformed)?;
        let frame = frame.map_err(|_broken| errors::from_body(BodyError::Incomplete))?;
        if let Some(data) = frame.data_ref() {
            file.held.extend_from_slice(data);
        }
    }
}

struct File {
    /// Finds the delimiter with the line end before it.
    delimiter: memmem::Finder<'static>,
    bytes_max: u64,
    /// The line end that the head has behind it, which the delimiter of an empty file may share, and all that came since.
    held: BytesMut,
    searched: usize,
}

impl File {
    fn new(delimiter: &[u8], bytes_max: u64) -> Self {
        let delimiter = [LINE_END, delimiter].concat();
        let delimiter = memmem::Finder::new(&delimiter).into_owned();
        Self { delimiter, bytes_max, held: BytesMut::from(LINE_END), searched: 0 }
    }

    /// Where the file ends, once its end came.
    fn end(&mut self) -> S3Result<Option<usize>> {
        let delimiter_bytes = self.delimiter.needle().len();
        while let Some(at) = self.delimiter.find(&self.held[self.searched..]) {
            let at = self.searched + at;
            let behind = &self.held[at + delimiter_bytes..];
            if behind.len() < LINE_END.len() {
                self.searched = at;
                return Ok(None);
            }
            if behind.starts_with(LINE_END) || behind.starts_with(LAST) {
                // The delimiter of an empty file may share the head's line end.
                let end = at.max(LINE_END.len());
                return self.check(end - LINE_END.len()).map(|()| Some(end));
            }
            self.searched = at + 1;
        }
        let kept = self.held.len().saturating_sub(delimiter_bytes - 1);
        self.searched = self.searched.max(kept);
        self.check(kept.saturating_sub(LINE_END.len())).map(|()| None)
    }

    fn check(&self, bytes: usize) -> Result<(), S3Error> {
        if bytes as u64 <= self.bytes_max {
            return Ok(());
        }
        let message = format!(
            "Your proposed upload exceeds the maximum allowed size: {} bytes for this form's file.",
            self.bytes_max
        );
        Err(error(S3ErrorCode::EntityTooLarge, message))
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    async fn file(came: &[u8], frames: &[&[u8]]) -> Result<Vec<u8>, S3ErrorCode> {
        let frames: Vec<_> = frames
            .iter()
            .map(|it| Ok::<_, s3s::StdError>(Frame::data(Bytes::copy_from_slice(it))))
            .collect();
        let mut body = StreamBody::new(stream::iter(frames));
        let read = read(b"--xx", came, &mut body, u64::MAX).await;
        read.map(|it| it.to_vec()).map_err(|refused| refused.code().clone())
    }

    #[tokio::test]
    async fn a_file_ends_at_a_delimiter_wherever_the_body_is_cut() {
        let content = b"\n--xx\r\n--xxy\r\n--x\r\n--xx-\r\n\r";
        for rest in [
            "\r\n--xx--\r\n",
            "\r\n--xx\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--xx--",
        ] {
            let all = [content, rest.as_bytes()].concat();
            for at in 0..=all.len() {
                let read = file(&all[..at], &[&all[at..]]).await;
                assert_eq!(read.as_deref(), Ok(&content[..]), "{at}");
            }
            let bytes: Vec<&[u8]> = all.chunks(1).collect();
            assert_eq!(file(b"", &bytes).await.as_deref(), Ok(&content[..]));
        }
    }

    #[tokio::test]
    async fn an_empty_file_may_share_the_line_end_of_its_head() {
        for all in [&b"--xx--"[..], b"\r\n--xx--", b"--xx\r\n"] {
            assert_eq!(file(all, &[]).await.as_deref(), Ok(&b""[..]));
        }
        assert_eq!(file(b"\r\n\r\n--xx--", &[]).await.as_deref(), Ok(&b"\r\n"[..]));
    }

    #[tokio::test]
    async fn a_file_without_an_end_is_malformed_and_one_that_is_too_long_is_refused_before_its_end()
    {
        for all in [&b"hello"[..], b"hello\r\n--xx", b"hello\r\n--xx-", b"hello\n--xx--"] {
            assert_eq!(file(b"", &[all]).await, Err(S3ErrorCode::MalformedPOSTRequest));
        }
        let most = vec![b'-'; FORM_FILE_BYTES_MAX as usize];
        assert_eq!(file(&most, &[b"\r\n--xx--"]).await.map(|it| it.len()), Ok(most.len()));
        let more = [&most[..], b"-"].concat();
        assert_eq!(file(&more, &[b"\r\n--xx--"]).await, Err(S3ErrorCode::EntityTooLarge));
        let endless = [&more[..], b"-------"].concat();
        assert_eq!(file(b"", &[&endless]).await, Err(S3ErrorCode::EntityTooLarge));
        let mut body =
            StreamBody::new(stream::iter([Ok::<_, s3s::StdError>(Frame::data(Bytes::new()))]));
        let refused = read(b"--xx", b"hello\r\n--xx--", &mut body, 4).await.unwrap_err();
        assert_eq!(refused.code(), &S3ErrorCode::EntityTooLarge);
    }
}
