//! Reading what maps are made of: a server's `cluster-map`, or a manager's `quorum/log`.

use larder_protocol::manager::state::Topology;

use super::make::Source;
use crate::manager::quorum::map_in_log;
use crate::managers::{BadMap, StoredMap};

/// The reason why a file has no map.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoSource {
    /// As it says.
    #[error(transparent)]
    Map(#[from] BadMap),
    /// Leave it out: what servers keep is enough.
    #[error("it is a manager's log that cannot be read: leave it out")]
    Log,
}

/// Reads a map from such a file.
///
/// # Errors
/// [`NoSource`], by what to do.
pub fn read(name: String, bytes: &[u8]) -> Result<Source, NoSource> {
    let (server, map, is_log) = match StoredMap::decode(bytes) {
        Ok(StoredMap { server, map }) => (server, map, false),
        Err(BadMap::Damaged) => match map_in_log(bytes) {
            Some(Ok((server, map))) => (server, map, true),
            Some(Err(())) => return Err(NoSource::Log),
            None => return Err(BadMap::Damaged.into()),
        },
        Err(error) => return Err(error.into()),
    };
    if map == Topology::default() {
        return Err(NoSource::Log);
    }
    Ok(Source { name, server, is_log, map })
}
