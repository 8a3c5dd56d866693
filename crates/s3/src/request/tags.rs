//! Object tags: their rules, and their form in a header and in XML.

use s3s::dto::{Tag, Tagging};
use s3s::{S3ErrorCode, S3Result};

use crate::errors::error;
use crate::limits::{TAG_KEY_CHARS_MAX, TAG_VALUE_CHARS_MAX, TAGS_MAX};

/// Tags as they are stored.
pub(crate) type Tags = Vec<(String, String)>;

/// Reads an `x-amz-tagging` header: `key=value` pairs encoded as in a URL's query.
///
/// # Errors
/// `InvalidArgument` if it is not such a list, and as [`checked`].
pub(crate) fn parse_header(header: &str) -> S3Result<Tags> {
    let malformed = || {
        error(
            S3ErrorCode::InvalidArgument,
            "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query \
             parameters without tag name duplicates.",
        )
    };
    let decode = |text: &str| match urlencoding::decode(&text.replace('+', " ")) {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(malformed()),
    };
    let mut tags = Tags::new();
    for pair in header.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        tags.push((decode(name)?, decode(value)?));
    }
    checked(tags)
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
/// As [`checked`].
pub(crate) fn of_xml(tagging: Tagging) -> S3Result<Tags> {
    let tag = |tag: Tag| (tag.key.unwrap_or_default(), tag.value.unwrap_or_default());
    checked(tagging.tag_set.into_iter().map(tag).collect())
}

/// Tags that keep S3's rules, in the order of their keys.
///
/// # Errors
/// `InvalidTag` if there are too many or one breaks a rule.
pub(crate) fn checked(mut tags: Tags) -> S3Result<Tags> {
    if tags.len() > TAGS_MAX {
        return Err(error(S3ErrorCode::InvalidTag, "Object tags cannot be greater than 10"));
    }
    let refuse = |why| Err(error(S3ErrorCode::InvalidTag, why));
    for (index, (name, value)) in tags.iter().enumerate() {
        if name.is_empty() || name.chars().count() > TAG_KEY_CHARS_MAX {
            return refuse("The TagKey you have provided is invalid");
        }
        if value.chars().count() > TAG_VALUE_CHARS_MAX {
            return refuse("The TagValue you have provided is invalid");
        }
        if tags[..index].iter().any(|(before, _)| before == name) {
            return refuse("Cannot provide multiple Tags with the same key");
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
        let tags = parse_header("a=1&b%26=x+y%2B&c=&d").unwrap();
        let expected = [("a", "1"), ("b&", "x y+"), ("c", ""), ("d", "")];
        assert!(tags.iter().map(|(k, v)| (k.as_str(), v.as_str())).eq(expected));
        assert_eq!(parse_header(&header(&tags)).unwrap(), tags);
        assert!(parse_header("").unwrap().is_empty());
        assert!(parse_header("a=%FF").is_err());
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
        assert!(parse_header("a=1&a=2").is_err());
    }
}
