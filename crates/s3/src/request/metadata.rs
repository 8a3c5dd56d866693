//! User metadata (`x-amz-meta-*`): text that a header cannot carry travels as encoded words (RFC 2047).
//!
//! # Invariants
//!
//! 1. What [`encode`] makes of a text [`decode`] reads as that text, unless it begins and ends with spaces, or with what
//!    marks an encoded word.

use std::borrow::Cow;

use base64_simd::STANDARD;

/// The beginning of the headers' names.
pub(crate) const PREFIX: &str = "x-amz-meta-";
/// The beginning and the end of an encoded word.
const BEGIN: &str = "=?";
const END: &str = "?=";
/// The beginning of the words that are written.
const BEGIN_BASE64: &str = "=?UTF-8?B?";
/// Most bytes of text in one word, which has 75 characters at most.
const WORD_BYTES_MAX: usize = (75 - BEGIN_BASE64.len() - END.len()) / 4 * 3;

/// The text of a header's value; `None` if it is marked as encoded and is not.
pub(crate) fn decode(value: &str) -> Option<Cow<'_, str>> {
    let value = value.trim();
    if !value.starts_with(BEGIN) || !value.ends_with(END) {
        return Some(Cow::Borrowed(value));
    }
    let is_word = |word: &&str| word.starts_with(BEGIN) && word.ends_with(END);
    let words: Vec<&str> = value.split_whitespace().filter(is_word).collect();
    let text = match words.as_slice() {
        [_, _, ..] => words.into_iter().map(decode_word).collect::<Option<Vec<_>>>()?.concat(),
        // A word of Q may have spaces, against the rule.
        _ => decode_word(value)?,
    };
    Some(Cow::Owned(text))
}

/// The text of `=?charset?encoding?text?=`. Any charset is read as UTF-8.
fn decode_word(word: &str) -> Option<String> {
    // The mark that opens a word closes none: `=?=` has no inside.
    let inside = word.strip_prefix(BEGIN)?.strip_suffix(END)?;
    let mut parts = inside.splitn(3, '?').skip(1);
    let (encoding, text) = (parts.next()?, parts.next()?);
    let bytes = match encoding {
        "B" | "b" => STANDARD.decode_to_vec(text).ok()?,
        "Q" | "q" => decode_q(text)?,
        _ => return None,
    };
    String::from_utf8(bytes).ok()
}

fn decode_q(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        bytes.push(match character {
            '=' => {
                let mut digit = || u8::try_from(characters.next()?.to_digit(16)?).ok();
                digit()? << 4 | digit()?
            }
            '_' => b' ',
            plain => u8::try_from(plain).ok().filter(u8::is_ascii)?,
        });
    }
    Some(bytes)
}

/// A text as a header carries it.
pub(crate) fn encode(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return Cow::Borrowed(text);
    }
    let mut value = String::with_capacity(text.len() * 2);
    let mut rest = text;
    while !rest.is_empty() {
        let (word, left) = rest.split_at(rest.floor_char_boundary(WORD_BYTES_MAX));
        if !value.is_empty() {
            value.push(' ');
        }
        value.push_str(BEGIN_BASE64);
        STANDARD.encode_append(word, &mut value);
        value.push_str(END);
        rest = left;
    }
    Cow::Owned(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_beyond_ascii_is_written_as_words() {
        assert_eq!(encode("plain ~ text"), "plain ~ text");
        assert_eq!(encode("ä"), "=?UTF-8?B?w6Q=?=");
        assert_eq!(encode("a\tb"), "=?UTF-8?B?YQli?=");
        let long = encode(&"ä".repeat(23)).into_owned();
        assert_eq!(long.split(' ').count(), 2);
        assert!(long.split(' ').all(|word| word.len() <= 75), "{long}");
    }

    #[test]
    fn words_are_read_as_text() {
        for (value, text) in [
            ("plain", Some("plain")),
            (" spaced ", Some("spaced")),
            ("a =?= b", Some("a =?= b")),
            ("=?UTF-8?B?w6Q=?=", Some("ä")),
            ("=?utf-8?b?w6Q=?= =?x?q?a=C3=A4_b?=", Some("äaä b")),
            ("=?UTF-8?Q?a b?=", Some("a b")),
            ("=?UTF-8?Q?=4?=", None),
            ("=?UTF-8?Q?ä?=", None),
            ("=?UTF-8?B?*?=", None),
            ("=?UTF-8?X?a?=", None),
            ("=?UTF-8?Q?=FF?=", None),
            ("=??=", None),
            ("=?=", None),
            ("=?= =?UTF-8?B?w6Q=?=", None),
        ] {
            assert_eq!(decode(value).as_deref(), text, "{value}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(text in "[ -~äß水\u{1F9CA}\t]{0,200}") {
            let text = text.trim();
            prop_assume!(!(text.starts_with(BEGIN) && text.ends_with(END)));
            let value = encode(text);
            prop_assert_eq!(decode(&value).unwrap(), text);
        }

        #[test]
        fn no_value_ends_the_process(value in "(=\\?|\\?=|=|\\?|B|Q|UTF-8| |ä|[A-Za-z0-9]){0,12}") {
            let _ = decode(&value);
        }
    }
}
