//! Refuses XML with CDATA sections. The protocol library leaves their text out: of a key in a batch of deletes the rest
//! would be left, which may be another object's.
//!
//! This body stands in front of the library, and ends the stream in an error where a section begins, so that the
//! operation never runs.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

const BEGIN: &[u8] = b"<![CDATA[";

/// Whether a section was found; the library passes on an error's text only.
pub(crate) type Found = Arc<AtomicBool>;

/// A body that has none.
pub(crate) struct WithoutCdata<B> {
    inner: B,
    /// How much of [`BEGIN`] the last bytes are.
    matched: usize,
    found: Found,
}

/// A section begins here.
#[derive(Debug, thiserror::Error)]
#[error("CDATA sections are not taken")]
pub(crate) struct HasCdata;

impl<B> WithoutCdata<B> {
    pub(crate) fn new(inner: B, found: Found) -> Self {
        Self { inner, matched: 0, found }
    }

    fn has(&mut self, data: &[u8]) -> bool {
        for &byte in data {
            // No proper end of what is looked for is also its beginning: only its first byte may begin it anew.
            self.matched = match self.matched {
                matched if byte == BEGIN[matched] => matched + 1,
                _ => usize::from(byte == BEGIN[0]),
            };
            if self.matched == BEGIN.len() {
                return true;
            }
        }
        false
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for WithoutCdata<B>
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
        if this.found.load(Ordering::Relaxed) {
            return Poll::Ready(Some(Err(HasCdata.into())));
        }
        let frame = std::task::ready!(Pin::new(&mut this.inner).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
            && this.has(data)
        {
            this.found.store(true, Ordering::Relaxed);
            return Poll::Ready(Some(Err(HasCdata.into())));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    /// Whether a body that comes in these pieces passes.
    fn passes(pieces: &[&'static str]) -> bool {
        let frames =
            pieces.iter().map(|piece| Ok(Frame::data(Bytes::from_static(piece.as_bytes()))));
        let frames: Vec<Result<Frame<Bytes>, s3s::StdError>> = frames.collect();
        let found = Found::default();
        let body = StreamBody::new(futures::stream::iter(frames));
        let read = WithoutCdata::new(body, found.clone()).collect();
        let read = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(read);
        assert_eq!(read.is_err(), found.load(Ordering::Relaxed));
        read.is_ok_and(|read| read.to_bytes() == pieces.concat())
    }

    #[test]
    fn a_section_is_found_wherever_the_body_is_cut() {
        const TEXT: &str = "<Key>a<![CDATA[&b]]></Key>";
        assert!(!passes(&[TEXT]));
        assert!((0..TEXT.len()).all(|at| !passes(&[&TEXT[..at], &TEXT[at..]])));
        assert!(!passes(&["<<![CDATA[a]]>"]) && !passes(&["<![<![CDATA[a]]>"]));
    }

    #[test]
    fn other_bodies_pass_as_they_are() {
        assert!(passes(&["<Delete><Object><Key>a&lt;![CDATA[</Key>", "</Object></Delete>"]));
        assert!(passes(&["<![CDATA", " [ <!-- -->"]) && passes(&[""]));
    }
}
