//! The file of a recovery: `docs/formats/quorum.md` gives it byte by byte.

use std::collections::BTreeSet;

use larder_protocol::manager::state::Topology;
use larder_types::ServerId;
use larder_types::codec::{CodecError, decode, encode};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"LARDRREC";
const HEAD_BYTES: usize = 16;

/// All that managers are made anew from. As secret as the authority's key, which is in it.
#[derive(Clone, PartialEq, Eq)]
pub struct Recovery {
    /// The map from which they go on.
    pub map: Topology,
    /// Those who vote.
    pub voters: BTreeSet<ServerId>,
    /// The text of the new authority's file.
    pub authority: String,
}

impl std::fmt::Debug for Recovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recovery")
            .field("version", &self.map.version)
            .field("voters", &self.voters)
            .finish_non_exhaustive()
    }
}

/// The reason why a file is no recovery.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadRecovery {
    /// It is another kind of file, or damaged.
    #[error("it is no recovery of `larder recover make`, or it is damaged")]
    Damaged,
    /// As it says.
    #[error(transparent)]
    Value(#[from] CodecError),
}

impl Recovery {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let value = encode(&(&self.voters, &self.authority, self.map.encode()));
        let mut bytes = MAGIC.to_vec();
        bytes.extend(xxh3_64(&value).to_le_bytes());
        bytes.extend(value);
        bytes
    }

    /// Reads what [`Recovery::encode`] wrote.
    ///
    /// # Errors
    /// [`BadRecovery`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BadRecovery> {
        let (head, value) = bytes.split_at_checked(HEAD_BYTES).ok_or(BadRecovery::Damaged)?;
        if head[..8] != MAGIC || head[8..] != xxh3_64(value).to_le_bytes() {
            return Err(BadRecovery::Damaged);
        }
        let (voters, authority, map): (_, _, Vec<u8>) = decode("a recovery", value)?;
        Ok(Self { map: Topology::decode(&map)?, voters, authority })
    }
}
