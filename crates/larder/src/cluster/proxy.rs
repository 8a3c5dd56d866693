//! The process that serves S3.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use larder_identity::{Role, Roles};
use larder_net::{Handler, Listener, PeerIdentity, Responder, Services};
use larder_protocol::manager::policy::ManagerMessage;
use larder_protocol::manager::state::{GatewayRecord, RootRecord, ServerRole};
use larder_roles::identity::IDENTITY_FILE;
use larder_roles::limits::{
    GATEWAY_CALLS_MAX, GATEWAY_LISTS_MAX, GATEWAY_PARTS_MAX, GATEWAY_READS_MAX,
};
use larder_roles::managers::{Presence, Run};
use larder_roles::proxy::{ClusterConfig, ClusterProxy, coalesce_pieces, expire_uploads};
use larder_roles::wire::{PartRefusal, ProxyCall, ProxyMessage, ProxyReply, ProxyService};
use larder_s3::{S3Service, Server};
use larder_types::codec::encode;
use tokio::sync::Semaphore;

use super::config::RoleConfig;
use super::gateway::{Candidate, Gateway, PublishedRegions};
use super::{Member, RoleContext, RoleError, dismissed, end_of_run, status};
use crate::credentials::{self, Root};
use crate::metrics::{Metrics, ProxyMetrics};
use crate::root_keys::proxy::{self as proxy_keys, ProxyKeys};
use crate::serving::server_options;

/// Requests may take this long to finish once the process is told to stop.
const DRAIN_MAX: Duration = Duration::from_secs(8);

/// Takes messages of managers, and calls of other proxies if this one is the gateway to other regions.
struct ProxyFrontend {
    presence: Presence,
    /// Not there before its session is open.
    proxy: Arc<OnceLock<Arc<ClusterProxy>>>,
    /// Places for changes, keys, parts of objects, lists, and deletions of buckets of other proxies' clients.
    changes: Arc<Semaphore>,
    scans: Arc<Semaphore>,
    parts: Arc<Semaphore>,
    lists: Arc<Semaphore>,
    deletions: Arc<Semaphore>,
    keys: Arc<ProxyKeys>,
    metrics: Arc<Metrics>,
}

impl Handler<ProxyService> for ProxyFrontend {
    fn request(
        &self,
        from: &PeerIdentity,
        call: ProxyCall,
        payload: bytes::Bytes,
        responder: Responder<ProxyService>,
    ) {
        if call == ProxyCall::Keys {
            let reply = ProxyReply::Keys(self.keys.taken());
            return responder.answer(&reply, bytes::Bytes::new());
        }
        if call == ProxyCall::Counts {
            let counts = encode(&self.metrics.operations().now());
            return responder.answer(&ProxyReply::Counts, counts.into());
        }
        let places = match &call {
            ProxyCall::Look(..) => &self.scans,
            ProxyCall::Part(_) => &self.parts,
            ProxyCall::List(..) | ProxyCall::Clients | ProxyCall::Keys | ProxyCall::Counts => {
                &self.lists
            }
            ProxyCall::Deletion(..) => &self.deletions,
            ProxyCall::Change(_) => &self.changes,
        };
        let place = places.clone().try_acquire_owned();
        if place.is_err() && matches!(call, ProxyCall::List(..)) {
            return responder.busy();
        }
        if place.is_err() && matches!(call, ProxyCall::Part(_)) {
            let reply = ProxyReply::NoPart(PartRefusal::SlowDown);
            return responder.answer(&reply, bytes::Bytes::new());
        }
        let (Some(proxy), true, Ok(place)) =
            (self.proxy.get(), from.subject.roles.has(Role::Proxy), place)
        else {
            return responder.answer(&ProxyReply::NotGateway, bytes::Bytes::new());
        };
        let proxy = proxy.clone();
        tokio::spawn(async move {
            proxy.answer_proxy(call, payload, responder).await;
            drop(place);
        });
    }

    fn message(&self, from: &PeerIdentity, message: ProxyMessage, _payload: bytes::Bytes) {
        let ProxyMessage::Manager(message) = message;
        if message == ManagerMessage::WhoAreYou && from.subject.roles.has(Role::Manager) {
            self.presence.who_are_you();
        }
    }
}

/// Root's keys with their file: those of the environment, or of the file that all proxies share, drawn if there is none. True
/// if the file is Larder's own.
fn root(
    config: &RoleConfig,
    was_member: bool,
    kept: Option<&RootRecord>,
) -> Result<(Root, PathBuf, bool), RoleError> {
    let own = config.dir.join(credentials::FILE);
    // A machine's roles share one, in the directory above theirs.
    let of_machine = config.region_home.as_ref().map(|home| home.join(credentials::FILE));
    let is_larders = match &config.credentials {
        Some(named) => of_machine.as_ref() == Some(named),
        None => true,
    };
    let file = config.credentials.as_ref().unwrap_or(&own);
    if is_larders {
        proxy_keys::restore(file, kept).map_err(RoleError::System)?;
    }
    let root = match &config.credentials {
        Some(named) => credentials::load_named(named),
        None => credentials::load(&own),
    };
    let root = match (root, kept) {
        // The managers' count, whatever the file has.
        (Err(error), Some(kept)) => {
            tracing::warn!(%error, "root's keys come from the managers: the file with earlier keys is ignored");
            proxy_keys::root_of(kept)
        }
        (root, _) => root.map_err(RoleError::face)?,
    };
    let is_own = is_larders && proxy_keys::is_own(file);
    if root.drawn {
        tracing::warn!(
            file = %file.display(),
            "root credentials were drawn at random: all proxies need the same ones, so copy the file to each or name one with `credentials`"
        );
    }
    root.warn_if_replaced(file, !was_member);
    if root.previous.is_some() {
        tracing::warn!(
            file = %file.display(),
            "the pair `previous` of the file is ignored: only a single node uses it (`larder keys`)"
        );
    }
    Ok((root, file.clone(), is_own))
}

/// The error that ends a gateway; a proxy that is none waits for ever.
async fn serve_gateway(
    gateway: Option<Gateway>,
    proxy: &Arc<ClusterProxy>,
    shown: &PublishedRegions,
) -> RoleError {
    let Some(gateway) = gateway else { return std::future::pending().await };
    let Err(error) = gateway.run(proxy, shown).await;
    error
}

/// Listens for clients from the start: the port must be its own before it makes anything. Until there are managers, and a
/// session with them, requests are answered 503.
pub(super) async fn run(config: RoleConfig, mut context: RoleContext) -> Result<(), RoleError> {
    let s3 = context.listen_for_s3(&config).await?;
    let s3_address = s3.local_addr().map_err(RoleError::System)?;
    let (metrics, options) = (context.metrics.clone(), server_options(DRAIN_MAX));
    let server = Server::waiting(metrics, options, config.face()).map_err(RoleError::face)?;
    let (regions, mut stop) = (PublishedRegions::default(), context.stop.clone());
    let mut serving = pin!(server.clone().serve(s3, async move { stop.requested().await }));
    let mut certificate_expiry = pin!(stand_by(&server, s3_address, &regions, (config, context)));
    let outcome = tokio::select! {
        _drained = &mut serving => match server.has_begun() {
            true => Ok(()),
            // It may be half way through, as in joining the cluster. It is told to stop, too.
            false => certificate_expiry.await,
        },
        ended = &mut certificate_expiry => {
            if ended.is_ok() {
                serving.await;
            }
            ended
        }
    };
    if let Some(regions) = regions.get().cloned() {
        // It waits for a thread.
        drop(tokio::task::spawn_blocking(move || regions.stop()).await);
    }
    outcome
}

/// Gives the server its store, and keeps to the managers. Returns an error that ends the proxy, or when it is told to stop
/// before it serves.
async fn stand_by(
    server: &Server<Metrics>,
    s3_address: SocketAddr,
    regions: &PublishedRegions,
    (config, mut context): (RoleConfig, RoleContext),
) -> Result<(), RoleError> {
    let was_member = config.dir.join(IDENTITY_FILE).exists();
    let candidate = Candidate::open(&config).await?;
    let Some(member) = Member::begin(&config, ServerRole::Proxy, &mut context).await? else {
        return Ok(());
    };
    let (managers, older_map) = (member.managers(), member.older_map());
    let (root, file, is_own) = root(&config, was_member, managers.map().root.as_ref())?;
    let keys = Arc::new(ProxyKeys::new(&root, &file, is_own));
    let addresses = vec![member.address.clone()];
    let run = Run { server: member.me, boot: member.boot, addresses, has: Vec::new() };
    let presence = Presence::start(managers.clone(), run);
    let shown_to_others = Arc::new(OnceLock::new());
    let face = ProxyFrontend {
        presence,
        proxy: shown_to_others.clone(),
        changes: Arc::new(Semaphore::new(GATEWAY_CALLS_MAX)),
        scans: Arc::new(Semaphore::new(GATEWAY_READS_MAX)),
        parts: Arc::new(Semaphore::new(GATEWAY_PARTS_MAX)),
        lists: Arc::new(Semaphore::new(GATEWAY_LISTS_MAX)),
        deletions: Arc::new(Semaphore::new(GATEWAY_CALLS_MAX)),
        keys: keys.clone(),
        metrics: context.metrics.clone(),
    };
    let services = Services::new().with(Roles::of(&[Role::Manager, Role::Proxy]), face);
    let listener = Listener::start(&member.endpoint, member.listen_socket, services);
    let _listener = listener.map_err(RoleError::System)?;
    let cluster = ClusterConfig {
        endpoint: member.endpoint.clone(),
        managers: managers.clone(),
        me: member.me,
        boot: member.boot,
        read_policy: config.read_policy,
    };
    let proxy = tokio::select! {
        proxy = ClusterProxy::begin(cluster) => Arc::new(proxy),
        () = context.stop.requested() => return Ok(()),
    };
    // It is set once, here.
    let _first = shown_to_others.set(proxy.clone());
    let own = GatewayRecord { server: member.me, boot: member.boot };
    let gateway = candidate.map(|candidate| candidate.of(own, managers.clone()));
    if let Some(gateway) = &gateway {
        // Before anybody can put anything here that no journal would tell of.
        tokio::select! {
            agreed = gateway.agree() => agreed?,
            () = context.stop.requested() => return Ok(()),
        }
    }
    tokio::spawn(coalesce_pieces(proxy.clone()));
    if let Some(age) = config.upload_life.time() {
        tokio::spawn(expire_uploads(proxy.clone(), age));
    }
    let metrics = ProxyMetrics::new(proxy.clone(), managers.clone(), member.me, regions.clone());
    let metrics = Box::new(metrics.with_keys(keys.clone()));
    let state = status::query::StatusQuery::new(&member.endpoint, managers.clone());
    context.metrics.set_state_source(Arc::new(state));
    let certificate_expiry = member.renewal.certificate_expiry();
    context.show(Some(metrics), (certificate_expiry, member.endpoint.metrics()));
    // Before a request is checked: keys of the file may have been retired.
    keys.take(&managers.map());
    let service = S3Service::new(proxy.clone(), keys.keys(), config.face());
    let service = service.map_err(RoleError::face)?;
    // Beside other roles, the machine has shown them.
    if context.is_alone() {
        root.show_once(&file);
    }
    server.begin(service);
    if context.stop.is_requested() {
        return Ok(());
    }
    tracing::info!(server = %member.me, s3 = %s3_address, "the proxy has started");
    let (me, boot) = (member.me, member.boot);
    Err(tokio::select! {
        error = dismissed(&*managers, |map| end_of_run(map, me, boot, &config.dir)) => error,
        error = serve_gateway(gateway, &proxy, regions) => error,
        older = older_map => older.into(),
        never = keys.follow(&*managers) => match never {},
    })
}
