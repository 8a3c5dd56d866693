//! Refuses XML that the protocol library would read only in part. It leaves out the text of CDATA sections: of a key in a
//! batch of deletes the rest would be left, which may be another object's. And it passes over elements that it does not
//! know: a bucket would be made without the tags that it is to have.
//!
//! This watch stands in front of the library, and ends the stream in an error where such a thing begins, so that the
//! operation never runs.

use s3s::{S3Error, S3ErrorCode};

use crate::body::watched::Watch;
use crate::errors::{error, not_implemented};

/// A part of XML that the library would not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unread {
    #[error("CDATA sections are not taken")]
    Cdata,
    #[error("tags of buckets are not taken")]
    BucketTags,
    #[error("the checksum of a part is none that is stored")]
    PartChecksum,
}

impl Unread {
    /// The answer to it.
    pub(crate) fn refusal(self) -> S3Error {
        match self {
            Self::Cdata => {
                let message = "CDATA sections are not taken: escape the text instead.";
                error(S3ErrorCode::MalformedXML, message)
            }
            Self::BucketTags => not_implemented("A bucket's tags (Tags)"),
            Self::PartChecksum => error(
                S3ErrorCode::InvalidRequest,
                "The checksum of a part is not of the upload's algorithm: uploads have CRC32, CRC32C, CRC64NVME, SHA1 \
                 or SHA256.",
            ),
        }
    }
}

/// The first bytes of such a part, and which it is. No proper end of a beginning is also its beginning.
type Beginning = (&'static [u8], Unread);

const CDATA: Beginning = (b"<![CDATA[", Unread::Cdata);
const BEGINNINGS_MAX: usize = 4;

/// The parts that are looked for in this operation's XML.
fn beginnings(op: &str) -> &'static [Beginning] {
    match op {
        "CreateBucket" => &[CDATA, (b"<Tags", Unread::BucketTags)],
        "CompleteMultipartUpload" => &[
            CDATA,
            (b"<ChecksumMD5", Unread::PartChecksum),
            (b"<ChecksumSHA512", Unread::PartChecksum),
            (b"<ChecksumXXHASH", Unread::PartChecksum),
        ],
        _ => &[CDATA],
    }
}

/// Looks for such parts.
pub(crate) struct WhollyRead {
    beginnings: &'static [Beginning],
    /// The length of each beginning that the last bytes match.
    matched: [usize; BEGINNINGS_MAX],
}

impl WhollyRead {
    pub(crate) fn new(op: &str) -> Self {
        let beginnings = beginnings(op);
        assert!(beginnings.len() <= BEGINNINGS_MAX, "each beginning has its count");
        Self { beginnings, matched: [0; BEGINNINGS_MAX] }
    }

    fn find(&mut self, data: &[u8]) -> Option<Unread> {
        self.beginnings.iter().zip(&mut self.matched).find_map(|((begin, what), matched)| {
            for &byte in data {
                *matched = match *matched {
                    matched if byte == begin[matched] => matched + 1,
                    _ => usize::from(byte == begin[0]),
                };
                if *matched == begin.len() {
                    return Some(*what);
                }
            }
            None
        })
    }
}

impl Watch for WhollyRead {
    type Fault = Unread;

    fn look(&mut self, piece: &[u8]) -> Result<(), Unread> {
        self.find(piece).map_or(Ok(()), Err)
    }

    fn end(&mut self) -> Result<(), Unread> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body::Frame;
    use http_body_util::{BodyExt, StreamBody};

    use super::*;
    use crate::body::watched::{Found, Watched};

    /// The part found in a body that comes in these pieces.
    fn found(op: &str, pieces: &[&'static str]) -> Option<Unread> {
        let frames =
            pieces.iter().map(|piece| Ok(Frame::data(Bytes::from_static(piece.as_bytes()))));
        let frames: Vec<Result<Frame<Bytes>, s3s::StdError>> = frames.collect();
        let found = Found::default();
        let body = StreamBody::new(futures::stream::iter(frames));
        let read = Watched::new(body, WhollyRead::new(op), found.clone()).collect();
        let read = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(read);
        assert_eq!(read.is_err(), found.get().is_some());
        assert!(read.is_err() || read.is_ok_and(|read| read.to_bytes() == pieces.concat()));
        found.get().copied()
    }

    #[test]
    fn a_beginning_is_found_wherever_the_body_is_cut() {
        for (op, text, what) in [
            ("DeleteObjects", "<Key>a<![CDATA[&b]]></Key>", Unread::Cdata),
            ("CreateBucket", "<C><Tags><Tag/></Tags></C>", Unread::BucketTags),
            ("CompleteMultipartUpload", "<ETag>a</ETag><ChecksumMD5>", Unread::PartChecksum),
        ] {
            for at in 0..text.len() {
                assert_eq!(found(op, &[&text[..at], &text[at..]]), Some(what), "{op} at {at}");
            }
        }
        assert_eq!(found("", &["<<![CDATA[a]]>"]), Some(Unread::Cdata));
        assert_eq!(found("", &["<![<![CDATA[a]]>"]), Some(Unread::Cdata));
    }

    #[test]
    fn other_bodies_pass_as_they_are() {
        let delete = "<Delete><Object><Key>a&lt;![CDATA[&lt;Tags</Key>";
        assert_eq!(found("DeleteObjects", &[delete, "</Object></Delete>"]), None);
        assert_eq!(found("DeleteObjects", &["<![CDATA", " [ <!-- -->"]), None);
        assert_eq!(found("PutObjectTagging", &["<Tagging><Tags></Tags>"]), None);
        assert_eq!(found("CompleteMultipartUpload", &["<ChecksumSHA256>"]), None);
        assert_eq!(found("CreateBucket", &[""]), None);
    }
}
