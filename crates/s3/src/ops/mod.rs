//! The operations, one file for each or for a few that go together. `dispatch.rs` is the protocol library's interface:
//! it stands above all others, and each takes the store from `face.rs`.
//!
//! | file | operations |
//! |---|---|
//! | `put.rs`, `append.rs`, `posted.rs` | PutObject; where it appends; where a form asks for it |
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
mod copy;
mod delete;
mod describe;
mod dispatch;
pub(crate) mod face;
mod get;
mod list;
pub(crate) mod probes;
mod put;
mod tagging;
mod upload;
mod upload_lists;
