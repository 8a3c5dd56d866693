//! Managers that agree with themselves, and publish their map when the test lets them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::BoxFuture;
use larder_protocol::manager::policy::ServerMessage;
use larder_protocol::manager::quorum::LogIndex;
use larder_protocol::manager::state::{
    Applied, ClusterId, Command, MapVersion, NewServer, Outcome, ServerRole, Settings, Topology,
};
use larder_protocol::placement::{FailureDomains, Weight};
use larder_types::{BootId, BucketId, Epoch, LvId, PgId, ServerId, SessionId, View};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::managers::{Managers, NotProposed, VersionWatch, Versions};

pub(super) const PGS: u32 = 4;
pub(super) const PROXY: ServerId = ServerId(4);
const HASH: [u8; 32] = [7; 32];

pub(super) struct FakeManagers {
    agreed: Mutex<Topology>,
    shown: Mutex<Arc<Topology>>,
    versions: Versions,
    /// Proposals to come of which the proxy does not hear what came of them.
    pub(super) unheard: Mutex<u32>,
    /// True if one of them knows no command of this release.
    pub(super) has_older: AtomicBool,
    /// True if no manager leads, as far as a question finds.
    pub(super) has_no_leader: AtomicBool,
    /// The commands that were proposed, whatever came of them.
    pub(super) proposed: Mutex<Vec<Command>>,
    /// Sessions to come that are closed before the proxy sees them.
    pub(super) closed_early: Mutex<u32>,
}

impl FakeManagers {
    /// Meta servers 0 and 1, data servers 2 and 3, proxy 4. The meta servers lead the PGs by turns, and an LV for
    /// each PG lies on both data servers.
    pub(super) fn new(addresses: &[String]) -> Arc<Self> {
        let this = Arc::new(Self {
            agreed: Mutex::default(),
            shown: Mutex::default(),
            versions: Versions::new(MapVersion(0)),
            unheard: Mutex::new(0),
            has_older: AtomicBool::new(false),
            has_no_leader: AtomicBool::new(false),
            proposed: Mutex::default(),
            closed_early: Mutex::new(0),
        });
        let settings = Settings {
            pg_count: PGS,
            members: 2,
            min_members: 1,
            copies: 2,
            min_copies: 1,
            lv_blocks: 1 << 20,
        };
        this.agree(Command::Found(ClusterId(9), settings));
        this.agree(Command::AddToken(HASH, u64::MAX));
        for (id, address) in (0u32..).zip(addresses) {
            let role = [ServerRole::Meta, ServerRole::Data, ServerRole::Proxy][id as usize / 2];
            let new = NewServer {
                name: format!("s{id}"),
                roles: BTreeSet::from([role]),
                addresses: vec![address.clone()],
                domains: FailureDomains::default(),
                weight: Weight(100),
            };
            this.agree(Command::AddServer(new, (id > 0).then_some((HASH, 1))));
            let at = vec![address.clone()];
            this.agree(Command::ServerStarted(ServerId(id), BootId(1), at, Vec::new()));
            if role == ServerRole::Data {
                this.agree(Command::AddDisk(ServerId(id), Weight(100), 100));
            }
        }
        for pg in (0..PGS).map(PgId) {
            let members = vec![ServerId(pg.0 % 2), ServerId((pg.0 + 1) % 2)];
            this.agree(Command::BeginView(pg, View(0), members));
            this.agree(Command::ViewActivated(pg, View(1)));
            let agreed = this.agreed.lock();
            let disk =
                |id| (ServerId(id), *agreed.servers[&ServerId(id)].disks.keys().next().unwrap());
            let disks = vec![disk(2), disk(3)];
            drop(agreed);
            this.agree(Command::CreateLv(pg, disks));
            this.agree(Command::LvCreated(LvId(pg.0)));
        }
        this.publish();
        this
    }

    /// Has a command agreed on, and shows nothing of it.
    pub(super) fn agree(&self, command: Command) -> Outcome {
        self.apply(command.clone()).unwrap_or_else(|refusal| panic!("{command:?}: {refusal}"))
    }

    fn apply(&self, command: Command) -> Applied {
        let mut agreed = self.agreed.lock();
        let index = LogIndex(agreed.applied.0 + 1);
        agreed.apply(index, command)
    }

    /// Shows what was agreed on.
    pub(super) fn publish(&self) {
        let agreed = self.agreed.lock().clone();
        let version = agreed.version;
        *self.shown.lock() = Arc::new(agreed);
        self.versions.show(version);
    }

    /// The map that is agreed on.
    pub(super) fn version(&self) -> MapVersion {
        self.agreed.lock().version
    }

    /// The epoch of a bucket as the managers know it.
    pub(super) fn epoch(&self, bucket: BucketId) -> Option<Epoch> {
        let agreed = self.agreed.lock();
        agreed.buckets.values().find(|record| record.id == bucket).map(|record| record.epoch)
    }

    /// Lets the other member of a PG lead it.
    pub(super) fn change_primary(&self, pg: PgId) {
        let (view, members) = {
            let agreed = self.agreed.lock();
            let record = agreed.pg(pg).unwrap();
            (record.view, record.members.iter().rev().copied().collect())
        };
        self.agree(Command::BeginView(pg, view, members));
        self.agree(Command::ViewActivated(pg, View(view.0 + 1)));
    }

    /// The server that leads a PG in the map that is agreed on.
    pub(super) fn leader(&self, pg: PgId) -> (ServerId, View) {
        let agreed = self.agreed.lock();
        let record = agreed.pg(pg).unwrap();
        (record.members[0], record.view)
    }

    pub(super) fn close_sessions(&self) {
        let sessions: Vec<SessionId> = self.agreed.lock().sessions.keys().copied().collect();
        for session in sessions {
            self.agree(Command::CloseSession(session));
        }
    }
}

impl Managers for FakeManagers {
    fn map(&self) -> Arc<Topology> {
        self.shown.lock().clone()
    }

    fn versions(&self) -> VersionWatch {
        self.versions.subscribe()
    }

    fn note_newer_map(&self, _: MapVersion) {}

    fn committed(&self, _: Instant) -> BoxFuture<'_, Result<MapVersion, NotProposed>> {
        let reported = match self.has_no_leader.load(Ordering::Relaxed) {
            true => Err(NotProposed::NoLeader),
            false => Ok(self.version()),
        };
        Box::pin(async move {
            tokio::task::yield_now().await;
            reported
        })
    }

    fn propose(&self, command: Command) -> BoxFuture<'_, Result<Applied, NotProposed>> {
        Box::pin(async move {
            self.proposed.lock().push(command.clone());
            let is_new = matches!(command, Command::EndDeletionOf(..));
            if is_new && self.has_older.load(Ordering::Relaxed) {
                return Err(NotProposed::OlderManager(ServerId(0)));
            }
            let applied = self.apply(command);
            self.publish();
            let mut unheard = self.unheard.lock();
            if *unheard > 0 {
                *unheard -= 1;
                return Err(NotProposed::Unknown);
            }
            Ok(applied)
        })
    }

    fn send_message(&self, message: ServerMessage) {
        let ServerMessage::SessionBegun(boot, session) = message else { return };
        self.agree(Command::OpenSession(session, PROXY, boot));
        let mut closed_early = self.closed_early.lock();
        if *closed_early > 0 {
            *closed_early -= 1;
            self.agree(Command::CloseSession(session));
        }
        self.publish();
    }
}
