//! The state of a whole cluster by the managers' map, for probes, metrics and `larder status`.

pub(crate) mod quorum;
pub(crate) mod volumes;
