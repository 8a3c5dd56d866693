//! Characters that XML cannot carry as they are, escaped in finished answers.
//!
//! The protocol library writes keys as they come. A parser reads a raw carriage return as a line feed, so that the key
//! it finds is another one. Other control characters, U+FFFE and U+FFFF are no characters of XML 1.0 at all. S3 writes
//! all of them as numeric references, and so does this. Strict parsers still refuse references to the latter: a client
//! that has such keys lists with `encoding-type=url`.

use std::fmt::Write;

use s3s::Body;

/// Bytes that are looked at together: the loop over them has no branch.
const BLOCK_BYTES: usize = 64;

/// Escapes the text of an XML answer. One that needs nothing is left as it is.
pub(crate) fn escape(body: &mut Body) {
    let Some(bytes) = body.bytes().filter(|bytes| is_suspicious(bytes)) else { return };
    if let Ok(text) = std::str::from_utf8(&bytes)
        && text.chars().any(must_be_escaped)
    {
        *body = Body::from(escaped(text));
    }
}

/// Writes a text between two tags.
pub(crate) fn push_escaped(xml: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '<' => xml.push_str("&lt;"),
            '>' => xml.push_str("&gt;"),
            '&' => xml.push_str("&amp;"),
            '"' => xml.push_str("&quot;"),
            other => xml.push(other),
        }
    }
}

/// Tells if there may be something to escape. U+FFFE and U+FFFF begin with 0xEF, as other characters do.
fn is_suspicious(bytes: &[u8]) -> bool {
    let byte = |byte: u8| (byte < 0x20) & (byte != b'\t') & (byte != b'\n') | (byte == 0xef);
    bytes.chunks(BLOCK_BYTES).any(|block| block.iter().fold(false, |any, it| any | byte(*it)))
}

fn must_be_escaped(character: char) -> bool {
    matches!(character, '\0'..='\u{8}' | '\u{b}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}')
}

fn escaped(text: &str) -> String {
    let mut xml = String::with_capacity(text.len() + BLOCK_BYTES);
    for character in text.chars() {
        match character {
            '\r' => xml.push_str("&#13;"),
            odd if must_be_escaped(odd) => {
                let _ = write!(xml, "&#x{:x};", u32::from(odd));
            }
            other => xml.push(other),
        }
    }
    xml
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> String {
        let mut body = Body::from(text.to_owned());
        escape(&mut body);
        String::from_utf8(body.bytes().unwrap().to_vec()).unwrap()
    }

    #[test]
    fn what_xml_cannot_carry_becomes_a_reference() {
        assert_eq!(of("a\rb\0\u{1f}\u{fffe}c\u{ffff}"), "a&#13;b&#x0;&#x1f;&#xfffe;c&#xffff;");
        for at in [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, 1000] {
            let text = "x".repeat(at);
            assert_eq!(of(&format!("{text}\r")), format!("{text}&#13;"), "{at}");
        }
    }

    #[test]
    fn what_xml_carries_stays() {
        let all =
            "<a>\t\n&amp; ~\u{7f}\u{80}\u{85}\u{2028}\u{d7ff}\u{e000}\u{ff01}\u{fffd}\u{10ffff}";
        assert_eq!(of(all), all);
        assert_eq!(of(""), "");
    }
}
