//! Applies commands to the map; those about the cluster and its servers are here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use larder_types::limits::{PG_COUNT_MAX, REPLICAS_MAX};
use larder_types::{BootId, LvId, MapVersion, PgId, ServerId, View};

use super::changes::Touched;
use super::command::{Applied, Command, NewServer, Outcome, Refusal, changed};
use super::map::{
    ClusterId, DiskState, PgRecord, ReplicaRecord, ServerRecord, ServerRole, ServerState, Settings,
    Topology,
};
use crate::limits::{ENDED_RUNS_MAX, MAP_VERSION_MAX, PG_MEMBERS_MAX, SERVERS_MAX};
use crate::lv::ReplicaState;
use crate::manager::quorum::LogIndex;

impl Topology {
    /// Applies the command at this index of the log.
    ///
    /// # Errors
    /// [`Refusal`]; the map is then unchanged but for [`Topology::applied`].
    ///
    /// # Panics
    /// If the index is not above the last one applied, or the map contradicts itself.
    pub fn apply(&mut self, index: LogIndex, command: Command) -> Applied {
        assert!(index > self.applied, "each place of the log is applied once, in order");
        self.applied = index;
        let (version, next, lvs) = (self.version, self.next, self.lvs.len());
        let applied = match command {
            Command::Found(cluster, settings) => self.found(cluster, settings),
            _ if self.founded.is_none() => Err(Refusal::NotFounded),
            command => self.change(command),
        };
        if !matches!(applied, Err(_) | Ok(Outcome::Already)) {
            self.version = self.next_version();
        }
        assert!(self.version.0 <= version.0 + 1, "a command is one change");
        assert!(
            self.next.server >= next.server
                && self.next.disk >= next.disk
                && self.next.bucket >= next.bucket
                && self.next.token >= next.token
                && self.lvs.len() >= lvs,
            "ids are never used twice"
        );
        debug_assert_eq!(self.contradiction(), None);
        applied
    }

    fn change(&mut self, command: Command) -> Applied {
        match command {
            Command::Found(..) => Err(Refusal::Founded),
            Command::AddServer(new, token) => self.add_server(new, token),
            Command::ServerStarted(server, boot, addresses, has) => {
                self.server_started(server, boot, addresses, &has)
            }
            Command::ServerDown(server, boot) => self.server_down(server, boot),
            Command::SetWeight(server, weight) => {
                let record = self.server_mut(server)?;
                changed(std::mem::replace(&mut record.weight, weight) != weight)
            }
            Command::SetDraining(server, draining) => {
                let record = self.server_mut(server)?;
                changed(std::mem::replace(&mut record.draining, draining) != draining)
            }
            Command::RemoveServer(server) => self.remove_server(server),
            Command::AddDisk(server, weight, pvs) => self.add_disk(server, weight, pvs),
            Command::SetDiskDraining(server, disk, draining) => {
                let to = if draining { DiskState::Draining } else { DiskState::In };
                self.set_disk(server, disk, to)
            }
            Command::RemoveDisk(server, disk) => self.remove_disk(server, disk),
            Command::Retarget(targets) => self.retarget(targets),
            Command::AddLearner(pg, server) => self.add_learner(pg, server),
            Command::DropLearner(pg, server) => changed(self.pg_mut(pg)?.learners.remove(&server)),
            Command::BeginView(pg, view, members) => self.begin_view(pg, view, members),
            Command::ViewActivated(pg, view) => self.view_activated(pg, view),
            Command::CreateLv(pg, disks) => self.create_lv(pg, &disks),
            Command::LvCreated(lv) => self.lv_created(lv),
            Command::SetLvReadOnly(lv, read_only) => self.set_lv_read_only(lv, read_only),
            Command::AddReplica(lv, server, disk) => self.add_replica(lv, server, disk),
            Command::ReplicaCurrent(lv, replica) => self.replica_current(lv, replica),
            Command::DropReplica(lv, replica) => self.drop_replica(lv, replica),
            Command::OpenSession(session, server, boot) => self.open_session(session, server, boot),
            Command::CloseSession(session) => changed(self.close_session(session)),
            Command::CreateBucket(name, location, at) => self.create_bucket(name, location, at),
            Command::BeginDeletion(name) => self.begin_deletion(&name),
            Command::EndDeletion(name, epoch, empty) => {
                self.end_deletion((None, &name), epoch, empty)
            }
            Command::EndDeletionOf(id, name, epoch, empty) => {
                self.end_deletion((Some(id), &name), epoch, empty)
            }
            Command::AddToken(hash, expires_ms) => self.add_token(hash, expires_ms),
            Command::RevokeToken(token) => self.revoke_token(token),
            Command::DropVacated(lv, replica, view) => self.drop_vacated(lv, replica, view),
            Command::SetWritePolicy(name, policy) => self.set_write_policy(&name, policy),
            Command::MemberLacks(pg, view, server) => self.member_lacks(pg, view, server),
            Command::ForgetTokens(now_ms) => self.forget_tokens(now_ms),
            Command::SetRegion(region) => self.set_region(region),
            Command::ClaimGateway(region, gateway) => self.claim_gateway(region, gateway),
            Command::KeepRegions(gateway, known, list) => self.keep_regions(gateway, known, list),
            Command::SetRegions(name, regions) => self.set_regions(&name, regions),
            Command::CloseBucket(name) => self.close_bucket(&name),
            Command::DeleteClosed(gateway, id, name, epoch) => {
                self.delete_closed(gateway, (id, &name), epoch)
            }
            Command::SetHome(gateway, name, expected, next) => {
                self.set_home(gateway, &name, (expected, next))
            }
            Command::AdoptBucket(gateway, name, at, home) => {
                self.adopt_bucket(gateway, name, (at, home))
            }
            Command::SetLocal(name, is_local, at) => self.set_local(name, is_local, at),
            Command::ShareBucket(gateway, id, name, epoch, next) => {
                self.share_bucket(gateway, (id, &name), (epoch, next))
            }
            Command::PauseBalance(paused_ms) => self.pause_balance(paused_ms),
            Command::SetCors(name, rules) => self.set_cors(&name, rules),
            Command::RaiseClusterVersion(version) => {
                let before = self.cluster_version;
                self.cluster_version = before.max(version);
                changed(self.cluster_version != before)
            }
            Command::RotateRoot(after, keys, keep) => self.rotate_root(after, keys, keep),
            Command::RetireRoot(of) => self.retire_root(of),
            Command::BeginTimeline(id) => self.begin_timeline(id),
        }
    }

    fn found(&mut self, cluster: ClusterId, settings: Settings) -> Applied {
        let Settings { pg_count, members, min_members, copies, min_copies, lv_blocks } = settings;
        let sane = pg_count.is_power_of_two()
            && pg_count <= PG_COUNT_MAX
            && (1..=members).contains(&min_members)
            && usize::from(members) < PG_MEMBERS_MAX
            && (1..=copies).contains(&min_copies)
            && usize::from(copies) < larder_types::limits::REPLICAS_MAX
            && lv_blocks > 0;
        if self.founded.is_some() {
            return Err(Refusal::Founded);
        }
        if !sane {
            return Err(Refusal::BadSettings);
        }
        self.founded = Some((cluster, settings));
        self.pgs = vec![PgRecord::default(); pg_count as usize];
        Ok(Outcome::Done)
    }

    fn add_server(&mut self, new: NewServer, token: Option<([u8; 32], u64)>) -> Applied {
        match token {
            // The founder issues the first tokens, so it joins without one.
            None if !self.servers.is_empty() => return Err(Refusal::BadToken),
            Some((hash, now_ms)) if !self.admits(hash, now_ms) => return Err(Refusal::BadToken),
            _ => {}
        }
        let lives = |record: &&ServerRecord| record.state != ServerState::Removed;
        if self.servers.values().filter(lives).any(|record| record.name == new.name) {
            return Err(Refusal::NameTaken);
        }
        if self.servers.values().filter(lives).count() >= SERVERS_MAX {
            return Err(Refusal::TooMany);
        }
        let id = self.next.server;
        self.next.server = ServerId(id.0 + 1);
        let NewServer { name, roles, addresses, domains, weight } = new;
        let record = ServerRecord {
            name,
            roles,
            addresses,
            domains,
            weight,
            state: ServerState::Joining,
            draining: false,
            boot: BootId(0),
            ended: VecDeque::new(),
            started: MapVersion(0),
            disks: BTreeMap::new(),
        };
        let before = self.servers.insert(id, record);
        assert!(before.is_none(), "server {id} is new");
        Ok(Outcome::Server(id))
    }

    fn server_started(
        &mut self,
        server: ServerId,
        boot: BootId,
        addresses: Vec<String>,
        has: &[(PgId, Option<View>)],
    ) -> Applied {
        let version = self.next_version();
        let record = self.server_mut(server)?;
        if record.ended.contains(&boot) {
            return Err(Refusal::RunEnded);
        }
        let same_run = record.state != ServerState::Joining && record.boot == boot;
        if same_run && record.state == ServerState::Up && record.addresses == addresses {
            return Ok(Outcome::Already);
        }
        let is_first = record.state == ServerState::Joining;
        record.state = ServerState::Up;
        record.addresses = addresses;
        if same_run {
            return Ok(Outcome::Done);
        }
        let before = std::mem::replace(&mut record.boot, boot);
        if !is_first {
            record.ended.push_back(before);
        }
        if record.ended.len() > ENDED_RUNS_MAX {
            record.ended.pop_front();
        }
        record.started = version;
        let ended = self.sessions.iter().filter(|(_, s)| s.server == server && s.boot != boot);
        for session in ended.map(|(session, _)| *session).collect::<Vec<_>>() {
            self.close_session(session);
        }
        let concerned: BTreeSet<PgId> = self
            .lvs
            .iter()
            .filter(|lv| lv.present().any(|(_, replica)| replica.server == server))
            .map(|lv| lv.pg)
            .collect();
        for pg in concerned {
            self.pgs[pg.0 as usize].data_started = version;
        }
        self.disqualify(server, has);
        Ok(Outcome::Done)
    }

    fn server_down(&mut self, server: ServerId, boot: BootId) -> Applied {
        let record = self.server_mut(server)?;
        if record.boot != boot || record.state == ServerState::Joining {
            return Err(Refusal::OtherBoot);
        }
        changed(std::mem::replace(&mut record.state, ServerState::Down) != ServerState::Down)
    }

    /// The map's version if the command that is being applied changes it.
    pub(super) fn next_version(&self) -> MapVersion {
        MapVersion(self.version.0 + 1)
    }

    /// A server that was not removed.
    pub(super) fn server_mut(&mut self, server: ServerId) -> Result<&mut ServerRecord, Refusal> {
        let record = self.servers.get_mut(&server).ok_or(Refusal::NoSuchServer)?;
        match record.state {
            ServerState::Removed => Err(Refusal::ServerRemoved),
            _ => Ok(record),
        }
    }

    /// Returns true if a server has a role and was not removed.
    pub(super) fn has_role(&self, server: ServerId, role: ServerRole) -> bool {
        let record = self.servers.get(&server);
        record.is_some_and(|r| r.state != ServerState::Removed && r.roles.contains(&role))
    }

    /// The cluster's settings.
    ///
    /// # Panics
    /// Before it is founded.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.founded.expect("the cluster is founded").1
    }

    /// Returns the contradiction in the map, if there is one. A map that was read is checked by this.
    #[must_use]
    pub fn contradiction(&self) -> Option<String> {
        self.contradiction_at(None)
    }

    /// The same where a map without contradiction was changed at these places alone.
    pub(super) fn contradiction_at(&self, touched: Option<&Touched>) -> Option<String> {
        let pgs = self.pgs.len();
        let is_founded = pgs.is_power_of_two() && pgs <= PG_COUNT_MAX as usize;
        if is_founded != self.founded.is_some() || !is_founded && pgs > 0 {
            return Some(format!("a cluster has no {pgs} pgs"));
        }
        if self.version > MAP_VERSION_MAX {
            return Some(format!("there were no {} maps", self.version));
        }
        if self.root.as_ref().is_some_and(|root| root.generation == 0) {
            return Some("root's keys were rotated, and no rotation made them".to_owned());
        }
        let contradiction = self.contradiction_of_lvs(touched);
        if contradiction.is_some() {
            return contradiction;
        }
        let pgs = self.pgs.iter().enumerate();
        let is_touched = |id: usize| touched.is_none_or(|it| it.pgs.contains(&PgId(id as u32)));
        for (id, pg) in pgs.filter(|(id, _)| is_touched(*id)) {
            let distinct: BTreeSet<&ServerId> = pg.members.iter().collect();
            let known = pg.members.iter().chain(&pg.learners).chain(&pg.target);
            let sound = distinct.len() == pg.members.len()
                && pg.members.is_empty() == (pg.view.0 == 0)
                && pg.activated <= pg.view
                && pg.qualified.is_disjoint(&pg.lacking)
                && pg.qualified.iter().all(|server| pg.members.contains(server))
                && pg.learners.iter().all(|server| !pg.members.contains(server))
                && known.into_iter().all(|server| self.servers.contains_key(server));
            if !sound {
                return Some(format!("pg {id} contradicts itself: {pg:?}"));
            }
        }
        None
    }

    fn contradiction_of_lvs(&self, touched: Option<&Touched>) -> Option<String> {
        let is_touched = |id: LvId| touched.is_none_or(|it| it.lvs.contains(&id));
        let mut pvs = BTreeSet::new();
        let lvs = || (0..).map(LvId).zip(&self.lvs);
        for (id, lv) in lvs().filter(|(id, _)| is_touched(*id)) {
            if lv.replicas.len() > REPLICAS_MAX {
                return Some(format!("lv {id} has too many replicas"));
            }
            if lv.pg.0 as usize >= self.pgs.len() {
                return Some(format!("lv {id} is of no pg"));
            }
            for (index, replica) in lv.present() {
                if !pvs.insert((replica.disk, replica.pv)) {
                    return Some(format!("the pv of replica {index} of lv {id} is taken twice"));
                }
                if !self.is_made(replica) {
                    return Some(format!("replica {index} of lv {id} lies nowhere"));
                }
            }
            if !lv.present().any(|(_, replica)| replica.state == ReplicaState::Current) {
                return Some(format!("lv {id} has no current replica"));
            }
        }
        let touched = touched?;
        for (id, lv) in lvs().filter(|(id, _)| !is_touched(*id)) {
            for (index, replica) in lv.present() {
                if pvs.contains(&(replica.disk, replica.pv)) {
                    return Some(format!("the pv of replica {index} of lv {id} is taken twice"));
                }
                if touched.servers.contains(&replica.server) && !self.is_made(replica) {
                    return Some(format!("replica {index} of lv {id} lies nowhere"));
                }
            }
        }
        None
    }

    /// Returns true if a replica's PV is one that its disk has given.
    fn is_made(&self, replica: &ReplicaRecord) -> bool {
        let disk = self.servers.get(&replica.server).and_then(|s| s.disks.get(&replica.disk));
        disk.is_some_and(|it| replica.pv < it.next_pv && !it.freed.contains(&replica.pv))
    }
}
