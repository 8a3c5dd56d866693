//! Managers that agree at once, and are heard later: each server holds the map that it was told last.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use larder_protocol::manager::policy::ServerMessage;
use larder_protocol::manager::quorum::LogIndex;
use larder_protocol::manager::state::{
    Applied, ClusterId, Command, MapVersion, NewServer, ServerRole, ServerState, Settings, Topology,
};
use larder_protocol::placement::{FailureDomains, Weight};
use larder_types::{BootId, BucketId, Epoch, LvId, PgId, ServerId, SessionId, View};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::{DATA, METAS, PGS, PROXIES, SimRng, address};
use crate::managers::{Managers, NotProposed, VersionWatch, Versions};

pub(super) const BOOT: BootId = BootId(1);
const HASH: [u8; 32] = [7; 32];

/// The state that the managers agree on.
pub(super) struct Agreed {
    map: Mutex<Topology>,
    versions: Versions,
    sim_rng: SimRng,
}

impl Agreed {
    /// Every meta server is a member of every PG, which they lead by turns; an LV for each PG lies on all data servers.
    pub(super) fn new(sim_rng: SimRng, proxies: u32) -> Arc<Self> {
        let (map, versions) = (Mutex::default(), Versions::new(MapVersion(0)));
        let this = Arc::new(Self { map, versions, sim_rng });
        let settings = Settings {
            pg_count: PGS,
            members: 3,
            min_members: 1,
            copies: 3,
            min_copies: 1,
            lv_blocks: 1 << 20,
        };
        this.agree(Command::Found(ClusterId(9), settings));
        this.agree(Command::AddToken(HASH, u64::MAX));
        let proxies = PROXIES.start..PROXIES.start + proxies;
        let all =
            [(METAS, ServerRole::Meta), (DATA, ServerRole::Data), (proxies, ServerRole::Proxy)];
        for (ids, role) in all {
            ids.for_each(|id| this.add(id, role));
        }
        for pg in (0..PGS).map(PgId) {
            let members = METAS.map(|id| ServerId((id + pg.0) % METAS.end)).collect();
            this.agree(Command::BeginView(pg, View(0), members));
            this.agree(Command::ViewActivated(pg, View(1)));
            let map = this.map.lock();
            let disk = |id| (id, *map.servers[&id].disks.keys().next().expect("it has one"));
            let disks = DATA.map(|id| disk(ServerId(id))).collect();
            drop(map);
            this.agree(Command::CreateLv(pg, disks));
            this.agree(Command::LvCreated(LvId(pg.0)));
        }
        this
    }

    fn add(&self, id: u32, role: ServerRole) {
        let addresses = vec![address(id).to_string()];
        let new = NewServer {
            name: format!("s{id}"),
            roles: BTreeSet::from([role]),
            addresses: addresses.clone(),
            domains: FailureDomains::default(),
            weight: Weight(100),
        };
        self.agree(Command::AddServer(new, (id > 0).then_some((HASH, 1))));
        self.agree(Command::ServerStarted(ServerId(id), BOOT, addresses, Vec::new()));
        if role == ServerRole::Data {
            self.agree(Command::AddDisk(ServerId(id), Weight(100), 100));
        }
    }

    /// Has a command agreed on; everybody hears of it later.
    pub(super) fn agree(&self, command: Command) {
        let text = format!("{command:?}");
        self.apply(command).unwrap_or_else(|refusal| panic!("{text}: {refusal}"));
    }

    fn apply(&self, command: Command) -> Applied {
        let mut map = self.map.lock();
        let index = LogIndex(map.applied.0 + 1);
        let applied = map.apply(index, command);
        let version = map.version;
        drop(map);
        self.versions.show(version);
        applied
    }

    pub(super) fn version(&self) -> MapVersion {
        self.map.lock().version
    }

    /// Returns true if the server leads a PG, and may answer.
    pub(super) fn leads(&self, server: ServerId, pg: PgId, view: View) -> bool {
        let map = self.map.lock();
        map.pg(pg).is_some_and(|record| {
            record.view == view && record.is_active() && record.members.first() == Some(&server)
        })
    }

    pub(super) fn epoch(&self, bucket: BucketId) -> Option<Epoch> {
        let map = self.map.lock();
        map.buckets.values().find(|record| record.id == bucket).map(|record| record.epoch)
    }

    pub(super) fn is_up(&self, server: ServerId) -> bool {
        self.map.lock().servers[&server].state == ServerState::Up
    }

    pub(super) fn set_up(&self, server: ServerId, up: bool) {
        if self.is_up(server) == up {
            return;
        }
        let addresses = vec![address(server.0).to_string()];
        self.agree(match up {
            true => Command::ServerStarted(server, BOOT, addresses, Vec::new()),
            false => Command::ServerDown(server, BOOT),
        });
    }

    /// Closes a session whose proxy runs on.
    pub(super) fn close_a_session(&self) {
        let sessions: Vec<SessionId> = self.map.lock().sessions.keys().copied().collect();
        if !sessions.is_empty() {
            let closed = sessions[self.sim_rng.below(sessions.len() as u64) as usize];
            self.agree(Command::CloseSession(closed));
        }
    }

    /// A bucket was marked for deletion and found to have objects: it lives on under another epoch.
    pub(super) fn renew_bucket(&self) {
        let bucket = self.map.lock().buckets.values().next().map(|record| record.name.clone());
        let Some(name) = bucket else { return };
        if self.apply(Command::BeginDeletion(name.clone())).is_err() {
            return;
        }
        let marked = self.map.lock().buckets[&name].epoch;
        self.agree(Command::EndDeletion(name, marked, false));
    }

    /// Begins a view in which another member leads a PG, unless one has only begun; nobody does before it is activated.
    pub(super) fn begin_view(&self, pg: PgId) -> bool {
        let (view, mut members, is_active) = self.view(pg);
        if !is_active {
            return false;
        }
        members.rotate_left(1 + self.sim_rng.below(2) as usize);
        self.agree(Command::BeginView(pg, view, members));
        true
    }

    /// Has the primary of the view that has begun serve.
    pub(super) fn activate(&self, pg: PgId) {
        let (view, _, is_active) = self.view(pg);
        if !is_active {
            self.agree(Command::ViewActivated(pg, view));
        }
    }

    fn view(&self, pg: PgId) -> (View, Vec<ServerId>, bool) {
        let map = self.map.lock();
        let record = map.pg(pg).expect("it is there");
        (record.view, record.members.clone(), record.is_active())
    }
}

/// The managers, as one proxy sees them.
pub(super) struct RecordingManagers {
    me: ServerId,
    agreed: Arc<Agreed>,
    shown: Mutex<Arc<Topology>>,
    versions: Versions,
}

impl RecordingManagers {
    pub(super) fn new(me: ServerId, agreed: &Arc<Agreed>) -> Arc<Self> {
        let map = agreed.map.lock().clone();
        let versions = Versions::new(map.version);
        let shown = Mutex::new(Arc::new(map));
        let this = Arc::new(Self { me, agreed: agreed.clone(), shown, versions });
        tokio::spawn(this.clone().follow());
        this
    }

    /// Hears of maps, mostly soon.
    async fn follow(self: Arc<Self>) {
        let (mut agreed, sim_rng) = (self.agreed.versions.subscribe(), self.agreed.sim_rng.clone());
        loop {
            let lag = if sim_rng.one_in(8) { 2000 } else { 20 };
            sleep(sim_rng.ms(lag)).await;
            let map = self.agreed.map.lock().clone();
            if map.version > self.shown.lock().version {
                let version = map.version;
                *self.shown.lock() = Arc::new(map);
                self.versions.show(version);
            }
            if agreed.changed().await.is_err() {
                return;
            }
        }
    }
}

/// A proposal that may come to nothing, or whose answer may be lost.
pub(super) async fn proposed(
    sim_rng: &SimRng,
    apply: impl FnOnce() -> Applied,
) -> Result<Applied, NotProposed> {
    sleep(sim_rng.ms(20)).await;
    match sim_rng.below(8) {
        0 => return Err(NotProposed::NoLeader),
        1 => return Err(NotProposed::Unknown),
        _ => {}
    }
    let applied = apply();
    sleep(sim_rng.ms(20)).await;
    if sim_rng.one_in(8) { Err(NotProposed::Unknown) } else { Ok(applied) }
}

impl Managers for RecordingManagers {
    fn map(&self) -> Arc<Topology> {
        self.shown.lock().clone()
    }

    fn versions(&self) -> VersionWatch {
        self.versions.subscribe()
    }

    fn note_newer_map(&self, _: MapVersion) {}

    fn committed(&self, _: Instant) -> BoxFuture<'_, Result<MapVersion, NotProposed>> {
        Box::pin(async {
            sleep(self.agreed.sim_rng.ms(10)).await;
            Ok(self.agreed.map.lock().version)
        })
    }

    fn propose(&self, command: Command) -> BoxFuture<'_, Result<Applied, NotProposed>> {
        Box::pin(proposed(&self.agreed.sim_rng, || self.agreed.apply(command)))
    }

    fn send_message(&self, message: ServerMessage) {
        let ServerMessage::SessionBegun(boot, session) = message else { return };
        let (me, agreed) = (self.me, self.agreed.clone());
        if agreed.sim_rng.one_in(4) {
            return;
        }
        tokio::spawn(async move {
            sleep(agreed.sim_rng.ms(30) + Duration::from_millis(1)).await;
            // Of a run that is over it is refused.
            drop(agreed.apply(Command::OpenSession(session, me, boot)));
        });
    }
}
