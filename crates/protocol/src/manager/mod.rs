//! The managers: a quorum that owns the topology map.

pub mod balance;
#[cfg(test)]
mod chance;
pub mod policy;
pub mod quorum;
pub mod state;
