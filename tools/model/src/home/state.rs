//! The state of the model of a bucket's home.

use larder_protocol::region::home::{HomeAnswer, HomeRequest, Taking};
use larder_types::{Home, HomeState, RegionId};

use crate::ids::Servers;

pub(super) const REGIONS: usize = 3;

pub(super) fn id(region: usize) -> RegionId {
    RegionId(region as u16 + 1)
}

pub(super) fn index(region: RegionId) -> usize {
    usize::from(region.0) - 1
}

/// A region.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Region {
    pub(super) has_bucket: bool,
    pub(super) home: Option<Home>,
    /// Regions that it knows, itself among them.
    pub(super) knows: Servers,
    /// Regions that it knows to be removed.
    pub(super) removed: Servers,
    /// Changes that it has.
    pub(super) has: u8,
    /// Changes that it had when it was asked first since it wrote down its record.
    pub(super) had: Option<u8>,
    /// A change that is being decided by a record that was good when it came.
    pub(super) deciding: bool,
    pub(super) taking: Option<Taking>,
    /// Regions that it asks.
    pub(super) asks: Servers,
    /// The machine wants this record set.
    pub(super) setting: Option<(Option<Home>, Home)>,
    pub(super) waits: bool,
}

impl Region {
    pub(super) fn is_here(&self) -> bool {
        self.home.is_some_and(|home| home.state == HomeState::Here)
    }

    /// True if it decides changes with conditions itself.
    pub(super) fn decides(&self) -> bool {
        self.has_bucket
            && self
                .home
                .is_none_or(|home| matches!(home.state, HomeState::Here | HomeState::Nowhere))
    }

    /// Other regions as it knows them.
    pub(super) fn others(&self, own: usize) -> Servers {
        Servers::first(REGIONS)
            .common(self.knows)
            .without(own)
            .common(Servers::first(REGIONS).minus(self.removed))
    }

    /// Forgets what it was about to do.
    pub(super) fn stop(&mut self) {
        (self.taking, self.setting, self.waits) = (None, None, false);
        self.asks = Servers::NONE;
    }
}

/// Messages from one region to another, about the home that the first is to get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Channel {
    /// A request, and the regions that the asking one knew and were not removed.
    pub(super) asked: Option<(HomeRequest, Servers)>,
    /// A request whose answer nobody waits for any more.
    pub(super) late: Option<(HomeRequest, Servers)>,
    pub(super) answer: Option<HomeAnswer>,
    /// A record that the first tells the second.
    pub(super) reported: Option<Home>,
    /// The record under which the first makes the bucket that the second has.
    pub(super) made: Option<Option<Home>>,
}

/// See the module's head.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) regions: [Region; REGIONS],
    pub(super) channels: [[Channel; REGIONS]; REGIONS],
    pub(super) begun: u8,
    pub(super) resumed: u8,
    pub(super) ended: u8,
    pub(super) lost: u8,
    pub(super) reported: u8,
    pub(super) changes: u8,
    /// The first region was removed.
    pub(super) is_removed: bool,
}

impl State {
    /// Regions that were not removed.
    pub(super) fn live(&self) -> impl Iterator<Item = usize> + '_ {
        (0..REGIONS).filter(|region| !(self.is_removed && *region == 0))
    }
}
