//! The calls and messages that data servers are sent.

use larder_identity::Role;
use larder_net::Service;
use larder_protocol::manager::policy::ManagerMessage;
use larder_protocol::scheduler::Report;
use larder_protocol::{DataAnswer, DataRequest};
use larder_types::{Chunk, Extent, Grant, LvId, ServerId};
use serde::{Deserialize, Serialize};

use crate::limits::PROTOCOL_REPORTS;

/// The calls that data servers answer.
#[derive(Debug)]
pub enum DataService {}

impl Service for DataService {
    const ROLE: Role = Role::Data;
    type Request = DataCall;
    type Answer = DataReply;
    type Message = DataMessage;
}

/// A question to a data server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataCall {
    /// Write a put's data, the payload; answered when it is durable.
    Write {
        /// LV.
        lv: LvId,
        /// Grant.
        grant: Grant,
        /// Where, in the order of the data.
        extents: Vec<Extent>,
        /// Bytes.
        len: u32,
    },
    /// Read bytes of what lies at these extents, as they are: the asker has the sums.
    Read {
        /// LV.
        lv: LvId,
        /// Where.
        extents: Vec<Extent>,
        /// First byte, counted through the extents.
        from: u32,
        /// Bytes.
        len: u32,
    },
    /// A PG's primary asks.
    Pg {
        /// LV.
        lv: LvId,
        /// The request.
        request: DataRequest,
    },
    /// By a meta server: whether the copy of this chunk is right, read from the disk where it lies.
    Verify(Box<Chunk>),
    /// The number of requests of clients that are under way.
    Load,
    /// By a primary: have a copy made here, of bytes that other data servers hold. Since
    /// [`PROTOCOL_COPIES`](crate::limits::PROTOCOL_COPIES).
    Copy(Box<CopyOrder>),
    /// By a data server that makes a copy: bytes of a chunk, if they verify here. Since the same version.
    ReadVerified {
        /// The chunk, with its sums.
        chunk: Box<Chunk>,
        /// First byte, at a border of checksums.
        from: u32,
        /// Bytes: whole checksummed pieces.
        len: u32,
    },
    /// Tell the counts of operations on the disk. Since [`PROTOCOL_COUNTS`](crate::limits::PROTOCOL_COUNTS).
    Counts,
    /// Tell the room on the disk. Since [`PROTOCOL_ROOM`](crate::limits::PROTOCOL_ROOM).
    Room,
}

/// A copy that a data server is to make. Its grant is a primary's, as that of any write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyOrder {
    /// The chunk as it lies on the servers that hold it, with its sums.
    pub chunk: Chunk,
    /// Data servers that hold it, in the order in which they are to be asked; the maker may be one.
    pub holders: Vec<ServerId>,
    /// The grant under which the copy is written.
    pub grant: Grant,
    /// Where the copy is to lie, in the order of the data.
    pub extents: Vec<Extent>,
    /// Milliseconds for which the primary waits.
    pub max_wait_ms: u32,
}

/// The outcome of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyEnd {
    /// It is durable.
    Durable,
    /// The disk has no room for it.
    Full,
    /// The disk did not take it: its grant is void, or the disk failed.
    NotWritten,
    /// No holder gave all of its bytes.
    NoHolder,
}

/// A data server's verdict on a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyState {
    /// It verifies.
    Right,
    /// There are other bytes.
    Damaged,
    /// The disk does not give it, or does not know its volume.
    Unreadable,
}

/// A data server's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataReply {
    /// The data is durable.
    Written,
    /// There is no room for it; nothing was written.
    Full,
    /// It was not taken.
    NotWritten,
    /// Payload: the bytes.
    Bytes,
    /// The bytes cannot be read, or nothing was ever written there.
    Unreadable,
    /// To a primary.
    Pg(DataAnswer),
    /// To [`DataCall::Verify`].
    Verified(CopyState),
    /// To [`DataCall::Load`].
    Load(u32),
    /// As [`Self::Bytes`], with what waits at the disk. Since [`PROTOCOL_REPORTS`](crate::limits::PROTOCOL_REPORTS).
    BytesAnd(Report),
    /// As [`Self::Unreadable`], with what waits at the disk. Since the same version.
    UnreadableAnd(Report),
    /// To [`DataCall::Copy`], with the holders whose own copy does not verify.
    Copied(CopyEnd, Vec<ServerId>),
    /// To [`DataCall::Counts`]; payload: a [`CountsStatus`](crate::breakdown::CountsStatus), encoded.
    Counts,
    /// To [`DataCall::Room`]; payload: a [`DiskRoomStatus`](crate::progress::DiskRoomStatus), encoded.
    Room,
}

impl DataReply {
    /// That bytes were read or not, with the report if the asker's version of the protocol has it.
    pub(crate) fn of_read(is_read: bool, version: u8, report: Report) -> Self {
        match (is_read, version >= PROTOCOL_REPORTS) {
            (true, true) => Self::BytesAnd(report),
            (true, false) => Self::Bytes,
            (false, true) => Self::UnreadableAnd(report),
            (false, false) => Self::Unreadable,
        }
    }

    /// Returns true if it carries the requested bytes, in either version.
    pub(crate) fn has_bytes(&self) -> bool {
        matches!(self, Self::Bytes | Self::BytesAnd(_))
    }

    /// The report of the disk's queue in it.
    pub(crate) fn report(&self) -> Option<Report> {
        match self {
            Self::BytesAnd(report) | Self::UnreadableAnd(report) => Some(*report),
            _ => None,
        }
    }
}

/// The messages that data servers are sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataMessage {
    /// By the leading manager.
    Manager(ManagerMessage),
}
