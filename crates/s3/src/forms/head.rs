//! Reads the head of an HTML form once: all up to its file.
//!
//! # Invariants
//!
//! 1. Each byte is looked at once, however the head is cut.
//! 2. No more than [`FORM_HEAD_BYTES_MAX`] bytes are read for a head, but for the rest of the frame in which it ends.

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body::Body;
use http_body_util::BodyExt;
use larder_objects::BodyError;
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::fields::Field;
use crate::auth::gate::Cut;
use crate::errors::{self, error};
use crate::limits::FORM_HEAD_BYTES_MAX;

/// Bytes of a boundary, as RFC 2046 bounds them.
const BOUNDARY_BYTES_MAX: usize = 70;

/// A form up to its file.
#[derive(Debug)]
pub(crate) struct FormHead {
    pub(crate) fields: Vec<Field>,
    /// The name that the client's file has, without its folders; empty if it has none.
    pub(crate) file_name: String,
    /// The line before each part.
    pub(crate) delimiter: Vec<u8>,
    /// The part of the file that came with it.
    pub(crate) rest: BytesMut,
}

impl FormHead {
    /// Reads the head from the beginning of a body.
    ///
    /// # Errors
    /// `MalformedPOSTRequest` for what is no form with a file, `AccessDenied` for a head that is too large,
    /// `IncompleteBody`.
    pub(crate) async fn read<B: Body<Data = Bytes> + Unpin>(
        headers: &HeaderMap,
        body: &mut B,
    ) -> S3Result<Self> {
        let mut reader = Reader::new(boundary(headers).ok_or_else(malformed)?);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_broken| errors::from_body(BodyError::Incomplete))?;
            let Some(data) = frame.data_ref() else { continue };
            if reader.feed(data)? {
                return Ok(reader.into_head());
            }
        }
        Err(malformed())
    }
}

/// The boundary that a form's type names.
fn boundary(headers: &HeaderMap) -> Option<&str> {
    let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    if kind.matches('"').count() % 2 == 1 {
        return None;
    }
    kind.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.trim().split_once('=')?;
        let boundary = value.trim_matches('"');
        let is_one = (1..=BOUNDARY_BYTES_MAX).contains(&boundary.len());
        (name.eq_ignore_ascii_case("boundary") && is_one).then_some(boundary)
    })
}

pub(super) fn malformed() -> S3Error {
    let message = "The body of your POST request is not well-formed multipart/form-data with a field named file.";
    error(S3ErrorCode::MalformedPOSTRequest, message)
}

/// The part of a head that the next line belongs to.
enum At {
    /// Before the first part; true after an empty line.
    Start(bool),
    /// In a part's headers, whose name may have come.
    Headers(Option<String>),
    /// In the value of the field of this name, which begins there.
    Value(String, usize),
    /// In the file.
    File,
}

struct Reader {
    /// The line before each part.
    delimiter: Vec<u8>,
    came: BytesMut,
    /// The beginning of the line that is not complete.
    line: usize,
    /// The end of what was searched for line ends.
    searched: usize,
    at: At,
    fields: Vec<Field>,
    file_name: String,
    /// Bytes examined, of those that arrived.
    #[cfg(test)]
    looked_at: usize,
}

impl Reader {
    fn new(boundary: &str) -> Self {
        Self {
            delimiter: format!("--{boundary}").into_bytes(),
            came: BytesMut::new(),
            line: 0,
            searched: 0,
            at: At::Start(false),
            fields: Vec::new(),
            file_name: String::new(),
            #[cfg(test)]
            looked_at: 0,
        }
    }

    /// Reads on; true once the file has begun.
    fn feed(&mut self, data: &[u8]) -> S3Result<bool> {
        self.came.extend_from_slice(data);
        while let Some((begin, end)) = self.next_line() {
            self.read_line(begin, end)?;
            if matches!(self.at, At::File) {
                return Ok(true);
            }
        }
        if self.came.len() >= FORM_HEAD_BYTES_MAX {
            return Err(Cut::Unverified.refusal());
        }
        Ok(false)
    }

    /// The next line within the limit, without its end, once it is complete.
    fn next_line(&mut self) -> Option<(usize, usize)> {
        let limit = self.came.len().min(FORM_HEAD_BYTES_MAX);
        while let Some(at) = self.came[self.searched..limit].iter().position(|byte| *byte == b'\n')
        {
            let end = self.searched + at;
            self.look_up_to(end + 1);
            if end > self.line && self.came[end - 1] == b'\r' {
                let begin = std::mem::replace(&mut self.line, end + 1);
                return Some((begin, end - 1));
            }
        }
        self.look_up_to(limit);
        None
    }

    fn look_up_to(&mut self, end: usize) {
        #[cfg(test)]
        {
            self.looked_at += end - self.searched;
        }
        self.searched = end;
    }

    fn read_line(&mut self, begin: usize, end: usize) -> S3Result<()> {
        let line = &self.came[begin..end];
        let delimits = line == self.delimiter;
        match &mut self.at {
            At::Start(_) if delimits => self.at = At::Headers(None),
            At::Start(led @ false) if line.is_empty() => *led = true,
            At::Start(_) => return Err(malformed()),
            At::Headers(name) if line.is_empty() => {
                let name = name.take().ok_or_else(malformed)?;
                self.at = if name == "file" { At::File } else { At::Value(name, end + 2) };
            }
            At::Headers(name) => {
                if let Some((given, file_name)) = names_of(line).ok_or_else(malformed)? {
                    if name.replace(given).is_some() {
                        return Err(malformed());
                    }
                    // The last part of the head is the file's.
                    self.file_name = file_name;
                }
            }
            At::Value(name, from) if delimits => {
                // Of a value without bytes, the delimiter's line end is the one behind the headers.
                let value = &self.came[*from..begin.saturating_sub(2).max(*from)];
                let value = std::str::from_utf8(value).map_err(|_| malformed())?.to_owned();
                self.fields.push((std::mem::take(name), value));
                self.at = At::Headers(None);
            }
            At::Value(..) | At::File => {}
        }
        Ok(())
    }

    fn into_head(mut self) -> FormHead {
        FormHead {
            fields: self.fields,
            file_name: self.file_name,
            delimiter: self.delimiter,
            rest: self.came.split_off(self.line),
        }
    }
}

/// The field's name in lower case and its file's name, if this header has them; `None` if the header is malformed.
#[expect(clippy::option_option, reason = "a header without a name is no malformed one")]
fn names_of(header: &[u8]) -> Option<Option<(String, String)>> {
    let (kind, value) = std::str::from_utf8(header).ok()?.split_once(':')?;
    if !kind.eq_ignore_ascii_case("content-disposition") {
        return Some(None);
    }
    let (name, rest) = value.trim_start().strip_prefix("form-data; name=\"")?.split_once('"')?;
    let is_plain = !name.is_empty() && !name.contains(char::is_control);
    let is_end = rest.is_empty() || rest.starts_with(';');
    let file_name = rest.split_once("filename=\"").and_then(|(_, it)| it.split_once('"'));
    // Some clients send the whole path.
    let file_name = file_name.map_or("", |(it, _)| it.rsplit(['/', '\\']).next().unwrap_or(it));
    (is_plain && is_end).then(|| Some((name.to_ascii_lowercase(), file_name.to_owned())))
}

#[cfg(test)]
mod tests;
