//! Lists of objects: ListObjects, ListObjectsV2 and ListObjectVersions.

use http::{HeaderMap, HeaderName, HeaderValue, Response};
use larder_objects::{ListItem, ListPage, ListRequest, ListedObject, Objects};
use larder_types::limits::LIST_PAGE_MAX;
use larder_types::{BucketName, Metax};
use s3s::dto::{
    ChecksumAlgorithm, ChecksumType, CommonPrefix, ETag, EncodingType, ListObjectVersionsInput,
    ListObjectVersionsOutput, ListObjectsInput, ListObjectsOutput, ListObjectsV2Input,
    ListObjectsV2Output, Object, ObjectVersion, OptionalObjectAttributes,
};
use s3s::{Body, S3ErrorCode, S3Request, S3Response, S3Result};

use super::face::{Face, Request};
use super::get::last_modified;
use crate::answer;
use crate::digest::checksums::{kind_name, name};
use crate::errors::{error, from_store};
use crate::request::attributes::class;
use crate::request::head::{Parameters, lines};
use crate::request::names::{check_owner, owner};
use crate::request::own_headers::LIST_REGIONS;
use crate::request::token;

/// The encoding of text in a list: as it is, or percent-encoded if the client asked for that because XML
/// cannot carry every character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Encoding(bool);

impl Encoding {
    /// # Errors
    /// `InvalidArgument` for an encoding that does not exist.
    pub(crate) fn parse(asked: Option<&EncodingType>) -> S3Result<Self> {
        match asked.map(EncodingType::as_str) {
            None => Ok(Self(false)),
            Some(EncodingType::URL) => Ok(Self(true)),
            Some(_) => Err(error(
                S3ErrorCode::InvalidArgument,
                "Invalid Encoding Method specified in Request",
            )),
        }
    }

    pub(crate) fn show(self, text: &str) -> String {
        if !self.0 {
            return text.to_owned();
        }
        let segments: Vec<_> = text.split('/').map(urlencoding::encode).collect();
        segments.join("/")
    }

    pub(crate) fn name(self) -> Option<EncodingType> {
        self.0.then(|| EncodingType::from_static(EncodingType::URL))
    }
}

/// The page size that a client gets.
///
/// # Errors
/// `InvalidArgument` if it asks for less than nothing.
pub(crate) fn page_size(asked: Option<i32>) -> S3Result<usize> {
    match asked {
        None => Ok(LIST_PAGE_MAX),
        Some(asked) => usize::try_from(asked).map(|asked| asked.min(LIST_PAGE_MAX)).map_err(|_| {
            error(
                S3ErrorCode::InvalidArgument,
                "Argument maxKeys must be an integer between 0 and 2147483647",
            )
        }),
    }
}

/// A page, split as S3 shows it.
pub(crate) struct Split<T> {
    pub(crate) entries: Vec<T>,
    pub(crate) groups: Vec<String>,
    pub(crate) last: Option<String>,
    pub(crate) truncated: bool,
}

impl<T> Split<T> {
    pub(crate) fn of(page: ListPage<T>, key: impl Fn(&T) -> &str) -> Self {
        let truncated = page.truncated;
        let last = page.items.last().map(|item| match item {
            ListItem::Entry(entry) => key(entry).to_owned(),
            ListItem::Group(group) => group.clone(),
        });
        let (mut entries, mut groups) = (Vec::with_capacity(page.items.len()), Vec::new());
        for item in page.items {
            match item {
                ListItem::Entry(entry) => entries.push(entry),
                ListItem::Group(group) => groups.push(group),
            }
        }
        assert!(!truncated || last.is_some(), "a page that is cut has a last item");
        Self { entries, groups, last, truncated }
    }

    pub(crate) fn prefixes(&self, encoding: Encoding) -> Option<Vec<CommonPrefix>> {
        let show = |group: &String| CommonPrefix { prefix: Some(encoding.show(group)) };
        (!self.groups.is_empty()).then(|| self.groups.iter().map(show).collect())
    }

    /// Where the next page begins, if there is one.
    pub(crate) fn next(&self) -> Option<&str> {
        if self.truncated { self.last.as_deref() } else { None }
    }
}

/// The regions whose keys are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// This one.
    Here,
    /// All.
    AllRegions,
}

impl Scope {
    /// # Errors
    /// `InvalidArgument` for another value than `all`.
    fn of(headers: &HeaderMap) -> S3Result<Self> {
        match headers.get(LIST_REGIONS).map(HeaderValue::as_bytes) {
            None => Ok(Self::Here),
            Some(b"all") => Ok(Self::AllRegions),
            Some(_) => {
                let message = format!(
                    "{LIST_REGIONS} has one value, all; without it the keys of this region are listed"
                );
                Err(error(S3ErrorCode::InvalidArgument, message))
            }
        }
    }

    /// The answer: it says which regions are listed, as an earlier release ignores that it is asked for all.
    fn response<T>(self, output: T) -> S3Response<T> {
        let mut response = S3Response::new(output);
        self.show(&mut response.headers);
        response
    }

    fn show(self, headers: &mut HeaderMap) {
        if self == Self::AllRegions {
            let name = HeaderName::from_static(LIST_REGIONS);
            headers.insert(name, HeaderValue::from_static("all"));
        }
    }
}

async fn page<O: Objects>(
    face: &Face<O>,
    bucket: &BucketName,
    request: ListRequest,
    scope: Scope,
) -> S3Result<Split<ListedObject>> {
    if request.max == 0 {
        face.store.bucket(bucket).map_err(from_store)?;
        let nothing = ListPage { items: Vec::new(), truncated: false };
        return Ok(Split::of(nothing, |listed: &ListedObject| listed.key.as_str()));
    }
    let page = match scope {
        Scope::Here => face.store.list(bucket, request).await,
        Scope::AllRegions => face.store.list_all_regions(bucket, request).await,
    };
    let page = page.map_err(from_store)?;
    Ok(Split::of(page, |listed| listed.key.as_str()))
}

/// An empty delimiter or marker is none.
pub(crate) fn given(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

fn algorithms(metax: &Metax) -> Option<Vec<ChecksumAlgorithm>> {
    let checksum = metax.checksum.as_ref()?;
    Some(vec![ChecksumAlgorithm::from_static(name(checksum.algorithm))])
}

fn kind(metax: &Metax) -> Option<ChecksumType> {
    metax.checksum.as_ref().map(|checksum| ChecksumType::from_static(kind_name(checksum.kind)))
}

fn size(metax: &Metax) -> Option<i64> {
    i64::try_from(metax.size).ok()
}

fn show(listed: &ListedObject, encoding: Encoding, with_owner: bool) -> Object {
    Object {
        checksum_algorithm: algorithms(&listed.metax),
        checksum_type: kind(&listed.metax),
        e_tag: Some(ETag::Strong(listed.metax.etag.text())),
        key: Some(encoding.show(listed.key.as_str())),
        last_modified: Some(last_modified(listed.metax.clock)),
        owner: with_owner.then(owner),
        restore_status: None,
        size: size(&listed.metax),
        storage_class: Some(class(&listed.metax.attributes).to_owned().into()),
    }
}

fn show_version(listed: &ListedObject, encoding: Encoding) -> ObjectVersion {
    ObjectVersion {
        checksum_algorithm: algorithms(&listed.metax),
        checksum_type: kind(&listed.metax),
        e_tag: Some(ETag::Strong(listed.metax.etag.text())),
        is_latest: Some(true),
        key: Some(encoding.show(listed.key.as_str())),
        last_modified: Some(last_modified(listed.metax.clock)),
        owner: Some(owner()),
        restore_status: None,
        size: size(&listed.metax),
        storage_class: Some(class(&listed.metax.attributes).to_owned().into()),
        version_id: Some("null".to_owned()),
    }
}

pub(crate) async fn v1<O: Objects>(
    face: &Face<O>,
    request: S3Request<ListObjectsInput>,
) -> S3Result<S3Response<ListObjectsOutput>> {
    let scope = Scope::of(&request.headers)?;
    let input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    let encoding = Encoding::parse(input.encoding_type.as_ref())?;
    refuse_unknown(input.optional_object_attributes.as_deref())?;
    let max = page_size(input.max_keys)?;
    let (prefix, delimiter) = (input.prefix.unwrap_or_default(), given(input.delimiter));
    let asked = ListRequest {
        prefix: prefix.clone(),
        delimiter: delimiter.clone(),
        after: given(input.marker.clone()),
        max,
    };
    let found = page(face, &bucket, asked, scope).await?;
    // Without a delimiter clients go on from the last key they saw (S3).
    let next_marker = found.next().filter(|_| delimiter.is_some()).map(|last| encoding.show(last));
    let contents = found.entries.iter().map(|listed| show(listed, encoding, true)).collect();
    Ok(scope.response(ListObjectsOutput {
        name: Some(input.bucket),
        prefix: Some(encoding.show(&prefix)),
        marker: Some(encoding.show(&input.marker.unwrap_or_default())),
        max_keys: i32::try_from(max).ok(),
        is_truncated: Some(found.truncated),
        contents: Some(contents),
        common_prefixes: found.prefixes(encoding),
        delimiter: delimiter.map(|delimiter| encoding.show(&delimiter)),
        next_marker,
        encoding_type: encoding.name(),
        request_charged: None,
    }))
}

pub(crate) async fn v2<O: Objects>(face: &Face<O>, request: Request) -> S3Result<Response<Body>> {
    let scope = Scope::of(&request.parts.headers)?;
    let input = read_v2(&request.parts.headers, request.parameters())?;
    check_owner(input.expected_bucket_owner.as_deref())?;
    let encoding = Encoding::parse(input.encoding_type.as_ref())?;
    refuse_unknown(input.optional_object_attributes.as_deref())?;
    let max = page_size(input.max_keys)?;
    let (prefix, delimiter) = (input.prefix.unwrap_or_default(), given(input.delimiter));
    let after = match given(input.continuation_token.clone()) {
        Some(token) => Some(token::decode(&token)?),
        None => given(input.start_after.clone()),
    };
    let asked = ListRequest { prefix: prefix.clone(), delimiter: delimiter.clone(), after, max };
    let found = page(face, &request.bucket, asked, scope).await?;
    let with_owner = input.fetch_owner == Some(true);
    let contents = found.entries.iter().map(|listed| show(listed, encoding, with_owner)).collect();
    let mut response = answer::document(&ListObjectsV2Output {
        name: Some(request.bucket.as_str().to_owned()),
        prefix: Some(encoding.show(&prefix)),
        max_keys: i32::try_from(max).ok(),
        key_count: i32::try_from(found.entries.len() + found.groups.len()).ok(),
        continuation_token: input.continuation_token,
        is_truncated: Some(found.truncated),
        next_continuation_token: found.next().map(token::encode),
        contents: Some(contents),
        common_prefixes: found.prefixes(encoding),
        delimiter: delimiter.map(|delimiter| encoding.show(&delimiter)),
        encoding_type: encoding.name(),
        start_after: input.start_after.map(|after| encoding.show(&after)),
        request_charged: None,
    })?;
    scope.show(response.headers_mut());
    Ok(response)
}

/// Reads the parameters and headers of a list.
pub(super) fn read_v2(
    headers: &HeaderMap,
    parameters: Parameters<'_>,
) -> S3Result<ListObjectsV2Input> {
    let mut input = ListObjectsV2Input {
        continuation_token: parameters.one("continuation-token")?,
        delimiter: parameters.one("delimiter")?,
        encoding_type: parameters.one("encoding-type")?.map(Into::into),
        fetch_owner: parameters.read("fetch-owner", |text| text.parse().ok())?,
        max_keys: parameters.number("max-keys")?,
        prefix: parameters.one("prefix")?,
        start_after: parameters.one("start-after")?,
        ..Default::default()
    };
    for line in lines(headers) {
        match line.name() {
            "x-amz-expected-bucket-owner" => input.expected_bucket_owner = line.text()?,
            "x-amz-optional-object-attributes" => {
                input.optional_object_attributes = Some(line.texts()?);
            }
            _ => {}
        }
    }
    Ok(input)
}

pub(crate) async fn versions<O: Objects>(
    face: &Face<O>,
    request: S3Request<ListObjectVersionsInput>,
) -> S3Result<S3Response<ListObjectVersionsOutput>> {
    let scope = Scope::of(&request.headers)?;
    let input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    let encoding = Encoding::parse(input.encoding_type.as_ref())?;
    refuse_unknown(input.optional_object_attributes.as_deref())?;
    let max = page_size(input.max_keys)?;
    let (prefix, delimiter) = (input.prefix.unwrap_or_default(), given(input.delimiter));
    if given(input.version_id_marker.clone()).is_some() && given(input.key_marker.clone()).is_none()
    {
        return Err(error(
            S3ErrorCode::InvalidArgument,
            "A version-id marker cannot be specified without a key marker.",
        ));
    }
    let asked = ListRequest {
        prefix: prefix.clone(),
        delimiter: delimiter.clone(),
        after: given(input.key_marker.clone()),
        max,
    };
    let found = page(face, &bucket, asked, scope).await?;
    let next = found.next();
    let ends_in_group = next.is_some_and(|next| found.groups.iter().any(|group| group == next));
    let versions = found.entries.iter().map(|listed| show_version(listed, encoding)).collect();
    Ok(scope.response(ListObjectVersionsOutput {
        name: Some(input.bucket),
        prefix: Some(encoding.show(&prefix)),
        key_marker: Some(encoding.show(&input.key_marker.unwrap_or_default())),
        version_id_marker: Some(input.version_id_marker.unwrap_or_default()),
        next_key_marker: next.map(|next| encoding.show(next)),
        next_version_id_marker: next.filter(|_| !ends_in_group).map(|_| "null".to_owned()),
        max_keys: i32::try_from(max).ok(),
        is_truncated: Some(found.truncated),
        versions: Some(versions),
        common_prefixes: found.prefixes(encoding),
        delimiter: delimiter.map(|delimiter| encoding.show(&delimiter)),
        delete_markers: None,
        encoding_type: encoding.name(),
        request_charged: None,
    }))
}

/// Objects here are never archived, so that their restore status is always absent; nothing else can
/// be asked for.
fn refuse_unknown(asked: Option<&[OptionalObjectAttributes]>) -> S3Result<()> {
    let known = |asked: &OptionalObjectAttributes| {
        asked.as_str() == OptionalObjectAttributes::RESTORE_STATUS
    };
    if asked.unwrap_or_default().iter().all(known) {
        return Ok(());
    }
    Err(error(S3ErrorCode::InvalidArgument, "Invalid optional object attribute"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_encoding_leaves_slashes() {
        let url = Encoding::parse(Some(&EncodingType::from_static("url"))).unwrap();
        assert_eq!(url.show("foo+1/bär x\u{1}"), "foo%2B1/b%C3%A4r%20x%01");
        assert_eq!(Encoding::parse(None).unwrap().show("a+b"), "a+b");
        assert!(Encoding::parse(Some(&EncodingType::from("xml".to_owned()))).is_err());
    }

    #[test]
    fn page_sizes_are_clamped() {
        assert_eq!(page_size(None).unwrap(), 1000);
        assert_eq!(page_size(Some(0)).unwrap(), 0);
        assert_eq!(page_size(Some(5000)).unwrap(), 1000);
        assert!(page_size(Some(-1)).is_err());
    }

    #[test]
    fn a_cut_page_goes_on_after_its_last_item() {
        let items = vec![ListItem::Entry("a".to_owned()), ListItem::Group("b/".to_owned())];
        let split = Split::of(ListPage { items: items.clone(), truncated: true }, |key| key);
        assert_eq!(split.next(), Some("b/"));
        assert_eq!((split.entries.len(), split.groups.len()), (1, 1));
        assert_eq!(Split::of(ListPage { items, truncated: false }, |key| key).next(), None);
    }
}
