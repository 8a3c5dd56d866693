//! Larder's words: ids, METAX, operations and limits, and how they are encoded.
//!
//! Everything here is plain data, but for [`Counter`]. Whatever is stored or sent is encoded by [`codec`], begins with a
//! version byte and has golden bytes in `tests/golden.rs`. This crate does no I/O and knows no role.

#![deny(unsafe_code)]

pub mod append;
pub mod bucket;
pub mod checksum;
pub mod codec;
pub mod condition;
pub mod cors;
pub mod counter;
pub mod crc;
pub mod garbage;
pub mod home;
pub mod ids;
pub mod limits;
pub mod log_limiter;
pub mod metax;
pub mod name;
pub mod op;
pub mod put;
pub mod remote_change;
pub mod rows;
pub mod stamp;
pub mod version;

pub use append::{Append, Appended, Coalesce, PieceRow};
pub use bucket::{
    BucketRecord, BucketState, HomeNotSet, NotAPolicy, NotShared, Sharing, WritePolicy,
};
pub use checksum::BlockSums;
pub use codec::CodecError;
pub use condition::{Condition, EtagList, Unmet};
pub use cors::{CorsError, CorsMethod, CorsRule, CorsRules, NotACorsMethod};
pub use counter::Counter;
pub use garbage::{Garbage, Reaping};
pub use home::{Decider, Home, HomeScope, HomeState, HomeTerm};
pub use ids::{
    BootId, BucketId, ClusterId, DiskId, Epoch, Grant, GrantKey, LvId, MapVersion, OpId, OpSeq,
    PgId, PiecesId, PvId, RegionId, Request, ServerId, SessionId, StreamId, UploadId, View,
};
pub use log_limiter::LogLimiter;
pub use metax::{
    Attributes, Body, ChecksumAlgorithm, ChecksumKind, Chunk, ETag, EncryptionEnvelope, Extent,
    HighWaterRow, Holders, HybridClock, Metax, ObjectChecksum, PartRef, PartRow, Retention,
    SnapshotRow, UploadRow, VersionRow,
};
pub use name::{BucketName, NameError, ObjectKey};
pub use op::{ChunkMove, HoldersChange, Op, Remembered, SessionMemory};
pub use put::{Outcome, Put, Target};
pub use remote_change::{
    Amend, ClockFloor, Freed, FreedTombstone, Grow, JournalHead, JournalRow, Noted, Passed, Purge,
    RemotePut, Renew,
};
pub use rows::VersionSlot;
pub use stamp::{Origin, Stamp};
pub use version::{Amendments, MarkerEntry, ObjectEntry, PieceEntry, Tombstone, VersionEntry};
