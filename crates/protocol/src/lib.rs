//! Larder's protocol: pure state machines. No I/O, no clock, no threads, no randomness, no hash-order
//! iteration; events in, effects out. Drivers do the work, the simulator drives the same machines.
//!
//! The one port is [`Index`]: the machine reads the embedded KV while it steps, because those reads
//! are local, repeatable and change nothing (ADR 3).

#![deny(unsafe_code)]

pub mod append;
pub mod background;
pub mod coalesce;
pub mod comparisons;
pub mod digest;
mod high_water;
pub mod index;
pub mod ledger;
pub mod limits;
pub mod manager;
pub mod message;
mod now;
mod peer;
pub mod pg;
pub mod placement;
pub mod planted;
pub mod rebuild;
mod refusal;
pub mod region;
pub mod scheduler;
pub mod scrub;
pub mod sessions;
pub mod sound;
pub mod space;
pub mod turns;

pub use append::{AppendCall, AppendDone, AppendRefusal};
pub use coalesce::{CoalesceAsk, CoalesceCall, CoalescePlan};
pub use index::{Changes, Index, IndexError, RowSpan};
pub use message::{
    Answer, Call, Content, DataAnswer, DataRequest, Description, Effect, Event, LogEntry, Outbox,
    PeerMessage, PutCall, Refusal, Token,
};
pub use now::Now;
pub use pg::Pg;
pub use planted::Planted;
pub use space::{Floor, FreeRuns, LvInfo, Replica, SpaceUse, VolumeGroup};
