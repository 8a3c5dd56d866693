//! PutObject that appends: at an offset, as S3 Express One Zone has it (`x-amz-write-offset-bytes`), or as a record
//! wherever the object ends (`x-larder-append: record`), which is answered where that was (`x-larder-offset`).
//!
//! # Invariants
//!
//! 1. An object keeps its checksum while it is a CRC of all its bytes: what is appended is digested in that algorithm
//!    too, whatever the client sends. A SHA or a composite one ends with the first append.
//! 2. What can be refused without the body is refused before it is read; the store decides.

use http::{HeaderMap, HeaderValue};
use larder_objects::{AppendAt, AppendDone, AppendOptions, ObjectError, Objects, Opened};
use larder_types::limits::{PIECES_UNCOALESCED_MAX, RECORD_BYTES_MAX};
use larder_types::{Attributes, BucketName, ObjectChecksum, ObjectKey};
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::gateway::Gateway;
use crate::answer;
use crate::body::pulled::RequestBody;
use crate::errors::{custom, error, not_implemented};
use crate::request::bytes_moved::BytesMoved;
use crate::request::own_headers;

/// The only value of the header that asks for a record append.
const RECORD: &str = "record";

/// An append as a request asks for it.
pub(crate) struct AppendRequest {
    pub(crate) bucket: BucketName,
    pub(crate) key: ObjectKey,
    pub(crate) options: AppendOptions,
    /// True if the client named a checksum algorithm and gets the value back.
    pub(crate) checksum: bool,
}

/// Where a PutObject is to append; `None` if it is to put.
///
/// # Errors
/// `InvalidArgument`, `InvalidRequest`; `NotImplemented` if the store takes no appends.
pub(crate) fn wanted<O: Objects>(
    gateway: &Gateway<O>,
    headers: &HeaderMap,
    offset: Option<i64>,
) -> S3Result<Option<AppendAt>> {
    let at = match (headers.get(own_headers::RECORD), offset) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            return Err(error(
                S3ErrorCode::InvalidRequest,
                "x-larder-append and x-amz-write-offset-bytes exclude each other: the first appends wherever the \
                 object ends, the second at the offset given",
            ));
        }
        (Some(value), None) if value == RECORD => AppendAt::End,
        (Some(_), None) => {
            let message = "x-larder-append has one value, record";
            return Err(error(S3ErrorCode::InvalidArgument, message));
        }
        (None, Some(offset)) => AppendAt::Offset(u64::try_from(offset).map_err(|_negative| {
            error(S3ErrorCode::InvalidArgument, "x-amz-write-offset-bytes is a number from 0 on")
        })?),
    };
    if gateway.store.takes_appends() {
        return Ok(Some(at));
    }
    Err(not_implemented(
        "Appending to objects of a packed store (x-amz-write-offset-bytes, x-larder-append)",
    ))
}

/// Appends, and puts into `headers` what came of it.
pub(crate) async fn object<O: Objects>(
    gateway: &Gateway<O>,
    asked: AppendRequest,
    mut body: RequestBody,
    headers: &mut HeaderMap,
) -> S3Result<()> {
    let AppendRequest { bucket, key, options, checksum } = asked;
    let at = options.at;
    let known = match gateway.store.open(&bucket, &key).await {
        Ok(opened) => Ok(Some(opened)),
        Err(ObjectError::NoSuchKey) => Ok(None),
        Err(refused) => Err(refused),
    };
    let ready = known.and_then(|known| {
        // Here it would make a new object.
        if known.as_ref().is_some_and(|opened| opened.remote.is_some()) {
            let reason = "the object is in another region, and on its way here".to_owned();
            return Err(ObjectError::Unavailable { reason });
        }
        refusable(known.as_ref(), at, &options.attributes)?;
        Ok(known)
    });
    let done = match ready {
        Ok(known) => {
            let whole = known.and_then(|opened| opened.metax.checksum);
            if let Some(whole) = whole.filter(can_grow) {
                body = body.stored_as(whole.algorithm);
            }
            gateway.store.append(&bucket, &key, options, &mut body).await
        }
        Err(refused) => Err(refused),
    };
    match done {
        Ok(done) => {
            body.note_moved(BytesMoved::Appended);
            show(headers, &done, at, checksum)
        }
        Err(refused) => Err(explained(at, &refused).unwrap_or_else(|| body.explain(refused))),
    }
}

/// Refuses an append before its body is read, if that shows. It may be otherwise by the time of the
/// append.
fn refusable(
    known: Option<&Opened>,
    at: AppendAt,
    attributes: &Attributes,
) -> Result<(), ObjectError> {
    let AppendAt::Offset(offset) = at else { return Ok(()) };
    let size = known.map_or(0, |opened| opened.metax.size);
    if offset != size {
        return Err(ObjectError::WriteOffset { size });
    }
    if known.is_some() && !(attributes.user.is_empty() && attributes.tags.is_empty()) {
        return Err(ObjectError::AppendAttributes);
    }
    Ok(())
}

/// True if the checksum of all bytes can be known after an append.
fn can_grow(checksum: &ObjectChecksum) -> bool {
    checksum.followed_by(checksum, 0).is_some()
}

fn show(headers: &mut HeaderMap, done: &AppendDone, at: AppendAt, checksum: bool) -> S3Result<()> {
    let object = &done.object;
    answer::set_etag(headers, &object.etag)?;
    headers.insert("x-amz-object-size", HeaderValue::from(object.size));
    if let Some(checksum) = object.checksum.as_ref().filter(|_| checksum) {
        answer::set_checksum(headers, checksum)?;
    }
    if at == AppendAt::End {
        headers.insert(own_headers::OFFSET, HeaderValue::from(done.offset));
    }
    Ok(())
}

/// Errors of appends: the header that is at fault, and what to do.
fn explained(at: AppendAt, refused: &ObjectError) -> Option<S3Error> {
    let header = match at {
        AppendAt::Offset(_) => "x-amz-write-offset-bytes",
        AppendAt::End => own_headers::RECORD,
    };
    let bad = http::StatusCode::BAD_REQUEST;
    Some(match refused {
        ObjectError::WriteOffset { size } => custom(
            "InvalidWriteOffset",
            bad,
            format!(
                "{header} is not the size of the object, which is {size}: read what was appended meanwhile and append \
                 there, or use x-larder-append to append wherever the object ends."
            ),
        ),
        ObjectError::TooManyPieces => custom(
            "TooManyParts",
            bad,
            format!(
                "{header}: the object has as many pieces as it may. Pieces are coalesced behind appends: append later, or go \
                 on in another object, or make it one piece by copying it (CopyObject). While not all servers of a cluster \
                 are of this release an object takes {PIECES_UNCOALESCED_MAX} appends."
            ),
        ),
        ObjectError::AppendAttributes => error(
            S3ErrorCode::InvalidRequest,
            format!(
                "{header}: user metadata and tags (x-amz-meta-*, x-amz-tagging) can be given only where the append \
                 makes the object. Leave them out."
            ),
        ),
        ObjectError::EmptyAppend => {
            error(S3ErrorCode::InvalidRequest, format!("{header}: the body cannot be empty."))
        }
        ObjectError::TooLarge { what: "the record", .. } => error(
            S3ErrorCode::EntityTooLarge,
            format!(
                "{header}: a record has at most {RECORD_BYTES_MAX} bytes. Split it, or append at an offset \
                 (x-amz-write-offset-bytes), which takes 5 GiB."
            ),
        ),
        _ => return None,
    })
}
