//! What is around a role: when it is to stop, where it listens, who shows its metrics. A role in a process of its own has
//! all of that for itself; the roles of one machine share it.

use std::sync::Arc;
use std::time::Duration;

use larder_net::{Ear, Port};
use larder_roles::managers::ManagersClient;
use larder_roles::quorum::Manager;
use larder_roles::renewal::Standing;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::{RoleConfig, RoleError, START_PATIENCE, bind};
use crate::metrics::{Metrics, RoleMetrics, serve_metrics};

/// Who hears of a role that has begun.
pub(crate) type Greeter = Box<dyn FnOnce(Greeted<'_>) + Send + Sync>;

/// A role that has begun.
pub(crate) enum Greeted<'a> {
    /// A manager that runs.
    Manager(&'a Manager),
    /// Another role, which follows the managers; the map may be still to come.
    Member(&'a Arc<ManagersClient>),
}

/// See the module's head.
pub(crate) struct Around {
    pub(super) stop: Stop,
    /// The port of the machine, if its roles share one.
    pub(super) port: Option<Arc<Port>>,
    /// The metrics of all roles of the process.
    pub(super) metrics: Arc<Metrics>,
    /// Whether this role is to open the address for metrics itself.
    pub(super) shows_metrics: bool,
    /// For how long it waits for managers; as long as it takes, if for no time.
    pub(super) patience: Option<Duration>,
    pub(super) greeter: Option<Greeter>,
}

impl Around {
    /// Of a role in a process of its own.
    pub(crate) fn alone(stop: Stop) -> Self {
        let metrics = Arc::new(Metrics::of_none());
        let patience = Some(START_PATIENCE);
        Self { stop, port: None, metrics, shows_metrics: true, patience, greeter: None }
    }

    /// Of a role beside others, at one port. It waits for managers as long as it takes: they may be roles of machines
    /// that are still to start.
    pub(crate) fn shared(
        stop: Stop,
        port: Arc<Port>,
        metrics: Arc<Metrics>,
        greeter: Option<Greeter>,
    ) -> Self {
        Self { stop, port: Some(port), metrics, shows_metrics: false, patience: None, greeter }
    }

    /// Where it listens for the other servers, and the address by which they reach it.
    pub(super) async fn listen(&self, config: &RoleConfig) -> Result<(Ear, String), RoleError> {
        if let Some(port) = &self.port {
            return Ok((port.clone().into(), config.listen.clone()));
        }
        let unusable =
            |source| RoleError::Listen { address: config.listen.clone(), field: "listen", source };
        let socket = TcpListener::bind(&config.listen).await.map_err(unusable)?;
        let bound = socket.local_addr().map_err(unusable)?;
        // A name stays a name; a port that the system chose is told.
        let address = match config.listen.rsplit_once(':') {
            Some((host, "0")) => format!("{host}:{}", bound.port()),
            _ => config.listen.clone(),
        };
        Ok((socket.into(), address))
    }

    pub(super) fn greet(&mut self, greeted: Greeted<'_>) {
        if let Some(greeter) = self.greeter.take() {
            greeter(greeted);
        }
    }

    /// Shows what the role and its connections count, and how long its certificate is good for.
    pub(super) async fn show(
        &self,
        config: &RoleConfig,
        roles: Option<Box<dyn RoleMetrics>>,
        (standing, connections): (&Arc<Standing>, &Arc<larder_net::Metrics>),
    ) -> Result<(), RoleError> {
        self.metrics.add(roles, Some(standing.clone()));
        self.metrics.add_connections(connections.clone());
        if self.shows_metrics && config.metrics_listen != "off" {
            let listener = bind(&config.metrics_listen, "metrics_listen").await?;
            tokio::spawn(serve_metrics(listener, self.metrics.clone()));
        }
        Ok(())
    }
}

/// Waits until the process, or the role, is told to stop.
#[derive(Clone)]
pub(crate) struct Stop {
    told: watch::Receiver<bool>,
}

impl Stop {
    /// When a signal comes, or the lifeline ends.
    pub(crate) fn new(lifeline: Option<watch::Receiver<bool>>) -> Result<Self, RoleError> {
        let listen = |kind| signal(kind).map_err(RoleError::System);
        let (mut terminate, mut interrupt) =
            (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        let (tell, told) = watch::channel(false);
        tokio::spawn(async move {
            let ended = async {
                match lifeline {
                    Some(mut lifeline) => drop(lifeline.wait_for(|ended| *ended).await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = terminate.recv() => tracing::info!("SIGTERM: the server stops"),
                _ = interrupt.recv() => tracing::info!("SIGINT: the server stops"),
                () = ended => tracing::info!("whoever started this server is gone: it stops"),
            }
            tell.send_replace(true);
        });
        Ok(Self { told })
    }

    /// When this is set.
    pub(crate) fn when(told: watch::Receiver<bool>) -> Self {
        Self { told }
    }

    pub(crate) async fn told(&mut self) {
        // If whoever tells is gone, so is the runtime, or all of the machine.
        drop(self.told.wait_for(|told| *told).await);
    }
}
