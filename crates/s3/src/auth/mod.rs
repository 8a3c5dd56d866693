//! The way in: signatures and keys, and the gate that a verified signature opens. Of operations only `access.rs` knows.
//!
//! `signature.rs` checks a request's signature, and `access.rs` decides what its signer may do: each is the only place
//! that does.
//!
//! | file | what |
//! |---|---|
//! | `access.rs` | who may do what |
//! | `signature.rs` | checks signatures |
//! | `signed.rs` | finds a request's signature, and what it must sign |
//! | `authorization.rs` | the form of a signature of version 4 |
//! | `version_4.rs`, `version_2.rs` | the texts that are signed, and their signatures |
//! | `policy.rs` | the policies of HTML forms |
//! | `other_services.rs` | refuses what is asked of IAM and STS |
//! | `bearer.rs` | tokens of programs that read metrics |
//! | `root_keys.rs` | the keys that are taken |
//! | `gate.rs` | turn, memory and body, once the signature is verified, and their bounds |

pub(crate) mod access;
pub(crate) mod authorization;
pub(crate) mod bearer;
pub(crate) mod gate;
pub(crate) mod other_services;
pub(crate) mod policy;
pub(crate) mod root_keys;
pub(crate) mod signature;
pub(crate) mod signed;
pub(crate) mod version_2;
pub(crate) mod version_4;
