//! The way in: signatures and keys, and the gate that a verified signature opens. Nothing here knows of operations.
//!
//! The protocol library verifies signatures of version 4. Before it, these files refuse what it would take and S3 would
//! not.
//!
//! | file | what |
//! |---|---|
//! | `signed.rs` | what is signed, and by which scheme |
//! | `authorization.rs` | the form of a signature of version 4 |
//! | `version_2.rs` | signatures of version 2 |
//! | `root_keys.rs` | the keys that are taken |
//! | `gate.rs` | turn, memory and body, once the signature is verified |

pub(crate) mod authorization;
pub(crate) mod gate;
pub(crate) mod root_keys;
pub(crate) mod signed;
pub(crate) mod version_2;
