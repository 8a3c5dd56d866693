//! The floor server: what requests cost when nothing is stored.
//!
//! A server's CPU per request is judged against this one in the same run. It is
//! `larder server`'s own face over a store that keeps nothing, so it can neither be faster by doing
//! less nor drift away from what it is the floor of. [`serve_bare`] is the floor's own
//! floor: the HTTP stack alone.

#![deny(unsafe_code)]

mod bare;
mod file;
mod store;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use larder_s3::{Credentials, GatewayOptions, S3Service, ServerOptions};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use file::FloorFile;
use store::FloorStore;

const ACCESS_VARIABLE: &str = "LARDER_ROOT_ACCESS_KEY";
const SECRET_VARIABLE: &str = "LARDER_ROOT_SECRET_KEY";

/// Errors with which the floor server does not begin.
#[derive(Debug, thiserror::Error)]
pub enum FloorError {
    /// Set the variable of the environment, or another value.
    #[error("{variable}: {reason}")]
    Keys {
        /// The variable.
        variable: &'static str,
        /// The fault, and what would be right.
        reason: String,
    },
    /// Take another address to listen on, or one that is free.
    #[error("--listen {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// Free resources of this machine.
    #[error("the system refuses what the floor server needs: {0}")]
    System(io::Error),
}

/// Serves at an address until SIGTERM or SIGINT: S3 with the keys of the environment, or if `bare` HTTP alone.
///
/// # Errors
/// [`FloorError`] if it cannot begin.
pub fn run(listen: SocketAddr, bare: bool) -> Result<(), FloorError> {
    let root = match bare {
        true => None,
        false => Some(root_credentials()?),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(FloorError::System)?;
    runtime.block_on(async {
        let failed = |source| FloorError::Listen { address: listen, source };
        let listener = larder_s3::listen(&listen.to_string()).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(FloorError::System)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(FloorError::System)?;
        let shutdown = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        eprintln!("the floor server is on http://{address}");
        match root {
            Some(root) => serve(listener, root, shutdown).await,
            None => serve_bare(listener, shutdown).await,
        }
    })
}

fn root_credentials() -> Result<Credentials, FloorError> {
    let required = |name| {
        std::env::var(name).map_err(|_| {
            let reason = "not set: choose the key that clients are to sign with".to_owned();
            FloorError::Keys { variable: name, reason }
        })
    };
    Ok(Credentials {
        access_key: required(ACCESS_VARIABLE)?,
        secret_key: required(SECRET_VARIABLE)?,
    })
}

/// Serves S3 on `listener` until `shutdown` completes.
///
/// # Errors
/// [`FloorError`] if it cannot begin.
pub async fn serve(
    listener: TcpListener,
    root: Credentials,
    shutdown: impl Future<Output = ()>,
) -> Result<(), FloorError> {
    let store = Arc::new(FloorStore::new().map_err(FloorError::System)?);
    let service = S3Service::new(store, root, GatewayOptions::default()).map_err(|error| {
        FloorError::Keys { variable: ACCESS_VARIABLE, reason: error.to_string() }
    })?;
    larder_s3::serve(listener, service, Arc::new(()), ServerOptions::default(), shutdown).await;
    Ok(())
}

/// Serves HTTP alone on `listener` until `shutdown` completes.
///
/// # Errors
/// [`FloorError`] if it cannot begin.
pub async fn serve_bare(
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), FloorError> {
    let file = Arc::new(FloorFile::new().map_err(FloorError::System)?);
    tokio::select! {
        () = bare::serve(listener, file) => {}
        () = shutdown => {}
    }
    Ok(())
}
