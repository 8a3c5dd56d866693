//! Lists of objects: ListObjects, ListObjectsV2 and ListObjectVersions.

use http::{HeaderMap, HeaderName, HeaderValue, Response};
use larder_objects::{ListItem, ListPage, ListRequest, ListedObject, Objects};
use larder_types::limits::LIST_PAGE_MAX;
use larder_types::{BucketName, Metax};
use s3s::dto::{
    ChecksumAlgorithm, ChecksumType, CommonPrefix, ETag, EncodingType, ListObjectVersionsOutput,
    ListObjectsOutput, ListObjectsV2Output, Object, ObjectVersion, OptionalObjectAttributes,
};
use s3s::xml::Serialize;
use s3s::{Body, S3ErrorCode, S3Result};

use super::gateway::{Gateway, Request};
use super::get::last_modified;
use crate::answer;
use crate::digest::checksums::{kind_name, name};
use crate::errors::elements::{self, invalid_argument};
use crate::errors::{error, from_store};
use crate::request::attributes::class;
use crate::request::head::{Parameters, lines};
use crate::request::names::{EXPECTED_OWNER, check_owner, owner};
use crate::request::own_headers::LIST_REGIONS;
use crate::request::token;

/// The encoding of text in a list: as it is, or percent-encoded if the client asked for that because XML
/// cannot carry every character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Encoding(bool);

impl Encoding {
    /// # Errors
    /// `InvalidArgument` for an encoding that does not exist.
    pub(crate) fn of(parameters: Parameters<'_>) -> S3Result<Self> {
        match parameters.one("encoding-type")?.as_deref() {
            None => Ok(Self(false)),
            Some(EncodingType::URL) => Ok(Self(true)),
            Some(other) => {
                let message = "Invalid Encoding Method specified in Request";
                Err(invalid_argument(message, "encoding-type", other))
            }
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
pub(crate) fn page_size(asked: Option<i32>) -> usize {
    let asked = asked.and_then(|asked| usize::try_from(asked).ok());
    asked.map_or(LIST_PAGE_MAX, |asked| asked.min(LIST_PAGE_MAX))
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

    /// Says which regions are listed, as an earlier release ignores that it is asked for all.
    fn show(self, headers: &mut HeaderMap) {
        if self == Self::AllRegions {
            let name = HeaderName::from_static(LIST_REGIONS);
            headers.insert(name, HeaderValue::from_static("all"));
        }
    }
}

/// The demands that all lists of objects share.
struct Wanted {
    scope: Scope,
    encoding: Encoding,
    prefix: String,
    delimiter: Option<String>,
    max: usize,
}

impl Wanted {
    fn of(request: &Request) -> S3Result<Self> {
        let (headers, parameters) = (&request.parts.headers, request.parameters());
        for line in lines(headers) {
            match line.name() {
                EXPECTED_OWNER => check_owner(line.read(Some)?)?,
                "x-amz-optional-object-attributes" => refuse_unknown(&line.texts()?)?,
                _ => {}
            }
        }
        Ok(Self {
            scope: Scope::of(headers)?,
            encoding: Encoding::of(parameters)?,
            prefix: parameters.one("prefix")?.unwrap_or_default(),
            delimiter: given(parameters.one("delimiter")?),
            max: page_size(parameters.count("max-keys")?),
        })
    }

    async fn page<O: Objects>(
        &self,
        gateway: &Gateway<O>,
        bucket: &BucketName,
        after: Option<String>,
    ) -> S3Result<Split<ListedObject>> {
        if self.max == 0 {
            gateway.store.bucket(bucket).map_err(from_store)?;
            let nothing = ListPage { items: Vec::new(), truncated: false };
            return Ok(Split::of(nothing, |listed: &ListedObject| listed.key.as_str()));
        }
        let request = ListRequest {
            prefix: self.prefix.clone(),
            delimiter: self.delimiter.clone(),
            after,
            max: self.max,
        };
        let page = match self.scope {
            Scope::Here => gateway.store.list(bucket, request).await,
            Scope::AllRegions => gateway.store.list_all_regions(bucket, request).await,
        };
        let page = page.map_err(from_store)?;
        Ok(Split::of(page, |listed| listed.key.as_str()))
    }

    fn shown_delimiter(&self) -> Option<String> {
        self.delimiter.as_ref().map(|delimiter| self.encoding.show(delimiter))
    }

    fn answer<T: Serialize>(&self, list: &T, items: usize) -> S3Result<Response<Body>> {
        let mut response = answer::list(list, items)?;
        self.scope.show(response.headers_mut());
        Ok(response)
    }
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
    gateway: &Gateway<O>,
    request: Request,
) -> S3Result<Response<Body>> {
    let wanted = Wanted::of(&request)?;
    let encoding = wanted.encoding;
    refuse_of_other_list(request.parameters(), &OF_V2)?;
    let marker = request.parameters().one("marker")?;
    let found = wanted.page(gateway, &request.bucket, given(marker.clone())).await?;
    // Without a delimiter clients go on from the last key they saw (S3).
    let next = found.next().filter(|_| wanted.delimiter.is_some());
    let contents = found.entries.iter().map(|listed| show(listed, encoding, true)).collect();
    let items = found.entries.len() + found.groups.len();
    let list = ListObjectsOutput {
        name: Some(request.bucket.as_str().to_owned()),
        prefix: Some(encoding.show(&wanted.prefix)),
        marker: Some(encoding.show(&marker.unwrap_or_default())),
        max_keys: i32::try_from(wanted.max).ok(),
        is_truncated: Some(found.truncated),
        contents: Some(contents),
        common_prefixes: found.prefixes(encoding),
        delimiter: wanted.shown_delimiter(),
        next_marker: next.map(|last| encoding.show(last)),
        encoding_type: encoding.name(),
        request_charged: None,
    };
    wanted.answer(&list, items)
}

pub(crate) async fn v2<O: Objects>(
    gateway: &Gateway<O>,
    request: Request,
) -> S3Result<Response<Body>> {
    let wanted = Wanted::of(&request)?;
    let (encoding, parameters) = (wanted.encoding, request.parameters());
    refuse_of_other_list(parameters, &OF_V1)?;
    let continuation_token = parameters.one("continuation-token")?;
    let start_after = parameters.one("start-after")?;
    let with_owner = parameters.read("fetch-owner", |text| text.parse().ok())? == Some(true);
    let after = match given(continuation_token.clone()) {
        Some(token) => Some(token::decode(&token)?),
        None => given(start_after.clone()),
    };
    let found = wanted.page(gateway, &request.bucket, after).await?;
    let contents = found.entries.iter().map(|listed| show(listed, encoding, with_owner)).collect();
    let items = found.entries.len() + found.groups.len();
    let list = ListObjectsV2Output {
        name: Some(request.bucket.as_str().to_owned()),
        prefix: Some(encoding.show(&wanted.prefix)),
        max_keys: i32::try_from(wanted.max).ok(),
        key_count: i32::try_from(items).ok(),
        continuation_token,
        is_truncated: Some(found.truncated),
        next_continuation_token: found.next().map(token::encode),
        contents: Some(contents),
        common_prefixes: found.prefixes(encoding),
        delimiter: wanted.shown_delimiter(),
        encoding_type: encoding.name(),
        start_after: start_after.map(|after| encoding.show(&after)),
        request_charged: None,
    };
    wanted.answer(&list, items)
}

pub(crate) async fn versions<O: Objects>(
    gateway: &Gateway<O>,
    request: Request,
) -> S3Result<Response<Body>> {
    let wanted = Wanted::of(&request)?;
    let (encoding, parameters) = (wanted.encoding, request.parameters());
    let marker = given(parameters.one("key-marker")?);
    let version_marker = given(parameters.one("version-id-marker")?);
    if version_marker.is_some() && marker.is_none() {
        return Err(error(
            S3ErrorCode::InvalidArgument,
            "A version-id marker cannot be specified without a key marker.",
        ));
    }
    if let Some(other) = version_marker.as_deref().filter(|version| *version != "null") {
        return Err(invalid_argument("Invalid version id specified", "version-id-marker", other));
    }
    let found = wanted.page(gateway, &request.bucket, marker.clone()).await?;
    let next = found.next();
    let ends_in_group = next.is_some_and(|next| found.groups.iter().any(|group| group == next));
    let versions = found.entries.iter().map(|listed| show_version(listed, encoding)).collect();
    let items = found.entries.len() + found.groups.len();
    let list = ListObjectVersionsOutput {
        name: Some(request.bucket.as_str().to_owned()),
        prefix: Some(encoding.show(&wanted.prefix)),
        key_marker: Some(encoding.show(&marker.unwrap_or_default())),
        version_id_marker: Some(version_marker.unwrap_or_default()),
        next_key_marker: next.map(|next| encoding.show(next)),
        next_version_id_marker: next.filter(|_| !ends_in_group).map(|_| "null".to_owned()),
        max_keys: i32::try_from(wanted.max).ok(),
        is_truncated: Some(found.truncated),
        versions: Some(versions),
        common_prefixes: found.prefixes(encoding),
        delimiter: wanted.shown_delimiter(),
        delete_markers: None,
        encoding_type: encoding.name(),
        request_charged: None,
    };
    wanted.answer(&list, items)
}

/// Parameters of one kind of list that the other refuses, with the words of S3. Passed over, a client that pages by them would
/// get the first page for ever.
type OfOtherList = [(&'static str, &'static str)];
const OF_V2: [(&str, &str); 2] = [
    ("continuation-token", "continuation-token only supported in REST.GET.BUCKET with list-type=2"),
    ("start-after", "startAfter only supported in REST.GET.BUCKET with list-type=2"),
];
const OF_V1: [(&str, &str); 1] =
    [("marker", "Marker unsupported with REST.GET.BUCKET in list-type=2")];

fn refuse_of_other_list(parameters: Parameters<'_>, of_other: &OfOtherList) -> S3Result<()> {
    let is_there = |wanted: &str| parameters.names().any(|name| name == wanted);
    match of_other.iter().find(|(name, _)| is_there(name)) {
        None => Ok(()),
        Some((name, message)) => {
            let argument = [("ArgumentName", (*name).to_owned())];
            Err(elements::with(error(S3ErrorCode::InvalidArgument, *message), argument))
        }
    }
}

/// Objects here are never archived, so that their restore status is always absent; nothing else can
/// be asked for.
fn refuse_unknown(asked: &[String]) -> S3Result<()> {
    if asked.iter().all(|asked| asked == OptionalObjectAttributes::RESTORE_STATUS) {
        return Ok(());
    }
    Err(error(S3ErrorCode::InvalidArgument, "Invalid optional object attribute"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_encoding_leaves_slashes() {
        let of = |query| Encoding::of(Parameters::of(query));
        let url = of("encoding-type=url").unwrap();
        assert_eq!(url.show("foo+1/bär x\u{1}"), "foo%2B1/b%C3%A4r%20x%01");
        assert_eq!(of("").unwrap().show("a+b"), "a+b");
        assert!(of("encoding-type=xml").is_err());
    }

    #[test]
    fn page_sizes_are_clamped() {
        assert_eq!(page_size(None), 1000);
        assert_eq!(page_size(Some(0)), 0);
        assert_eq!(page_size(Some(5000)), 1000);
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
