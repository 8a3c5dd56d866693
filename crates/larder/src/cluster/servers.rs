//! The processes that serve other servers: manager, meta, data.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use larder_env::{Disk, RealDisk};
use larder_identity::{Role, Roles};
use larder_metalog::LogConfig;
use larder_net::{Listener, Services};
use larder_protocol::manager::state::{NewServer, ServerRole, Topology};
use larder_protocol::placement::{FailureDomains, Weight};
use larder_roles::data::node::{DataHandler, DataNode, DataNodeConfig};
use larder_roles::identity::IDENTITY_FILE;
use larder_roles::meta::{MetaConfig, MetaServer, ServerConfig, set_index_aside};
use larder_roles::quorum::{Founding, Manager, ManagerConfig, found};
use tokio::task::block_in_place;

use super::config::RoleConfig;
use super::status::observer::Observer;
use super::{
    Member, RoleContext, RoleError, StartedRole, dismissed, end_of_run, identity, managers,
    removal, settings,
};
use crate::config::background;
use crate::metrics::{DataMetrics, ManagerMetrics, MetaMetrics};
use crate::wall_clock::utc;

/// A meta server's share of the PGs.
pub(super) const WEIGHT: Weight = Weight(100);

pub(super) async fn manager(config: RoleConfig, mut context: RoleContext) -> Result<(), RoleError> {
    let is_new = !config.dir.join(IDENTITY_FILE).exists();
    let (listen_socket, address) = context.listen(&config)?;
    match &config.found {
        Some(founded) if is_new => {
            let manager = NewServer {
                name: founded.name.clone(),
                roles: BTreeSet::from([ServerRole::Manager]),
                addresses: vec![address.clone()],
                domains: FailureDomains::default(),
                weight: WEIGHT,
            };
            let settings = settings(founded);
            let founding = Founding { settings, manager, servers: Vec::new(), expires: None };
            found(&config.dir, founding)?;
        }
        _ => drop(identity(&config, ServerRole::Manager).await?),
    }
    let manager_config = ManagerConfig {
        dir: config.dir.clone(),
        address: Some(address),
        managers: managers(&config),
        certificate_life: config.certificate_life.0,
        colocated: context.colocated(),
    };
    // It reads its log, and is not to hold up who shares the threads.
    let mut manager = block_in_place(|| Manager::start(manager_config, listen_socket))?;
    context.greet(StartedRole::Manager(&manager));
    let counts =
        ManagerMetrics { counts: manager.counts().clone(), observed: manager.observed().clone() };
    context.show(Some(Box::new(counts)), (manager.certificate_expiry(), manager.connections()));
    let (me, map) = (manager.server(), manager.managers().clone());
    let observing = Observer::of(&manager).watch();
    tokio::select! {
        () = context.stop.requested() => Ok(manager.stop().await?),
        never = observing => match never {},
        error = dismissed(&*map, |map| removal(map, me, &config.dir)) => {
            manager.stop().await?;
            Err(error)
        }
        ended = manager.ended() => {
            let why = ended.err().map_or_else(|| "it ended".to_owned(), |error| error.to_string());
            Err(RoleError::Fatal(why))
        }
    }
}

pub(super) async fn meta(config: RoleConfig, mut context: RoleContext) -> Result<(), RoleError> {
    let Some(member) = Member::begin(&config, ServerRole::Meta, &mut context).await? else {
        return Ok(());
    };
    let older_map = member.older_map();
    let disk = RealDisk::open(&config.dir).map_err(|error| RoleError::Fatal(error.to_string()))?;
    let lock = disk.lock(larder_roles::store::LOCK_FILE);
    let _lock = lock.map_err(|error| RoleError::Fatal(error.to_string()))?;
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let log = LogConfig {
        segment_bytes: config.log_segment_mib * 1024 * 1024,
        ..LogConfig::new(larder_env::rng::unique_u64())
    };
    let server_config = ServerConfig {
        meta: MetaConfig { me: member.me, log },
        boot: member.boot,
        addresses: vec![member.address.clone()],
        background: background(config.background_mib_per_s, config.scrub_within),
    };
    let (dir, endpoint) = (&config.dir, &member.endpoint);
    let open = || {
        let (disk, managers) = (disk.clone(), member.managers());
        block_in_place(|| MetaServer::open(disk, dir, endpoint, managers, &server_config))
    };
    let server = match open() {
        Err(damage) if damage.is_index_damage() => {
            let stamp = utc(SystemTime::now()).replace(':', "");
            let managers = member.managers();
            let here = (&*disk, dir.as_path());
            tokio::select! {
                () = context.stop.requested() => return Ok(()),
                aside = set_index_aside(here, &*managers, (member.me, &stamp), &damage) => aside?,
            };
            open()?
        }
        opened => opened?,
    };
    let callers = Roles::of(&[Role::Manager, Role::Meta, Role::Proxy]);
    let services = Services::new().with(callers, server.handler());
    let managers = member.managers();
    let listener = Listener::start(&member.endpoint, member.listen_socket, services);
    let listener = listener.map_err(RoleError::System)?;
    let metrics = Box::new(MetaMetrics::new(server.meta().clone(), managers.clone()));
    let certificate_expiry = member.renewal.certificate_expiry();
    context.show(Some(metrics), (certificate_expiry, member.endpoint.metrics()));
    tracing::info!(server = %member.me, address = %member.address, "the meta server has started");
    let mut fatal = server.meta().fatal();
    let over = |map: &Topology| end_of_run(map, member.me, member.boot, &config.dir);
    let outcome = tokio::select! {
        () = context.stop.requested() => Ok(()),
        error = dismissed(&*managers, over) => Err(error),
        older = older_map => Err(older.into()),
        reason = fatal.wait_for(Option::is_some) => {
            let reason = reason.ok().and_then(|reason| reason.clone()).unwrap_or_default();
            return Err(RoleError::Fatal(reason));
        }
    };
    drop(listener);
    let closed = tokio::task::spawn_blocking(move || server.close()).await;
    closed.map_err(|error| RoleError::Fatal(error.to_string()))?;
    outcome
}

pub(super) async fn data(config: RoleConfig, mut context: RoleContext) -> Result<(), RoleError> {
    let Some(member) = Member::begin(&config, ServerRole::Data, &mut context).await? else {
        return Ok(());
    };
    let older_map = member.older_map();
    let node_config =
        DataNodeConfig { me: member.me, root: config.dir.clone(), data: config.data.clone() };
    let node = tokio::select! {
        node = DataNode::open(&node_config, member.boot, member.managers()) => node?,
        () = context.stop.requested() => return Ok(()),
    };
    let callers = Roles::of(&[Role::Manager, Role::Meta, Role::Proxy, Role::Data]);
    let services = Services::new().with(callers, DataHandler::new(node.clone(), &member.endpoint));
    let managers = member.managers();
    let listener = Listener::start(&member.endpoint, member.listen_socket, services);
    let listener = listener.map_err(RoleError::System)?;
    let certificate_expiry = member.renewal.certificate_expiry();
    let metrics = Box::new(DataMetrics { node: node.clone(), managers: managers.clone() });
    context.show(Some(metrics), (certificate_expiry, member.endpoint.metrics()));
    node.introduce(member.me, vec![member.address.clone()]);
    tracing::info!(server = %member.me, address = %member.address, "the data server has started");
    let over = |map: &Topology| {
        let over = end_of_run(map, member.me, member.boot, &config.dir);
        over.or_else(|| node.objection(map).map(RoleError::from))
    };
    let outcome = tokio::select! {
        () = context.stop.requested() => Ok(()),
        error = dismissed(&*managers, over) => Err(error),
        older = older_map => Err(older.into()),
        () = node.watch_disk() => unreachable!("it looks as long as it is asked to"),
    };
    drop(listener);
    let closed = tokio::task::spawn_blocking(move || node.close()).await;
    closed.map_err(|error| RoleError::Fatal(error.to_string()))?;
    outcome
}
