//! The managers: a quorum that owns the topology map.

pub mod policy;
pub mod quorum;
pub mod state;
