//! All that the commands that serve S3 have in common: the listeners that they bind, the limits of their servers, and the end by a
//! signal.
//!
//! # Not here
//!
//! Stores. No role and no command is named: they are above.

use std::sync::Arc;
use std::time::Duration;

use larder_s3::{GatewayOptions, OptionsError, S3Service, Server, ServerOptions};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::credentials::{self, CredentialsError};
use crate::exit;
use crate::metrics::Metrics;
use crate::shutdown_notice::ShutdownNotice;

/// Requests may take this long to finish after SIGTERM; what is left of 10 s closes the store.
const DRAIN_MAX: Duration = Duration::from_secs(8);
/// The flag that sets the address of /metrics, with its value for no such listener.
const METRICS_FLAG: &str = "--metrics-listen, or `off`";
/// Default address of /metrics.
pub(crate) const METRICS_DEFAULT: &str = "127.0.0.1:9001";

/// Errors with which nothing is served, or no more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServingError {
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error(transparent)]
    Options(#[from] OptionsError),
    #[error("{what} {addr:?} cannot be used: {source}; give another with {flag}")]
    Listen { what: &'static str, addr: String, flag: &'static str, source: std::io::Error },
    #[error("the system does not let the server run: {0}")]
    System(std::io::Error),
    #[error("the server cannot go on: {0}")]
    Fatal(String),
}

impl ServingError {
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Credentials(error) => error.code(),
            Self::Options(_) => exit::USAGE,
            Self::Listen { .. } | Self::System(_) => exit::CANNOT_START,
            Self::Fatal(_) => exit::EXIT_RESTART,
        }
    }
}

/// Checks what a face is made with, and the keys of the environment, before anything is made.
pub(crate) fn check_gateway_options(options: &GatewayOptions) -> Result<(), ServingError> {
    options.check()?;
    credentials::given()?;
    Ok(())
}

/// The server of a service, which does not listen yet.
pub(crate) fn server_of(service: S3Service, metrics: Arc<Metrics>) -> Server<Metrics> {
    Server::new(service, metrics, server_options(DRAIN_MAX))
}

/// The limits of a server in this process.
pub(crate) fn server_options(drain_max: Duration) -> ServerOptions {
    let files = larder_env::open_files::allowed();
    let options = ServerOptions { drain_max, ..ServerOptions::within_files(files) };
    let connections = options.connections_max;
    if connections < larder_s3::limits::CONNECTIONS_MAX {
        tracing::warn!(files, connections, "the limit of open files also limits connections");
    }
    options
}

/// Serves until a signal comes or the store cannot go on.
pub(crate) async fn serve_until_stopped(
    listener: TcpListener,
    server: Server<Metrics>,
    (fatal, leaving): (watch::Receiver<Option<String>>, ShutdownNotice),
) -> Result<(), ServingError> {
    let shutdown = stop_signal(fatal.clone(), leaving)?;
    unless_fatal(server.serve(listener, shutdown), fatal).await
}

/// Ends when a signal has come and notice was given, or when the store cannot go on.
pub(crate) fn stop_signal(
    mut fatal: watch::Receiver<Option<String>>,
    leaving: ShutdownNotice,
) -> Result<impl Future<Output = ()> + Send, ServingError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(ServingError::System)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServingError::System)?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("received SIGTERM: finishing requests under way"),
            _ = interrupt.recv() => tracing::info!("received SIGINT: finishing requests under way"),
            _ = fatal.wait_for(Option::is_some) => return,
        }
        let again = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = fatal.wait_for(Option::is_some) => {}
            }
        };
        leaving.give_notice(again).await;
    })
}

/// Waits for `serving`, unless the store cannot go on.
pub(crate) async fn unless_fatal<T>(
    serving: impl Future<Output = T>,
    mut died: watch::Receiver<Option<String>>,
) -> Result<(), ServingError> {
    tokio::select! {
        biased;
        reason = died.wait_for(Option::is_some) => {
            let reason = reason.ok().and_then(|reason| reason.clone()).unwrap_or_default();
            Err(ServingError::Fatal(reason))
        }
        _drained = serving => Ok(()),
    }
}

pub(crate) async fn bind(
    what: &'static str,
    addr: &str,
    flag: &'static str,
) -> Result<TcpListener, ServingError> {
    larder_s3::listen(addr).await.map_err(|source| ServingError::Listen {
        what,
        addr: addr.to_owned(),
        flag,
        source,
    })
}

pub(crate) async fn metrics_listener(
    chosen: Option<&str>,
) -> Result<Option<TcpListener>, ServingError> {
    match chosen {
        Some("off") => Ok(None),
        Some(addr) => bind("the metrics address", addr, METRICS_FLAG).await.map(Some),
        None => bind("the metrics address", METRICS_DEFAULT, METRICS_FLAG).await.map(Some),
    }
}
