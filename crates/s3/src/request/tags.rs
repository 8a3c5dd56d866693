//! Object tags: their rules, and their form in a header and in XML.

use s3s::{S3Error, S3ErrorCode, S3Result};

use super::xml::{self, Xml, once};
use crate::errors::elements::{self, invalid_argument};
use crate::errors::error;
use crate::limits::{TAG_KEY_CHARS_MAX, TAG_VALUE_CHARS_MAX, TAGS_MAX};
use crate::request::address::has_whole_escapes;

/// Tags whose keys begin so are the store's own, in capitals too.
const SYSTEM: &str = "aws:";

/// Tags as they are stored.
pub(crate) type Tags = Vec<(String, String)>;

/// Reads an `x-amz-tagging` header: `key=value` pairs encoded as in a URL's query.
///
/// # Errors
/// `InvalidArgument` if it is not such a list, and as [`checked`].
pub(crate) fn parse_header(header: &str) -> S3Result<Tags> {
    let malformed = || {
        let message = "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query \
                       parameters without tag name duplicates.";
        invalid_argument(message, "x-amz-tagging", header)
    };
    let decode = |text: &str| match urlencoding::decode(&text.replace('+', " ")) {
        Ok(decoded) if has_whole_escapes(text) => Ok(decoded.into_owned()),
        _ => Err(malformed()),
    };
    let mut tags = Tags::new();
    for pair in header.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = decode(name)?;
        if tags.len() <= TAGS_MAX && tags.iter().any(|(before, _)| *before == name) {
            return Err(malformed());
        }
        tags.push((name, decode(value)?));
    }
    checked(tags)
}

/// True for characters that tags may have (S3): letters, digits and spaces of any language, and some signs.
fn is_of_tags(character: char) -> bool {
    let is_space = character.is_whitespace() && !character.is_control();
    character.is_alphanumeric() || is_space || "+-=._:/@".contains(character)
}

/// Tags in the form that [`parse_header`] reads.
pub(crate) fn header(tags: &Tags) -> String {
    let pair = |(name, value): &(String, String)| {
        format!("{}={}", urlencoding::encode(name), urlencoding::encode(value))
    };
    tags.iter().map(pair).collect::<Vec<_>>().join("&")
}

/// The tags of an XML document.
///
/// # Errors
/// `MalformedXML`, and as [`checked`].
pub(crate) fn of_document(document: &[u8]) -> S3Result<Tags> {
    let mut set = None;
    xml::read(document, "Tagging", |xml| {
        xml.children(|xml, name| match name {
            "TagSet" => once(&mut set, tag_set(xml)?),
            _ => Err(xml::malformed()),
        })
    })?;
    checked(set.ok_or_else(xml::malformed)?)
}

fn tag_set(xml: &mut Xml<'_>) -> S3Result<Tags> {
    let mut tags = Tags::new();
    xml.children(|xml, name| match name {
        "Tag" if tags.len() > TAGS_MAX => Err(too_many()),
        "Tag" => {
            tags.push(tag(xml)?);
            Ok(())
        }
        _ => Err(xml::malformed()),
    })?;
    Ok(tags)
}

fn tag(xml: &mut Xml<'_>) -> S3Result<(String, String)> {
    let (mut name, mut value) = (None, None);
    xml.children(|xml, field| match field {
        "Key" => once(&mut name, xml.text()?),
        "Value" => once(&mut value, xml.text()?),
        _ => Err(xml::malformed()),
    })?;
    name.zip(value).ok_or_else(xml::malformed)
}

fn too_many() -> S3Error {
    error(S3ErrorCode::InvalidTag, "Object tags cannot be greater than 10")
}

/// Tags that keep S3's rules, in the order of their keys.
///
/// # Errors
/// `InvalidTag` if there are too many or one breaks a rule.
pub(crate) fn checked(mut tags: Tags) -> S3Result<Tags> {
    if tags.len() > TAGS_MAX {
        return Err(too_many());
    }
    let refuse = |why, name: &str| {
        let tag = [("TagKey", name.to_owned())];
        Err(elements::with(error(S3ErrorCode::InvalidTag, why), tag))
    };
    for (index, (name, value)) in tags.iter().enumerate() {
        let is_wrong = |text: &str, chars_max| {
            text.chars().count() > chars_max || !text.chars().all(is_of_tags)
        };
        if name.is_empty() || is_wrong(name, TAG_KEY_CHARS_MAX) {
            return refuse("The TagKey you have provided is invalid", name);
        }
        // The store's keeper alone gives tags with these keys (S3).
        if name.get(..SYSTEM.len()).is_some_and(|start| start.eq_ignore_ascii_case(SYSTEM)) {
            return refuse("System tags cannot be added/updated by requester", name);
        }
        if is_wrong(value, TAG_VALUE_CHARS_MAX) {
            return refuse("The TagValue you have provided is invalid", name);
        }
        if tags[..index].iter().any(|(before, _)| before == name) {
            return refuse("Cannot provide multiple Tags with the same key", name);
        }
    }
    tags.sort_unstable();
    Ok(tags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_a_query() {
        let tags = parse_header("a=1&b%40=x+y%2B&c=&d").unwrap();
        let expected = [("a", "1"), ("b@", "x y+"), ("c", ""), ("d", "")];
        assert!(tags.iter().map(|(k, v)| (k.as_str(), v.as_str())).eq(expected));
        assert_eq!(parse_header(&header(&tags)).unwrap(), tags);
        assert!(parse_header("").unwrap().is_empty());
        assert!(parse_header("a=%FF").is_err());
    }

    #[test]
    fn a_document_is_read_whole_or_not_at_all() {
        let read = |set: &str| {
            of_document(format!("<Tagging><TagSet>{set}</TagSet></Tagging>").as_bytes())
                .map_err(|refused| refused.code().clone())
        };
        let tag = |name: &str| format!("<Tag><Key>{name}</Key><Value> v </Value></Tag>");
        assert_eq!(read(&(tag("b") + &tag(" a"))).unwrap()[0], (" a".into(), " v ".into()));
        assert!(read("").unwrap().is_empty());
        let many: String = (0..12).map(|n| tag(&n.to_string())).collect();
        assert_eq!(read(&many), Err(S3ErrorCode::InvalidTag));
        for odd in [
            tag("a") + "<tag/>",
            tag("a") + "x",
            "<Tag><Name>a</Name></Tag>".into(),
            "<Tag><Key>a</Key></Tag>".into(),
            "<Tag><Value>a</Value></Tag>".into(),
        ] {
            assert_eq!(read(&odd), Err(S3ErrorCode::MalformedXML), "{odd}");
        }
        let none = of_document(b"<Tagging/>").unwrap_err();
        assert_eq!(none.code(), &S3ErrorCode::MalformedXML);
    }

    #[test]
    fn rules_are_kept() {
        let tags = |count: usize| (0..count).map(|n| (n.to_string(), String::new())).collect();
        assert!(checked(tags(10)).is_ok());
        assert_eq!(checked(tags(11)).unwrap_err().code(), &S3ErrorCode::InvalidTag);
        let one = |name: &str, value: &str| checked(vec![(name.to_owned(), value.to_owned())]);
        assert!(one(&"é".repeat(128), &"v".repeat(256)).is_ok());
        for refused in [one("", "v"), one(&"k".repeat(129), ""), one("k", &"v".repeat(257))] {
            assert_eq!(refused.unwrap_err().code(), &S3ErrorCode::InvalidTag);
        }
        for system in ["aws:", "aws:a", "AWS:a"] {
            assert_eq!(one(system, "v").unwrap_err().code(), &S3ErrorCode::InvalidTag);
        }
        assert!(one("aws", "aws:").is_ok());
        for text in ["aB9 +-=._:/@", "日本\u{3000}é ½"] {
            assert!(one(text, text).is_ok(), "{text}");
        }
        for text in ["a!", "a#", "a&b", "a<", "a(", "*", "$", "?", "\r", "\t", "😀", "a\u{0}"] {
            assert_eq!(one(text, "").unwrap_err().code(), &S3ErrorCode::InvalidTag, "{text}");
            assert_eq!(one("a", text).unwrap_err().code(), &S3ErrorCode::InvalidTag, "{text}");
        }
        for malformed in ["a=1&a=2", "a=%zz", "a%=1", "a=%4"] {
            let refused = parse_header(malformed).unwrap_err();
            assert_eq!(refused.code(), &S3ErrorCode::InvalidArgument, "{malformed}");
        }
    }
}
