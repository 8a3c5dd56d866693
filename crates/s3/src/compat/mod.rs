//! Makes up for the protocol library: each file begins with what the library does otherwise than S3.
//!
//! | file | what |
//! |---|---|
//! | `headers.rs` | puts a request into the form that the library reads |
//! | `digested.rs`, `unread_xml.rs` | look at XML that the library reads |
//! | `unread.rs` | takes headers that the library refuses |
//! | `repairs.rs` | puts answers right |

pub(crate) mod digested;
pub(crate) mod headers;
pub(crate) mod repairs;
pub(crate) mod unread;
pub(crate) mod unread_xml;
