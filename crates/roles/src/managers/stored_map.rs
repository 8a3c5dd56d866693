//! The file `cluster-map`: `docs/formats/quorum.md` gives it byte by byte.

use larder_protocol::manager::state::Topology;
use larder_types::ServerId;
use larder_types::codec::CodecError;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"LARDRMAP";
const VERSION: u32 = 1;
/// Where the map begins.
const HEAD_BYTES: usize = 24;

/// A map, as a server has kept it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMap {
    /// The server.
    pub server: ServerId,
    /// The map, without secrets.
    pub map: Topology,
}

/// The reason why a file is no map.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadMap {
    /// It is another kind of file, or damaged.
    #[error("it is no cluster's map, or it is damaged")]
    Damaged,
    /// Use a newer release.
    #[error("it is of a later release (format version {0}): use that one")]
    Later(u32),
    /// As it says.
    #[error(transparent)]
    Map(CodecError),
    /// The map was not made by managers.
    #[error("its map contradicts itself: {0}")]
    Contradiction(String),
}

impl StoredMap {
    /// The file of a server's map.
    #[must_use]
    pub fn encode(server: ServerId, map: &Topology) -> Vec<u8> {
        let map = map.encode();
        let mut bytes = Vec::with_capacity(HEAD_BYTES + map.len());
        bytes.extend(MAGIC);
        bytes.extend([0; 8]);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(server.0.to_le_bytes());
        bytes.extend(map);
        let sum = xxh3_64(&bytes[16..]);
        bytes[8..16].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads what [`StoredMap::encode`] wrote.
    ///
    /// # Errors
    /// [`BadMap`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BadMap> {
        let (head, map) = bytes.split_at_checked(HEAD_BYTES).ok_or(BadMap::Damaged)?;
        let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|n| head[at + n]));
        if head[..8] != MAGIC || head[8..16] != xxh3_64(&bytes[16..]).to_le_bytes() {
            return Err(BadMap::Damaged);
        }
        if number(16) != VERSION {
            return Err(BadMap::Later(number(16)));
        }
        let map = Topology::decode(map).map_err(|error| match error {
            CodecError::Version { found, .. } => BadMap::Later(u32::from(found)),
            error => BadMap::Map(error),
        })?;
        match map.contradiction() {
            Some(why) => Err(BadMap::Contradiction(why)),
            None => Ok(Self { server: ServerId(number(20)), map }),
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_protocol::manager::quorum::LogIndex;
    use larder_protocol::manager::state::{ClusterId, Command, Settings};

    use super::*;

    #[test]
    fn a_stored_map_has_golden_bytes_and_damage_is_distinguished_from_later_versions() {
        let settings = Settings {
            pg_count: 1,
            members: 1,
            min_members: 1,
            copies: 1,
            min_copies: 1,
            lv_blocks: 4,
        };
        let mut map = Topology::default();
        map.apply(LogIndex(1), Command::Found(ClusterId(300), settings)).unwrap();
        let bytes = StoredMap::encode(ServerId(7), &map);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, include_str!("../../tests/golden/cluster_map.hex").trim_end());
        assert_eq!(StoredMap::decode(&bytes), Ok(StoredMap { server: ServerId(7), map }));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert_eq!(StoredMap::decode(&damaged), Err(BadMap::Damaged), "{at}");
            assert_eq!(StoredMap::decode(&bytes[..at]), Err(BadMap::Damaged), "{at}");
        }
        let later = |at: usize, version| {
            let mut bytes = bytes.clone();
            bytes[at] = version;
            let sum = xxh3_64(&bytes[16..]);
            bytes[8..16].copy_from_slice(&sum.to_le_bytes());
            StoredMap::decode(&bytes)
        };
        assert_eq!(later(16, 2), Err(BadMap::Later(2)));
        assert_eq!(later(24, 200), Err(BadMap::Later(200)), "the map's own version");
    }
}
