//! The operations, one file for each or for a few that go together. Each takes the store from `face.rs`. Above all others stand
//! `call.rs`, which calls PutObject, GetObject, HeadObject, DeleteObject and ListObjectsV2, and `dispatch.rs`, which is the
//! protocol library's interface and calls the rest.
//!
//! | file | operations |
//! |---|---|
//! | `put.rs`, `append.rs` | PutObject; where it appends |
//! | `get.rs` | GetObject, HeadObject |
//! | `copy.rs` | CopyObject, UploadPartCopy |
//! | `delete.rs` | DeleteObject, DeleteObjects |
//! | `list.rs` | lists of objects |
//! | `upload.rs`, `upload_lists.rs` | multipart uploads, and their lists |
//! | `describe.rs` | GetObjectAttributes |
//! | `tagging.rs` | tags of objects |
//! | `bucket.rs` | buckets themselves |
//! | `bucket_cors.rs` | CORS rules of buckets |
//! | `probes.rs` | settings that nothing here has |

mod append;
mod bucket;
mod bucket_cors;
pub(crate) mod call;
mod copy;
mod delete;
mod describe;
mod dispatch;
#[cfg(test)]
mod drawn;
pub(crate) mod face;
mod get;
mod list;
pub(crate) mod probes;
mod put;
mod tagging;
mod upload;
mod upload_lists;
