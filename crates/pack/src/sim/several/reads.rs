//! Checks by reading that each worker shows what the simulation expects of it.

use bytes::Bytes;
use larder_types::ServerId;

use super::world::{KEYS, World, shown_by};
use crate::format::entry::{Content, Place};
use crate::format::sums::verifies;
use crate::format::upload_unit::UploadUnit;
use crate::peers::feed::places::FeedQuota;
use crate::peers::feed::wire::FeedRequest;
use crate::peers::view::{Item, RowOwner};
use crate::read::{Bodies, HeldBody};
use crate::sim::world::bytes_of;

impl World {
    /// A client reads a key: it gets all bytes of what the worker shows, unless only a lost directory had them.
    pub(super) async fn read(&mut self, at: usize) {
        let number = self.rng.below(KEYS);
        if self.machines[at].others().fresh().is_err() {
            return;
        }
        let Some(item) = self.shows(at, &format!("k{number}")) else { return };
        self.store.set_calm(true);
        let _lost = self.read_item(at, &item).await;
        self.store.set_calm(false);
    }

    /// The newest version of a key, as a worker shows it.
    pub(super) fn shows(&self, at: usize, key: &str) -> Option<Item> {
        let newest = self.items(at, key).into_iter().max_by_key(Item::rank);
        newest.filter(|item| !item.is_tombstone)
    }

    /// Returns true if somebody has the bytes of what a worker shows; then they are those that were
    /// put.
    pub(super) async fn read_item(&mut self, at: usize, item: &Item) -> bool {
        let Content::Run(place) = &item.version.content else { panic!("no parts here") };
        let value = shown_by(&item.version, false).value.expect("it is no tombstone");
        let bytes = match &item.whose {
            RowOwner::Own => {
                let machine = &self.machines[at];
                let (process, below) = (machine.process.as_ref(), machine.prefix() + "/");
                let process = process.expect("a process runs");
                let read = process.read(place, &self.store, &below).await;
                Some(read.unwrap_or_else(|reason| panic!("own bytes: {reason}")).into())
            }
            RowOwner::Other(known) => self.read_other(&known.bodies, place).await,
        };
        let Some(bytes) = bytes else { return false };
        assert!(verifies(place, 0, &bytes), "bytes of {value} do not verify: {place:?}");
        assert_eq!(bytes, bytes_of(value));
        true
    }

    /// As [`crate::read`] does it, but for the connection to the other worker.
    async fn read_other(&mut self, bodies: &Bodies, place: &Place) -> Option<Bytes> {
        let name = match bodies.name_of(place.container).unwrap() {
            Some(name) => name,
            None => match self.held(place).await? {
                HeldBody::Bytes(bytes) => return Some(bytes),
                HeldBody::Uploaded(name) => name,
            },
        };
        let all = bodies.backend.at_once(&name).await;
        let all = all.unwrap_or_else(|| panic!("{name} is not there"));
        Some(all.slice(place.offset as usize..(place.offset + place.len) as usize))
    }

    /// Asks the worker that has it; `None` if another directory has its name by now.
    async fn held(&mut self, place: &Place) -> Option<HeldBody> {
        let (id, unit) = UploadUnit::of(place.container).expect("nothing is large here");
        let owner = self.machines.iter().find(|machine| machine.worker == id.worker)?;
        let process = owner.process.as_ref().expect("a process runs");
        let feed = process.feed();
        let range = place.offset..place.offset + place.len;
        let (from, to) = (range.start, range.end);
        let ask = FeedRequest::Body { worker: id.worker, blob: id.seq, unit: unit.nth(), from, to };
        let caller = feed.places.call(ServerId(1), FeedQuota::Bodies).expect("nobody else calls");
        let answer = feed.answer(ask, caller).await.expect("nobody else has memory");
        let held = HeldBody::read((id, unit), &range, answer);
        let held = held.unwrap_or_else(|reason| panic!("{place:?}: {reason}"));
        self.bundled += u64::from(unit != UploadUnit::SHARED && matches!(held, HeldBody::Bytes(_)));
        Some(held)
    }
}
