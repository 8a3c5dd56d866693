//! Regions: several sites that each take writes and come to have the same versions (ADR 42).
//!
//! ```text
//!   another region                          this region
//!  journal of a PG ──ids since the token──▶ pull ──▶ what is not here ──▶ fetch ──▶ merge, in the key's PG
//!        ▲                                    │                                          │ durable
//!        └───────── token, void or not ◀──────┴── token moves ◀──────────────────────────┘
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`entry`] | entries, which regions exchange: a key's null register and its versions |
//! | [`merge`] | the join of two entries of one name |
//! | [`journal`] | outcomes of a PG since a token |
//! | [`pull`] | pulls entries that are not here from other regions |
//! | [`compare`] | the full comparison, where a token is void |
//! | [`listing`] | lists keys of all regions |
//! | [`key_rows`] | entries as rows of a store's index |
//! | [`deletion`] | deletes a bucket in all regions |
//! | [`home`] | makes one region the home of a bucket |
//!
//! Calls that apply other regions' changes to a PG stand with its other calls: [`RemoteChange`].
//!
//! # Invariants
//!
//! 1. Regions that have the same changes have the same entries, in whatever order and how often they came. An entry is
//!    a join ([`merge::join`]), the same one for journals and comparisons.
//! 2. A region's number stands for one life of its data. One that lost its data comes back under another number, so no
//!    stamp and no origin is ever given twice.
//! 3. A token moves only over changes that are durable here. So a change whose origin a token has passed was here: if
//!    it is gone it was purged, and is not taken again.

pub mod compare;
pub mod deletion;
pub mod entry;
pub mod home;
pub mod journal;
pub mod key_rows;
pub mod listing;
pub mod merge;
pub mod pull;

pub use crate::message::remote_change::{self, RemoteAppend, RemoteChange, RemotePutCall};
pub use compare::{Listed, Range, Sum, Summed};
pub use entry::{Base, Entry, EntryKind, Id, Name, Need, Object, Piece, Slot};
pub use journal::{Token, Void};
pub use key_rows::KeyRows;
pub use merge::{Contradiction, LocalPart, join};
pub use pull::Pull;
