//! A data server: a volume and a queue of commands, with the thin driver that a real one has too.
//!
//! Commands reach the volume in the order in which they came; how many make a group is chance.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use larder_env::{DiskError, SimDisk};
use larder_protocol::manager::policy::{ManagerMessage, ServerMessage};
use larder_protocol::{DataAnswer, DataRequest};
use larder_types::limits::BLOCK_BYTES;
use larder_types::{BootId, Chunk, DiskId, Extent, Grant, LvId, PvId};
use larder_volume::{
    Action, Answer, Command, ReadError, Refusal, Volume, VolumeConfig, VolumeError, verify_range,
};

use crate::clock::MS;
use crate::event::{
    Caller, DataCaller, FromManagers, NodeIn, ProxyEvent, ProxyIn, Requester, StoreIn,
};
use crate::managers::{Managers, PRESENCE_US};
use crate::net::Net;
use crate::process_end::ProcessEnd;
use crate::promises::Promises;
use crate::servers::Server;
use crate::setup::Setup;
use crate::verdict::Finding;

/// File of the volume.
pub(crate) const VOLUME_FILE: &str = "data/volume";
/// Bytes of every PV.
pub(crate) const PV_BYTES: u64 = larder_volume::limits::PV_BYTES_STEP;
/// Blocks of every LV.
pub(crate) const LV_BLOCKS: u32 = (PV_BYTES / BLOCK_BYTES as u64) as u32;
/// Most commands of a group.
const GROUP_MAX: u64 = 12;

/// Whom a command's completion concerns.
#[derive(Debug, Clone, Copy)]
enum Concerned {
    Put { caller: DataCaller, grant: Grant, replica: usize },
    Pg { from: Requester, grant: Option<Grant> },
    Managers { lv: LvId, replica: u8, disk: DiskId, pv: PvId },
}

/// A data server and its disk.
pub(crate) struct Store {
    id: usize,
    setup: Arc<Setup>,
    pub(crate) disk: Arc<SimDisk>,
    pub(crate) boot: BootId,
    volume: Option<Volume>,
    managers: Option<Managers>,
    queue: VecDeque<(Action, Concerned)>,
    promises: Promises,
}

impl Store {
    pub(crate) fn new(id: usize, setup: &Arc<Setup>, disk: Arc<SimDisk>) -> Self {
        Self {
            id,
            setup: setup.clone(),
            disk,
            boot: BootId(0),
            volume: None,
            managers: None,
            queue: VecDeque::new(),
            promises: Promises::default(),
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.volume.is_some()
    }

    pub(crate) fn die(&mut self) {
        self.volume = None;
        self.queue.clear();
    }

    /// Starts: opens the volume, or makes it, and tells the managers.
    pub(crate) fn start(&mut self, net: &mut Net) -> Result<(), Result<ProcessEnd, String>> {
        assert!(self.volume.is_none(), "a server runs once");
        self.disk = self.disk.reopen();
        self.boot = BootId(net.rng.next_u64());
        let planted = self.setup.options.bugs.volume;
        let opened = match Volume::open_with(&*self.disk, VOLUME_FILE, self.boot, planted) {
            Err(VolumeError::Disk(DiskError::NotFound { .. })) => self.create(),
            opened => opened,
        };
        self.volume = Some(opened.map_err(|error| match error {
            VolumeError::Disk(DiskError::PoweredOff) => Ok(ProcessEnd::PowerLost),
            VolumeError::Disk(error) => Ok(ProcessEnd::Ends(error.to_string())),
            error => Err(error.to_string()),
        })?);
        if let Ok(found) = larder_volume::describe(&*self.disk, VOLUME_FILE)
            && let Err(broken) = self.promises.check(&found)
        {
            net.find(Finding::BrokenPromise(format!("data server {}: {broken}", self.id)));
        }
        self.managers = Some(Managers::new(Server::Store(self.id), self.boot, &self.setup, net));
        let delay = 50 + net.rng.below(5 * MS);
        net.after(delay, (self.id, StoreIn::Beat { boot: self.boot }));
        Ok(())
    }

    fn create(&self) -> Result<Volume, VolumeError> {
        let config = VolumeConfig {
            cluster: 1,
            disk_id: DiskId(self.id as u32),
            pv_bytes: PV_BYTES,
            pv_count_max: self.setup.pvs_per_disk,
        };
        drop(Volume::create(&*self.disk, VOLUME_FILE, config, self.boot)?);
        let planted = self.setup.options.bugs.volume;
        Volume::open_with(&*self.disk, VOLUME_FILE, self.boot, planted)
    }

    /// Tells the managers that it runs, until they know it, and that it goes on.
    fn beat(&mut self, net: &mut Net) {
        let boot = self.boot;
        net.after(PRESENCE_US, (self.id, StoreIn::Beat { boot }));
        let Some(managers) = &mut self.managers else { return };
        let message = if managers.observes_own_map() {
            ServerMessage::Heartbeat(boot)
        } else {
            ServerMessage::Started(boot, Vec::new(), Vec::new())
        };
        managers.say(message, net);
        managers.beat(net);
    }

    /// The PV that a manager wants made, if that is what came.
    fn hear_managers(
        &mut self,
        what: FromManagers,
        net: &mut Net,
    ) -> Result<Option<(Action, Concerned)>, ProcessEnd> {
        let up = self.managers.as_mut().filter(|_| self.volume.is_some());
        let Some(managers) = up else { return Ok(None) };
        managers.received(net);
        match what {
            FromManagers::Map(map) => {
                if managers.take(&map, net) && managers.observes_other_map() {
                    return Err(ProcessEnd::superseded(net));
                }
            }
            FromManagers::Says(ManagerMessage::WhoAreYou) => {
                managers.say(ServerMessage::Started(self.boot, Vec::new(), Vec::new()), net);
            }
            FromManagers::Says(ManagerMessage::CreatePv { lv, replica, disk, pv, map, .. }) => {
                let action = Action::CreatePv { pv, lv, replica, map };
                return Ok(Some((action, Concerned::Managers { lv, replica, disk, pv })));
            }
            FromManagers::Says(_) => {}
        }
        Ok(None)
    }

    pub(crate) fn handle(&mut self, input: StoreIn, net: &mut Net) -> Result<(), ProcessEnd> {
        let (action, concerned) = match input {
            StoreIn::Group { boot } if boot == self.boot && self.is_up() => {
                return self.group(net);
            }
            StoreIn::Beat { boot } if boot == self.boot && self.is_up() => {
                self.beat(net);
                return Ok(());
            }
            StoreIn::Group { .. } | StoreIn::Beat { .. } => return Ok(()),
            StoreIn::Read { caller, chunk } => {
                let bytes = self.volume.as_ref().map(|volume| {
                    let read = volume.reader().read(chunk.lv, &chunk.extents, 0, chunk.len);
                    match read {
                        // The map by which it was asked is an old one.
                        Err(ReadError::UnknownLv { .. }) => None,
                        // Bytes that cannot be read are as good as other bytes.
                        read => Some(read.unwrap_or_default()),
                    }
                });
                let bytes = bytes.flatten();
                hear(self.id, caller, ProxyEvent::Bytes(bytes), net);
                return Ok(());
            }
            StoreIn::Managers(what) => match self.hear_managers(what, net)? {
                Some(wanted) => wanted,
                None => return Ok(()),
            },
            StoreIn::Write { caller, lv, grant, extents, data, replica } => {
                let len = data.len() as u32;
                let action = Action::Write { lv, grant, extents, data: vec![data], len };
                (action, Concerned::Put { caller, grant, replica })
            }
            StoreIn::Request { from, lv, request } => {
                let (action, grant) = action_of(lv, request);
                (action, Concerned::Pg { from, grant })
            }
        };
        if self.is_up() {
            if self.setup.options.bugs.driver.acks_unexecuted()
                && matches!(concerned, Concerned::Put { .. })
            {
                self.complete(concerned, Ok(Answer::Written), net);
            }
            self.queue.push_back((action, concerned));
            net.soon((self.id, StoreIn::Group { boot: self.boot }));
        } else {
            self.complete(concerned, Err(Refusal::Broken), net);
        }
        Ok(())
    }

    /// Executes the next commands as one group.
    fn group(&mut self, net: &mut Net) -> Result<(), ProcessEnd> {
        let Some(volume) = self.volume.as_mut() else { return Ok(()) };
        if self.queue.is_empty() {
            return Ok(());
        }
        let take = (1 + net.rng.below(GROUP_MAX) as usize).min(self.queue.len());
        let (mut group, mut concerned) = (Vec::new(), Vec::new());
        for (action, whom) in self.queue.drain(..take) {
            group.push(Command { tag: concerned.len() as u64, action });
            concerned.push(whom);
        }
        let actions: Vec<Action> = group.iter().map(|command| command.action.clone()).collect();
        let mut done = Vec::new();
        volume.execute(group, &mut done);
        let failure = volume.broken().cloned();
        if failure == Some(DiskError::PoweredOff) {
            return Err(ProcessEnd::PowerLost);
        }
        for completion in done {
            let at = completion.tag as usize;
            if let Ok(answer) = completion.result
                && let Err(broken) = self.promises.answered(&actions[at], answer, self.boot)
            {
                net.find(Finding::BrokenPromise(format!("data server {}: {broken}", self.id)));
            }
            self.complete(concerned[at], completion.result, net);
        }
        if let Some(error) = failure {
            return Err(ProcessEnd::Ends(error.to_string()));
        }
        if !self.queue.is_empty() {
            net.soon((self.id, StoreIn::Group { boot: self.boot }));
        }
        Ok(())
    }

    fn complete(&self, concerned: Concerned, result: Result<Answer, Refusal>, net: &mut Net) {
        match concerned {
            Concerned::Put { caller, grant, replica } => {
                let good = result == Ok(Answer::Written);
                hear(self.id, caller, ProxyEvent::Written { replica, grant, good }, net);
            }
            Concerned::Pg { from, grant } => {
                let Requester { node, run, id } = from;
                let answer = pg_answer(result, grant);
                net.send(Server::Store(self.id), (node, NodeIn::Data { run, id, answer }));
            }
            Concerned::Managers { lv, replica, disk, pv } => {
                if let (Ok(Answer::Created), Some(managers)) = (result, &self.managers) {
                    managers.say(ServerMessage::Created(lv, replica, disk, pv), net);
                }
            }
        }
    }
}

fn action_of(lv: LvId, request: DataRequest) -> (Action, Option<Grant>) {
    match request {
        DataRequest::Open { view, floor, boot } => (Action::Open { lv, view, floor, boot }, None),
        DataRequest::RaiseFloor { floor } => (Action::RaiseFloor { lv, floor }, None),
        DataRequest::Void { grant } => (Action::Void { lv, grant }, Some(grant)),
        DataRequest::Verify { chunk } => {
            let grant = chunk.grant;
            (Action::Verify { chunk }, Some(grant))
        }
    }
}

fn pg_answer(result: Result<Answer, Refusal>, grant: Option<Grant>) -> DataAnswer {
    match (result, grant) {
        (Ok(Answer::Floor(floor)), _) => DataAnswer::Floor(floor),
        (Ok(Answer::Voided), Some(grant)) => DataAnswer::Voided(grant),
        (Ok(Answer::Verified { .. }), Some(grant)) => DataAnswer::Verified(grant),
        (Ok(Answer::Mismatch { is_unacknowledged, .. }), Some(grant)) => {
            DataAnswer::Mismatch { grant, is_unacknowledged }
        }
        (Err(Refusal::Busy | Refusal::Unreadable), Some(grant)) => DataAnswer::NotNow(grant),
        _ => DataAnswer::Failed,
    }
}

fn hear(store: usize, caller: DataCaller, received: ProxyEvent, net: &mut Net) {
    let from = Server::Store(store);
    match caller {
        DataCaller::Proxy(Caller { proxy, session, token }) => {
            net.send(from, (proxy, ProxyIn::ProxyEvent { session, token, received }));
        }
        DataCaller::Node { node, run, copy } => {
            net.send(from, (node, NodeIn::Copy { run, copy, received }));
        }
    }
}

impl Store {
    /// Flips a bit of the byte at `at` of what the extents hold together; false if it is not there.
    pub(crate) fn rot(&self, pv: PvId, extents: &[Extent], at: u64) -> bool {
        let disk = self.disk.reopen();
        let Ok(description) = larder_volume::describe(&*disk, VOLUME_FILE) else { return false };
        let base = description.data_start + u64::from(pv.0) * PV_BYTES;
        let mut left = at;
        for extent in extents {
            if left < extent.bytes() {
                let offset = base + u64::from(extent.first) * u64::from(BLOCK_BYTES) + left;
                return disk.flip_bit(VOLUME_FILE, offset).is_ok();
            }
            left -= extent.bytes();
        }
        false
    }

    /// This copy of a chunk, if it is right.
    pub(crate) fn read(&self, chunk: &Chunk) -> Option<Bytes> {
        let reader = self.volume.as_ref()?.reader();
        let bytes = reader.read(chunk.lv, &chunk.extents, 0, chunk.len).ok()?;
        verify_range(chunk, 0, &bytes).ok().map(|()| bytes)
    }
}
