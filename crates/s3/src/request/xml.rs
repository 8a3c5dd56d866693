//! Reads the XML of requests, all of it or nothing. Of a key that is read in part the rest may be another object's. A list that
//! lacks an entry makes an object that lacks a part.
//!
//! # Invariants
//!
//! 1. No element and no text of a document is passed over. What the reader of a document does not know is `MalformedXML`, and so
//!    is an element that stands there twice where there is one.
//! 2. Names count without their prefix, and no namespace is looked at (S3).
//! 3. It holds one path of elements, and never a tree: what is kept of a document is for its reader to bound.

use std::str::FromStr;

use quick_xml::Reader;
use quick_xml::events::{BytesRef, BytesStart, Event};
use s3s::dto::{Timestamp, TimestampFormat};
use s3s::{S3Error, S3ErrorCode, S3Result};

/// The place in a document: inside an element that has begun.
pub(crate) struct Xml<'x> {
    events: Reader<&'x [u8]>,
    /// The element has ended with its beginning: `<Quiet/>`.
    is_empty: bool,
}

/// Reads a document with such a root.
///
/// # Errors
/// `MissingRequestBodyError` if there is none; `MalformedXML`, and what `content` refuses.
pub(crate) fn read<'x, T>(
    document: &'x [u8],
    root: &str,
    content: impl FnOnce(&mut Xml<'x>) -> S3Result<T>,
) -> S3Result<T> {
    if document.is_empty() {
        return Err(S3Error::new(S3ErrorCode::MissingRequestBodyError));
    }
    let mut xml = Xml { events: Reader::from_reader(document), is_empty: false };
    match xml.outside()? {
        Some(found) if is_named(&found, root) => {}
        _ => return Err(malformed()),
    }
    let read = content(&mut xml)?;
    match xml.outside()? {
        None => Ok(read),
        Some(_) => Err(malformed()),
    }
}

impl<'x> Xml<'x> {
    /// Calls `child` in each element inside this one, with its name. It must read what is in it.
    ///
    /// # Errors
    /// `MalformedXML`, and what `child` refuses.
    pub(crate) fn children(
        &mut self,
        mut child: impl FnMut(&mut Self, &str) -> S3Result<()>,
    ) -> S3Result<()> {
        if std::mem::take(&mut self.is_empty) {
            return Ok(());
        }
        loop {
            match self.event()? {
                Event::Start(start) => child(self, local(&start)?)?,
                Event::Empty(start) => {
                    self.is_empty = true;
                    child(self, local(&start)?)?;
                    assert!(!self.is_empty, "an element is read to its end");
                }
                Event::End(_) => return Ok(()),
                Event::Text(text) if is_white(&text) => {}
                Event::Comment(_) | Event::PI(_) => {}
                _ => return Err(malformed()),
            }
        }
    }

    /// The text of an element that has nothing else.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub(crate) fn text(&mut self) -> S3Result<String> {
        let mut text = String::new();
        if std::mem::take(&mut self.is_empty) {
            return Ok(text);
        }
        loop {
            match self.event()? {
                Event::Text(piece) => text.push_str(&piece.decode().map_err(|_| malformed())?),
                Event::CData(piece) => text.push_str(&piece.decode().map_err(|_| malformed())?),
                Event::GeneralRef(name) => text.push(character(&name).ok_or_else(malformed)?),
                Event::End(_) => return Ok(text),
                Event::Comment(_) | Event::PI(_) => {}
                _ => return Err(malformed()),
            }
        }
    }

    /// The text without white space around it.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub(crate) fn word(&mut self) -> S3Result<String> {
        let text = self.text()?;
        let word = text.trim_matches(|character| matches!(character, ' ' | '\t' | '\r' | '\n'));
        Ok(if word.len() == text.len() { text } else { word.to_owned() })
    }

    /// A number.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub(crate) fn number<T: FromStr>(&mut self) -> S3Result<T> {
        self.word()?.parse().map_err(|_| malformed())
    }

    /// True or false.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub(crate) fn boolean(&mut self) -> S3Result<bool> {
        self.word()?.to_ascii_lowercase().parse().map_err(|_| malformed())
    }

    /// A date in HTTP's form.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub(crate) fn http_date(&mut self) -> S3Result<Timestamp> {
        Timestamp::parse(TimestampFormat::HttpDate, &self.word()?).map_err(|_| malformed())
    }

    /// An entity tag, with quotes or without.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub(crate) fn etag(&mut self) -> S3Result<String> {
        let word = self.word()?;
        Ok(word.trim_start_matches("W/").trim_matches('"').to_owned())
    }

    fn event(&mut self) -> S3Result<Event<'x>> {
        self.events.read_event().map_err(|_| malformed())
    }

    /// The next element outside of all others; `None` at the document's end.
    fn outside(&mut self) -> S3Result<Option<BytesStart<'x>>> {
        loop {
            match self.event()? {
                Event::Start(start) => return Ok(Some(start)),
                Event::Empty(start) => {
                    self.is_empty = true;
                    return Ok(Some(start));
                }
                Event::Eof => return Ok(None),
                Event::Text(text) if is_white(&text) => {}
                Event::Decl(_) | Event::Comment(_) | Event::PI(_) => {}
                _ => return Err(malformed()),
            }
        }
    }
}

/// Fills what a document says once.
///
/// # Errors
/// `MalformedXML` if it says it again.
pub(crate) fn once<T>(slot: &mut Option<T>, value: T) -> S3Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(malformed()),
    }
}

/// A document that is none, or not of its form.
pub(crate) fn malformed() -> S3Error {
    S3Error::new(S3ErrorCode::MalformedXML)
}

fn is_named(start: &BytesStart<'_>, name: &str) -> bool {
    start.local_name().into_inner() == name.as_bytes()
}

fn local<'s>(start: &'s BytesStart<'_>) -> S3Result<&'s str> {
    std::str::from_utf8(start.local_name().into_inner()).map_err(|_| malformed())
}

fn is_white(text: &[u8]) -> bool {
    text.iter().all(u8::is_ascii_whitespace)
}

/// The character that `&name;` stands for, if there is one that XML 1.0 has.
fn character(name: &BytesRef<'_>) -> Option<char> {
    let name = name.decode().ok()?;
    let Some(number) = name.strip_prefix('#') else {
        return Some(match &*name {
            "amp" => '&',
            "apos" => '\'',
            "gt" => '>',
            "lt" => '<',
            "quot" => '"',
            _ => return None,
        });
    };
    let (digits, radix) = number.strip_prefix('x').map_or((number, 10), |digits| (digits, 16));
    let is_digits = digits.bytes().all(|digit| digit.is_ascii_alphanumeric());
    let character = char::from_u32(u32::from_str_radix(digits, radix).ok()?)?;
    let is_of_xml = matches!(character, '\t' | '\n' | '\r' | ' '..='\u{fffd}' | '\u{10000}'..);
    (is_digits && is_of_xml).then_some(character)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The texts of all `b` below `a`.
    fn texts(document: &str) -> S3Result<Vec<String>> {
        read(document.as_bytes(), "a", |xml| {
            let mut texts = Vec::new();
            xml.children(|xml, name| match name {
                "b" => {
                    texts.push(xml.text()?);
                    Ok(())
                }
                _ => Err(malformed()),
            })?;
            Ok(texts)
        })
    }

    #[test]
    fn all_of_a_text_is_read() {
        for (document, text) in [
            ("<a><b>x</b></a>", "x"),
            ("<a><b/></a>", ""),
            ("<a><b></b></a>", ""),
            ("<a><b> x </b></a>", " x "),
            ("<a><b>&lt;&gt;&amp;&apos;&quot;</b></a>", "<>&'\""),
            (
                "<a><b>&#65;&#x42;&#13;&#x1f600;&#128512;&#x10ffff;</b></a>",
                "AB\r\u{1f600}\u{1f600}\u{10ffff}",
            ),
            ("<a><b>x<![CDATA[<&y]]>z</b></a>", "x<&yz"),
            ("<a><b>x<!-- c -->y<?pi?>z</b></a>", "xyz"),
            ("\u{feff}<?xml version=\"1.0\"?>\n<!-- c --><a>\r\n <b>x</b>\t</a>\n<!-- c -->", "x"),
            ("<n:a xmlns:n=\"urn:x\"><n:b>x</n:b></n:a>", "x"),
            ("<a xmlns=\"urn:x\"><b c=\"d\">x</b></a>", "x"),
        ] {
            assert_eq!(texts(document).unwrap(), [text], "{document}");
        }
        assert!(texts("<a/>").unwrap().is_empty());
        assert!(texts("<a></a>").unwrap().is_empty());
    }

    #[test]
    fn nothing_is_passed_over() {
        for document in [
            " ",
            "x",
            "<a>",
            "<a><b>x</b>",
            "<a><b>x</a></b>",
            "<a><b>x</b></a><a/>",
            "<a><b>x</b></a>x",
            "x<a/>",
            "<a/></a>",
            "<c/>",
            "<a><B>x</B></a>",
            "<a><b>x</b><c/></a>",
            "<a>x<b>x</b></a>",
            "<a><b>x</b>&amp;</a>",
            "<a><![CDATA[x]]><b>x</b></a>",
            "<a><b>x<c/></b></a>",
            "<a><b>&unknown;</b></a>",
            "<a><b>&#0;</b></a>",
            "<a><b>&#x1;</b></a>",
            "<a><b>&#xfffe;</b></a>",
            "<a><b>&#xd800;</b></a>",
            "<a><b>&#x110000;</b></a>",
            "<a><b>&#+65;</b></a>",
            "<a><b>&#;</b></a>",
            "<a><b>&</b></a>",
            "<!DOCTYPE a [<!ENTITY x \"y\">]><a><b>&x;</b></a>",
            "<!DOCTYPE a><a><b>x</b></a>",
        ] {
            let refused = texts(document).expect_err(document);
            assert_eq!(refused.code(), &S3ErrorCode::MalformedXML, "{document}");
        }
        assert_eq!(texts("").unwrap_err().code(), &S3ErrorCode::MissingRequestBodyError);
    }

    #[test]
    fn white_space_around_a_value_is_not_part_of_it() {
        let number = |text: &str| {
            read(format!("<a>{text}</a>").as_bytes(), "a", |xml| xml.number::<i32>()).ok()
        };
        assert_eq!((number("\n 7 "), number("-7"), number("007")), (Some(7), Some(-7), Some(7)));
        for none in ["", "7x", "7 8", "0x7", "99999999999"] {
            assert_eq!(number(none), None, "{none}");
        }
        let tag = |text: &str| read(format!("<a>{text}</a>").as_bytes(), "a", Xml::etag).unwrap();
        for text in ["ab", "\"ab\"", " \"ab\"\n", "W/\"ab\"", "&quot;ab&quot;"] {
            assert_eq!(tag(text), "ab", "{text}");
        }
        let boolean =
            |text: &str| read(format!("<a>{text}</a>").as_bytes(), "a", Xml::boolean).ok();
        assert_eq!(
            (boolean(" true "), boolean("FALSE"), boolean("1")),
            (Some(true), Some(false), None)
        );
    }

    #[test]
    fn what_is_said_once_is_not_said_twice() {
        let mut slot = None;
        assert!(once(&mut slot, 1).is_ok());
        assert!(once(&mut slot, 1).is_err());
    }

    proptest! {
        #[test]
        fn no_document_ends_the_process(document in "(<a>|</a>|<b>|</b>|<b/>|&|#|x|;|<!|\\[CDATA\\[|\\]\\]>|--|<\\?|ä|\u{1F9CA}| ){0,16}") {
            let _ = texts(&document);
        }
    }
}
