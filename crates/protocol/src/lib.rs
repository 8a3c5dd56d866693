//! Larder's protocol: pure state machines. No I/O, no clock, no threads, no randomness, no hash-order
//! iteration; events in, effects out. Drivers do the work, the simulator drives the same machines.
//!
//! The one port is [`Index`]: the machine reads the embedded KV while it steps, because those reads
//! are local, repeatable and change nothing (ADR 3).

#![deny(unsafe_code)]

pub mod background;
pub mod clock_offsets;
mod coalesce;
pub mod comparisons;
pub mod copy_pacing;
pub mod digest;
mod high_water;
pub mod index;
pub mod ledger;
pub mod limits;
mod lv;
pub mod manager;
pub mod message;
mod now;
pub mod pg;
pub mod placement;
pub mod planted;
pub mod rebuild;
pub mod region;
mod row;
pub mod scheduler;
pub mod scrub;
pub mod sessions;
pub mod space;
pub mod validation;

pub use index::{Changes, Index, IndexError, RowSpan};
pub use lv::{LvInfo, Replica};
pub use message::{
    Answer, AppendCall, AppendDone, AppendRefusal, Call, CoalesceCall, CoalescePlan,
    CoalesceRequest, Content, DataAnswer, DataRequest, Description, Effect, Event, LogEntry,
    Outbox, PeerMessage, PutCall, Refusal, Token,
};
pub use now::EventTime;
pub use pg::Pg;
pub use planted::Planted;
pub use space::{Floor, FreeRuns, SpaceUse, VolumeGroup};
