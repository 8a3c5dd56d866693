//! The managers: a quorum that owns the topology map.

#[cfg(test)]
mod chance;
pub mod policy;
pub mod quorum;
pub mod state;
