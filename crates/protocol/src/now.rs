//! The time of an event, by two clocks: a machine measures by one and dates by the other.

/// The time of an event, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventTime {
    /// By a clock that nobody sets and that counts suspension: for ages and pauses. It means nothing to another machine,
    /// nor after a restart of this one.
    pub steady_ms: u64,
    /// Since 1970, by a clock that may be set forward and back: for the dates of versions, and for nothing else.
    pub wall_ms: u64,
}
