//! A worker's place in the backend: who owns it, and which blobs of it count.
//!
//! | file | it has |
//! |---|---|
//! | `name.rs`, `announce.rs`, `naming.rs` | workers that share a bucket: their names and places, and what each tells of itself |
//! | `identity.rs` | the claim by which a directory is the owner |
//! | `numbering.rs` | the number by which one of several processes on copies of a directory is |
//! | `counting.rs` | which blobs of all processes count |
//! | `takeover_fence.rs` | what an heir has from the workers before it |
//! | `marker.rs` | what keeps earlier builds away |
//! | `ownership.rs` | what the process knows of all that while it runs: the fence before every answer, upload and removal |

pub(crate) mod announce;
pub(crate) mod counting;
pub(crate) mod identity;
pub(crate) mod marker;
pub(crate) mod name;
pub(crate) mod naming;
pub(crate) mod numbering;
pub(crate) mod ownership;
pub(crate) mod takeover_fence;
