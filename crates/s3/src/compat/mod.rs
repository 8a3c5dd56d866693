//! Makes up for the protocol library: each file begins with what the library does otherwise than S3.
//!
//! | file | what |
//! |---|---|
//! | `address.rs`, `headers.rs` | put a request into the form that the library reads |
//! | `subresources.rs` | refuses what the library would pass over |
//! | `digested.rs`, `unread_xml.rs` | look at XML that the library reads |
//! | `unread.rs` | takes headers that the library refuses |
//! | `repairs.rs`, `xml.rs` | put answers right |

pub(crate) mod address;
pub(crate) mod digested;
pub(crate) mod headers;
pub(crate) mod repairs;
pub(crate) mod subresources;
pub(crate) mod unread;
pub(crate) mod unread_xml;
pub(crate) mod xml;
