//! The floor server: what requests cost when nothing is stored.
//!
//! A server's CPU per request is judged against this one in the same run. It is
//! `larder server`'s own face over a store that keeps nothing, so it can neither be faster by doing
//! less nor drift away from what it is the floor of. [`serve_bare`] is the floor's own
//! floor: the HTTP stack alone.

mod bare;
mod file;
mod store;

use std::future::Future;
use std::sync::Arc;

use larder_s3::{Credentials, FaceOptions, S3Service, ServerOptions};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::BenchError;
use crate::args::FloorArgs;
use file::FloorFile;
use store::FloorStore;

const ACCESS_VARIABLE: &str = "LARDER_ROOT_ACCESS_KEY";
const SECRET_VARIABLE: &str = "LARDER_ROOT_SECRET_KEY";

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// [`BenchError`] if it cannot begin.
pub fn run(args: &FloorArgs) -> Result<(), BenchError> {
    let root = match args.bare {
        true => None,
        false => Some(root_credentials()?),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(BenchError::System)?;
    runtime.block_on(async {
        let failed = |source| BenchError::Listen { address: args.listen, source };
        let listener = larder_s3::listen(&args.listen.to_string()).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(BenchError::System)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(BenchError::System)?;
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

fn root_credentials() -> Result<Credentials, BenchError> {
    let required = |name| {
        std::env::var(name).map_err(|_| {
            BenchError::usage(name, "not set: choose the key that clients are to sign with")
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
/// [`BenchError`] if it cannot begin.
pub async fn serve(
    listener: TcpListener,
    root: Credentials,
    shutdown: impl Future<Output = ()>,
) -> Result<(), BenchError> {
    let store = Arc::new(FloorStore::new().map_err(BenchError::System)?);
    let service = S3Service::new(store, root, FaceOptions::default())
        .map_err(|error| BenchError::usage(ACCESS_VARIABLE, error.to_string()))?;
    larder_s3::serve(listener, service, Arc::new(()), ServerOptions::default(), shutdown).await;
    Ok(())
}

/// Serves HTTP alone on `listener` until `shutdown` completes.
///
/// # Errors
/// [`BenchError`] if it cannot begin.
pub async fn serve_bare(
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), BenchError> {
    let file = Arc::new(FloorFile::new().map_err(BenchError::System)?);
    tokio::select! {
        () = bare::serve(listener, file) => {}
        () = shutdown => {}
    }
    Ok(())
}
