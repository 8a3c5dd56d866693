//! The process that serves S3.

use std::sync::Arc;
use std::time::Duration;

use larder_net::{Handler, Listener, PeerIdentity, Responder, Role, Roles, Services};
use larder_protocol::manager::policy::ManagerMessage;
use larder_protocol::manager::state::ServerRole;
use larder_roles::managers::{Presence, Run};
use larder_roles::proxy::{ClusterConfig, ClusterProxy};
use larder_roles::wire::{ProxyMessage, ProxyService};
use larder_s3::{FaceOptions, S3Service, ServerOptions, serve};

use super::config::RoleConfig;
use super::{Around, Member, RoleError, bind, dismissed, end_of_run};
use crate::credentials;
use crate::metrics::ProxyMetrics;

/// Requests may take this long to finish once the process is told to stop.
const DRAIN_MAX: Duration = Duration::from_secs(8);

/// What managers tell a proxy.
struct ProxyFace(Presence);

impl Handler<ProxyService> for ProxyFace {
    fn request(
        &self,
        _from: &PeerIdentity,
        (): (),
        _payload: bytes::Bytes,
        responder: Responder<ProxyService>,
    ) {
        responder.answer(&(), bytes::Bytes::new());
    }

    fn message(&self, _from: &PeerIdentity, message: ProxyMessage, _payload: bytes::Bytes) {
        let ProxyMessage::Manager(message) = message;
        if message == ManagerMessage::WhoAreYou {
            self.0.who_are_you();
        }
    }
}

pub(super) async fn run(config: RoleConfig, mut around: Around) -> Result<(), RoleError> {
    let own = config.dir.join(credentials::FILE);
    let root = credentials::load(config.credentials.as_deref().unwrap_or(&own))
        .map_err(|error| RoleError::Proxy(error.to_string()))?;
    if root.unseen {
        tracing::warn!(
            file = %own.display(),
            "root credentials were drawn: all proxies need the same, copy the file or name one with `credentials`"
        );
    }
    let s3 = bind(&config.s3_listen, "s3_listen").await?;
    let s3_address = s3.local_addr().map_err(RoleError::System)?;
    let Some(member) = Member::begin(&config, ServerRole::Proxy, &mut around).await? else {
        return Ok(());
    };
    let managers = member.managers();
    let addresses = vec![member.address.clone()];
    let run = Run { server: member.me, boot: member.boot, addresses, has: Vec::new() };
    let face = ProxyFace(Presence::start(managers.clone(), run));
    let services = Services::new().with(Roles::of(&[Role::Manager]), face);
    let listener = Listener::start(&member.endpoint, member.ear, services);
    let _listener = listener.map_err(RoleError::System)?;
    let cluster = ClusterConfig {
        endpoint: member.endpoint.clone(),
        managers: managers.clone(),
        me: member.me,
        boot: member.boot,
    };
    let proxy = tokio::select! {
        proxy = ClusterProxy::begin(cluster) => Arc::new(proxy),
        () = around.stop.told() => return Ok(()),
    };
    let metrics = Box::new(ProxyMetrics::new(proxy.clone(), managers.clone()));
    let standing = member.renewal.standing();
    around.show(&config, Some(metrics), (standing, member.endpoint.metrics())).await?;
    let options = FaceOptions { region: config.region.clone(), domains: config.domains.clone() };
    let service = S3Service::new(proxy, root.keys, options);
    let service = service.map_err(|error| RoleError::Proxy(error.to_string()))?;
    tracing::info!(server = %member.me, s3 = %s3_address, "a proxy runs");
    let options = ServerOptions { drain_max: DRAIN_MAX, ..ServerOptions::default() };
    let (me, boot) = (member.me, member.boot);
    let (metrics, mut stop) = (around.metrics.clone(), around.stop.clone());
    tokio::select! {
        _drained = serve(s3, service, metrics, options, async move { stop.told().await }) => Ok(()),
        error = dismissed(&*managers, |map| end_of_run(map, me, boot, &config.dir)) => Err(error),
    }
}
