//! The managers: a quorum that owns the topology map.

pub mod quorum;
pub mod state;
