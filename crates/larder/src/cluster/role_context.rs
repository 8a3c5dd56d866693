//! The surroundings of a role: its signal to stop, its port, its metrics. A role in a process of its own has them for
//! itself; the roles of one machine share them.

use std::sync::Arc;
use std::time::Duration;

use larder_net::{ListenSocket, Port};
use larder_protocol::manager::state::ServerRole;
use larder_roles::managers::{Colocated, ManagersClient};
use larder_roles::quorum::Manager;
use larder_roles::renewal::CertificateExpiry;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::{RoleConfig, RoleError, START_TIMEOUT, bind};
use crate::metrics::{Metrics, RoleMetrics, serve_metrics};
use crate::shutdown_notice::ShutdownNotice;

/// Called once a role has begun.
pub(crate) type OnStarted = Box<dyn FnOnce(StartedRole<'_>) + Send + Sync>;

/// A role that has begun.
pub(crate) enum StartedRole<'a> {
    /// A manager that runs.
    Manager(&'a Manager),
    /// Another role, which follows the managers; the map may be still to come.
    Member(&'a Arc<ManagersClient>),
}

/// Where a role listens.
enum Listens {
    /// At the port of the machine, which its roles share.
    Shared(Arc<Port>, Arc<Colocated>),
    /// At sockets of its own.
    Own(Sockets),
}

/// The sockets of a role in a process of its own, opened before it makes anything.
pub(crate) struct Sockets {
    servers: Option<TcpListener>,
    metrics: Option<TcpListener>,
    s3: Option<TcpListener>,
}

impl Sockets {
    /// Opens what the configuration of such a role says.
    pub(super) async fn open(role: ServerRole, config: &RoleConfig) -> Result<Self, RoleError> {
        let unusable =
            |source| RoleError::Listen { address: config.listen.clone(), field: "listen", source };
        let servers = TcpListener::bind(&config.listen).await.map_err(unusable)?;
        let metrics = match config.metrics_listen.as_str() {
            "off" => None,
            address => Some(bind(address, "metrics_listen").await?),
        };
        let s3 = match role {
            ServerRole::Proxy => Some(bind(&config.s3_listen, "s3_listen").await?),
            _ => None,
        };
        Ok(Self { servers: Some(servers), metrics, s3 })
    }
}

/// See the module's head.
pub(crate) struct RoleContext {
    pub(super) stop: Stop,
    listens: Listens,
    /// The metrics of all roles of the process.
    pub(super) metrics: Arc<Metrics>,
    /// For how long it waits for managers; as long as it takes, if for no time.
    pub(super) max_wait: Option<Duration>,
    pub(super) on_started: Option<OnStarted>,
}

impl RoleContext {
    /// Of a role in a process of its own.
    pub(crate) fn alone(stop: Stop, sockets: Sockets, metrics: Arc<Metrics>) -> Self {
        let listens = Listens::Own(sockets);
        Self { stop, listens, metrics, max_wait: Some(START_TIMEOUT), on_started: None }
    }

    /// Of a role beside others, at one port. It waits for managers as long as it takes: they may be roles of machines
    /// that are still to start.
    pub(crate) fn shared(
        stop: Stop,
        (port, colocated): (Arc<Port>, Arc<Colocated>),
        metrics: Arc<Metrics>,
        on_started: Option<OnStarted>,
    ) -> Self {
        let listens = Listens::Shared(port, colocated);
        Self { stop, listens, metrics, max_wait: None, on_started }
    }

    /// The servers of its process, if there are others.
    pub(super) fn colocated(&self) -> Option<Arc<Colocated>> {
        match &self.listens {
            Listens::Shared(_, colocated) => Some(colocated.clone()),
            Listens::Own(_) => None,
        }
    }

    /// True if the process runs no other role.
    pub(super) fn is_alone(&self) -> bool {
        matches!(self.listens, Listens::Own(_))
    }

    /// Where it listens for the other servers, and the address by which they reach it.
    pub(super) fn listen(
        &mut self,
        config: &RoleConfig,
    ) -> Result<(ListenSocket, String), RoleError> {
        let sockets = match &mut self.listens {
            Listens::Shared(port, _) => return Ok((port.clone().into(), config.listen.clone())),
            Listens::Own(sockets) => sockets,
        };
        let socket = sockets.servers.take().expect("a role listens once");
        let bound = socket.local_addr().map_err(RoleError::System)?;
        // A name stays a name; a port that the system chose is told.
        let address = match config.listen.rsplit_once(':') {
            Some((host, "0")) => format!("{host}:{}", bound.port()),
            _ => config.listen.clone(),
        };
        Ok((socket.into(), address))
    }

    /// Where a proxy listens for clients.
    pub(super) async fn listen_for_s3(
        &mut self,
        config: &RoleConfig,
    ) -> Result<TcpListener, RoleError> {
        match &mut self.listens {
            Listens::Own(sockets) => Ok(sockets.s3.take().expect("a proxy listens once")),
            Listens::Shared(..) => bind(&config.s3_listen, "s3_listen").await,
        }
    }

    pub(super) fn greet(&mut self, greeted: StartedRole<'_>) {
        if let Some(on_started) = self.on_started.take() {
            on_started(greeted);
        }
    }

    /// Shows what the role and its connections count, and how long its certificate is good for.
    pub(super) fn show(
        &mut self,
        roles: Option<Box<dyn RoleMetrics>>,
        (certificate_expiry, connections): (&Arc<CertificateExpiry>, &Arc<larder_net::Metrics>),
    ) {
        self.metrics.add(roles, Some(certificate_expiry.clone()));
        self.metrics.add_connections(connections.clone());
        if let Listens::Own(sockets) = &mut self.listens
            && let Some(listener) = sockets.metrics.take()
        {
            tokio::spawn(serve_metrics(listener, self.metrics.clone()));
        }
    }
}

/// Waits until the process, or the role, is told to stop.
#[derive(Clone)]
pub(crate) struct Stop {
    requested: watch::Receiver<bool>,
}

impl Stop {
    /// Stops after a signal, once notice was given, or at the end of the lifeline.
    pub(crate) fn new(
        lifeline: Option<watch::Receiver<bool>>,
        leaving: ShutdownNotice,
    ) -> Result<Self, RoleError> {
        let listen = |kind| signal(kind).map_err(RoleError::System);
        let (mut terminate, mut interrupt) =
            (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        let (sender, requested) = watch::channel(false);
        tokio::spawn(async move {
            let mut ended = std::pin::pin!(async {
                match lifeline {
                    Some(mut lifeline) => drop(lifeline.wait_for(|ended| *ended).await),
                    None => std::future::pending().await,
                }
            });
            let is_requested = tokio::select! {
                _ = terminate.recv() => {
                    tracing::info!("received SIGTERM: stopping");
                    true
                }
                _ = interrupt.recv() => {
                    tracing::info!("received SIGINT: stopping");
                    true
                }
                () = &mut ended => {
                    tracing::info!("the parent process has ended: stopping");
                    false
                }
            };
            if is_requested {
                let again = async {
                    tokio::select! {
                        _ = terminate.recv() => {}
                        _ = interrupt.recv() => {}
                        () = ended => {}
                    }
                };
                leaving.give_notice(again).await;
            }
            sender.send_replace(true);
        });
        Ok(Self { requested })
    }

    /// Stops once this is set.
    pub(crate) fn when(requested: watch::Receiver<bool>) -> Self {
        Self { requested }
    }

    pub(crate) fn is_requested(&self) -> bool {
        *self.requested.borrow()
    }

    pub(crate) async fn requested(&mut self) {
        // If the sender is gone, so is the runtime, or all of the machine.
        drop(self.requested.wait_for(|requested| *requested).await);
    }
}
