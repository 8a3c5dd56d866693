//! Object tags: their rules, their header form, and the operations on them.

use larder_objects::Objects;
use s3s::dto::{
    DeleteObjectTaggingInput, DeleteObjectTaggingOutput, GetObjectTaggingInput,
    GetObjectTaggingOutput, PutObjectTaggingInput, PutObjectTaggingOutput, Tag, Tagging,
};
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result};

use crate::errors::{error, from_store};
use crate::face::Face;
use crate::limits::{TAG_KEY_CHARS_MAX, TAG_VALUE_CHARS_MAX, TAGS_MAX};
use crate::names::{key, null_version};

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

pub(crate) async fn get<O: Objects>(
    face: &Face<O>,
    request: S3Request<GetObjectTaggingInput>,
) -> S3Result<S3Response<GetObjectTaggingOutput>> {
    let input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    null_version(input.version_id.as_deref())?;
    let opened = face.store.open(&bucket, &key(input.key)?).await.map_err(from_store)?;
    let tag = |(name, value)| Tag { key: Some(name), value: Some(value) };
    let tag_set = opened.metax.attributes.tags.into_iter().map(tag).collect();
    Ok(S3Response::new(GetObjectTaggingOutput { tag_set, version_id: None }))
}

pub(crate) async fn put<O: Objects>(
    face: &Face<O>,
    request: S3Request<PutObjectTaggingInput>,
) -> S3Result<S3Response<PutObjectTaggingOutput>> {
    let input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    null_version(input.version_id.as_deref())?;
    let tags = of_xml(input.tagging)?;
    face.store.set_tags(&bucket, &key(input.key)?, tags).await.map_err(from_store)?;
    Ok(S3Response::new(PutObjectTaggingOutput::default()))
}

pub(crate) async fn delete<O: Objects>(
    face: &Face<O>,
    request: S3Request<DeleteObjectTaggingInput>,
) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
    let input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    null_version(input.version_id.as_deref())?;
    face.store.set_tags(&bucket, &key(input.key)?, Tags::new()).await.map_err(from_store)?;
    Ok(S3Response::new(DeleteObjectTaggingOutput::default()))
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
