//! A request as S3 means it: each file reads one thing of it, and nothing here asks the store.
//!
//! | file | what |
//! |---|---|
//! | `operation.rs`, `routing.rs` | the operations, and which one it is |
//! | `address.rs` | the spelling of an address, and what it names |
//! | `head.rs` | headers and parameters, as operations read them |
//! | `digests.rs` | digests that are announced |
//! | `xml.rs` | documents |
//! | `metadata.rs` | the text of user metadata |
//! | `ids.rs` | the id that a request gets |
//! | `names.rs` | buckets, keys, versions and owners |
//! | `attributes.rs`, `tags.rs` | what is stored with an object |
//! | `acl.rs` | access lists, which are the owner's alone |
//! | `conditions.rs` | conditions of puts, deletes and reads |
//! | `copy_source.rs` | the source of a copy |
//! | `range.rs` | the part of an object that is asked for |
//! | `encryption.rs` | wishes for encryption, which are refused |
//! | `bytes_moved.rs` | bytes of an object that it moves |
//! | `token.rs` | the place where a list goes on |
//! | `own_headers.rs` | headers that S3 does not have |

pub(crate) mod acl;
pub(crate) mod address;
pub(crate) mod attributes;
pub(crate) mod bytes_moved;
pub(crate) mod conditions;
pub(crate) mod copy_source;
pub(crate) mod digests;
pub(crate) mod encryption;
pub(crate) mod head;
pub(crate) mod ids;
pub(crate) mod metadata;
pub(crate) mod names;
pub(crate) mod operation;
pub(crate) mod own_headers;
pub(crate) mod range;
pub(crate) mod routing;
pub(crate) mod tags;
pub(crate) mod token;
pub(crate) mod xml;
