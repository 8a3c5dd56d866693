//! Requests to other regions that are under way: what each asks for, how long it may take, and what it is charged for.
//! [`super::requests_sent`] decides which are to be made, and [`super::wants`] takes the answers; nothing here knows of these.

use larder_types::{BucketId, PgId, RegionId};

use super::super::entry::{Name, Need};
use super::Pull;
use super::queue::Lane;
use crate::limits::{REGION_ANSWER_MS, REGION_POLL_MS};

/// A request that is under way.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) region: RegionId,
    pub(super) until_ms: u64,
    pub(super) what: Query,
}

#[derive(Debug)]
pub(super) enum Query {
    Ids {
        pgs: Vec<PgId>,
    },
    /// The sums of the range that is not walked over yet.
    Walk,
    /// The ids of the first run that differs.
    List,
    /// The buckets of the region, for those of these that are not known here.
    Buckets(Vec<BucketId>),
    Fetch(Vec<RequestedEntry>),
}

/// An entry that a region is asked for.
#[derive(Debug)]
pub(super) struct RequestedEntry {
    pub(super) name: Name,
    /// The number of claims that it had.
    pub(super) claims: usize,
    /// Bytes that the region's budget was charged with.
    pub(super) bytes: u64,
    pub(super) need: Need,
    /// The line that it was taken from.
    pub(super) lane: Lane,
    /// It has a request of its own, as it has many bytes.
    pub(super) is_large: bool,
    /// Only a part of its bytes is asked for.
    pub(super) is_part: bool,
}

impl Pull {
    /// Notes a request that begins now, and returns its number.
    pub(super) fn begin(&mut self, now_ms: u64, region: RegionId, what: Query) -> u64 {
        let request = self.next_request;
        self.next_request += 1;
        let until_ms = now_ms + REGION_ANSWER_MS;
        self.requests.insert(request, Request { region, until_ms, what });
        request
    }

    /// Takes the request that an answer belongs to, if one of this kind is under way.
    pub(super) fn answered<T>(
        &mut self,
        request: u64,
        of_kind: impl FnOnce(&mut Query) -> Option<T>,
    ) -> Option<(RegionId, T)> {
        let asked = self.requests.get_mut(&request)?;
        let (region, what) = (asked.region, of_kind(&mut asked.what)?);
        self.requests.remove(&request);
        Some((region, what))
    }

    /// Drops requests that ask for anything but entries. All that they asked for is asked for again, as it is noted until it is
    /// answered.
    pub(super) fn void_answers(&mut self) {
        self.requests.retain(|_, request| matches!(request.what, Query::Fetch(_)));
    }

    /// Gives a request more time, as its answer is on its way.
    pub(super) fn extend_deadline(&mut self, now_ms: u64, request: u64) {
        if let Some(asked) = self.requests.get_mut(&request) {
            asked.until_ms = asked.until_ms.max(now_ms + REGION_ANSWER_MS);
        }
    }

    /// Leaves a region alone for a moment, as it did not answer, or nothing that counts.
    pub(super) fn back_off(&mut self, now_ms: u64, region: RegionId) {
        let peer = self.peers.get_mut(&region).expect("who is asked is known");
        peer.quiet_until_ms = now_ms + REGION_POLL_MS;
    }

    /// Charges a region for the bytes that a fetch received, in place of the announced ones.
    pub(super) fn settle_budget(
        &mut self,
        region: RegionId,
        asked: &[RequestedEntry],
        received_bytes: u64,
    ) {
        let taken = asked.iter().map(|it| it.bytes).fold(0, u64::saturating_add);
        let peer = self.peers.get_mut(&region).expect("who is asked is known");
        peer.budget.settle(taken, received_bytes);
    }
}
