//! A group's space derived from METAX: the free blocks of each LV, or the contradiction that makes them unknown.

use larder_types::{Extent, LvId};

use super::FreeRuns;
use crate::lv::LvInfo;

/// The LVs of a PG, as METAX describes them.
#[derive(Debug)]
pub struct Space {
    /// Each LV with what is free in it.
    pub lvs: Vec<(LvInfo, FreeRuns)>,
    /// True if every committed chunk has a copy on each replica of its LV, and on no other.
    pub is_as_wanted: bool,
}

/// Two claims on one block, or one on a block that does not exist: no space may be given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SpaceFault {
    /// Some block of the extent is claimed by another object, or lies outside the LV.
    #[error("LV {lv}: {} blocks from {} are claimed twice or lie outside", extent.blocks, extent.first)]
    Overlap {
        /// The LV.
        lv: LvId,
        /// The later claim.
        extent: Extent,
    },
    /// A chunk is freed or held otherwise that no row had with such holders.
    #[error("LV {lv}: a chunk changes that was not there")]
    Uncounted {
        /// The LV.
        lv: LvId,
    },
    /// An object lies in an LV that the map does not have.
    #[error("LV {lv} is named by an object and is not in the map")]
    UnknownLv {
        /// The LV.
        lv: LvId,
    },
}
