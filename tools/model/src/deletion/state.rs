//! The state of the model of a bucket's deletion.

use crate::ids::Servers;

pub(super) const REGIONS: usize = 3;

/// A bucket of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Bucket {
    /// Never used again in this region, as an id and its epochs are not.
    pub(super) epoch: u8,
    pub(super) is_closed: bool,
    pub(super) has_object: bool,
    /// The object was purged, which this region tells others.
    pub(super) has_tombstone: bool,
    /// Closed by another region, not by a client here.
    pub(super) is_for_another: bool,
}

/// The epoch under which a region has closed its bucket; `None` if it has none.
pub(super) type Closed = Option<u8>;

/// An answer to being asked to close; `None` if the region refuses.
pub(super) type Answer = Option<Closed>;

/// A deletion that a region has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Deletion {
    /// The epoch of the bucket here.
    pub(super) mark: u8,
    pub(super) asked: Servers,
    /// The answers of the others that have closed it.
    pub(super) closed: [Option<Closed>; REGIONS],
    /// All have closed it, and are asked once more.
    pub(super) is_confirming: bool,
    pub(super) is_deleting: bool,
    pub(super) own_is_gone: bool,
    /// Its own bucket is deleted now.
    pub(super) is_last: bool,
}

/// A request and its answer, from one region to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Message<Request, Reply> {
    Asked(Request),
    Answered(Reply),
}

/// Messages under way between two regions, of a deletion that one of them has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Channel {
    pub(super) close: Option<Message<Servers, Answer>>,
    pub(super) delete: Option<Message<Closed, bool>>,
    /// The moment at which it was asked, and whether there is the bucket.
    pub(super) names: Option<(u8, Option<bool>)>,
    /// The object is on its way, to a bucket of this epoch.
    pub(super) object: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Region {
    pub(super) bucket: Option<Bucket>,
    pub(super) epochs: u8,
    /// Answers that were asked for earlier make no buckets.
    pub(super) voided: u8,
    /// Regions that it knows, itself among them.
    pub(super) knows: Servers,
    pub(super) deletion: Option<Deletion>,
}

/// See the module's head.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) regions: [Region; REGIONS],
    /// From the one that asks to the other.
    pub(super) channels: [[Channel; REGIONS]; REGIONS],
    pub(super) begun: u8,
    pub(super) asks: u8,
    pub(super) puts: u8,
    pub(super) reopenings: u8,
    /// A client heard that the bucket is deleted.
    pub(super) is_answered: bool,
    pub(super) is_object_lost: bool,
    /// A client purged the object.
    pub(super) is_purged: bool,
}

impl Region {
    pub(super) fn next_epoch(&mut self) -> u8 {
        self.epochs += 1;
        self.epochs
    }

    pub(super) fn make(&mut self) {
        let epoch = self.next_epoch();
        self.bucket = Some(Bucket {
            epoch,
            is_closed: false,
            has_object: false,
            has_tombstone: false,
            is_for_another: false,
        });
    }

    /// Closes the bucket, or closes it once more.
    pub(super) fn close(&mut self, is_for_another: bool) -> u8 {
        let epoch = self.next_epoch();
        let bucket = self.bucket.as_mut().expect("it is there");
        (bucket.epoch, bucket.is_closed, bucket.is_for_another) = (epoch, true, is_for_another);
        epoch
    }

    pub(super) fn reopen(&mut self) {
        let epoch = self.next_epoch();
        let bucket = self.bucket.as_mut().expect("it is there");
        (bucket.epoch, bucket.is_closed) = (epoch, false);
    }

    pub(super) fn is_live(&self) -> bool {
        self.bucket.is_some_and(|bucket| !bucket.is_closed)
    }

    pub(super) fn is_marked(&self, mark: u8) -> bool {
        self.bucket.is_some_and(|bucket| bucket.is_closed && bucket.epoch == mark)
    }
}

impl State {
    /// A client whose proxy is not the gateway hears that the bucket is deleted if it is gone under that client's mark.
    pub(super) fn delete(&mut self, region: usize) {
        let region = &mut self.regions[region];
        region.voided += 1;
        let bucket = region.bucket.take().expect("it is there");
        self.is_object_lost |= bucket.has_object;
        let is_clients = region.deletion.is_some_and(|it| it.mark == bucket.epoch);
        self.is_answered |= is_clients && !region.deletion.is_some_and(|it| it.is_last);
    }

    /// Asks the others to delete what they closed.
    pub(super) fn ask_to_delete(&mut self, from: usize, only: Option<usize>) {
        let Some(deletion) = &mut self.regions[from].deletion else { return };
        deletion.is_deleting = true;
        let closed = deletion.closed;
        for to in (0..REGIONS).filter(|to| only.is_none_or(|only| only == *to)) {
            if let Some(closed) = closed[to] {
                self.channels[from][to].delete = Some(Message::Asked(closed));
            }
        }
    }
}
