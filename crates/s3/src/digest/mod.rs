//! Digests of bodies: the algorithms, what a client announces, and what is computed. Nothing here reads a body.
//!
//! | file | what |
//! |---|---|
//! | `checksums.rs` | the checksums that stored objects know |
//! | `verified.rs` | those that are verified and not stored |
//! | `announced.rs` | the one that a client announces, of either kind |
//! | `digests.rs` | all digests of one body |
//! | `lanes.rs` | MD5 of many bodies at once |

pub(crate) mod announced;
pub(crate) mod checksums;
pub(crate) mod digests;
mod lanes;
pub(crate) mod verified;
