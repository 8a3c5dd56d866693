//! `larder server`: all roles of one node, and its listeners.

mod life;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use larder_link::{LinkError, RegionEndpoint};
use larder_roles::proxy::{coalesce_pieces, expire_uploads};
use larder_roles::regions::Regions;
use larder_roles::{Store, StoreConfig, StoreError};
use larder_s3::S3Service;
use larder_types::RegionId;
use tokio::net::TcpListener;

use crate::access_log::{self, AccessLog, AccessLogError};
use crate::args::ServerArgs;
use crate::config::{Config, ConfigError, background, check_device, store_config};
use crate::credentials::{self, Root};
use crate::kind::{self, Kind, KindError};
use crate::metrics::{Metrics, StoreMetrics, serve_metrics};
use crate::node::NodeError;
use crate::root_keys::StoreKeys;
use crate::serving::{
    ServingError, bind, check_gateway_options, metrics_listener, serve_until_stopped, server_of,
};
use crate::shutdown_notice::ShutdownNotice;
use crate::store_status::{Observer, SOCKET, Socket};
use crate::{announce, exit, logging, node};
use life::LifeError;

/// The command and flag that set the address for other regions.
const REGION_FLAG: &str = "larder region create|join --listen";

/// Errors with which the server does not start, or stops.
#[derive(Debug, thiserror::Error)]
enum ServerError {
    #[error(transparent)]
    Serving(#[from] ServingError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Kind(#[from] KindError),
    #[error(transparent)]
    Node(Box<NodeError>),
    #[error("{0} is of use with --peer alone")]
    WithoutPeers(&'static str),
    #[error(transparent)]
    AccessLog(#[from] AccessLogError),
    #[error(transparent)]
    Region(#[from] LinkError),
    #[error(transparent)]
    Life(#[from] LifeError),
}

impl ServerError {
    fn code(&self) -> u8 {
        match self {
            Self::Serving(error) => error.code(),
            Self::Node(error) => error.code(),
            Self::Config(_) | Self::Store(StoreError::Config { .. }) | Self::WithoutPeers(_) => {
                exit::USAGE
            }
            _ => exit::CANNOT_START,
        }
    }
}

/// Runs the server until it is told to stop.
pub(crate) fn run(args: &ServerArgs) -> ExitCode {
    match start(args) {
        Ok(()) => exit::code(exit::OK),
        Err(error) => {
            eprintln!("error: {error}");
            exit::code(error.code())
        }
    }
}

fn start(args: &ServerArgs) -> Result<(), ServerError> {
    let mut config = Config::load(args.config.as_deref())?;
    if let Some(listen) = &args.listen {
        config.listen.clone_from(listen);
    }
    if args.metrics_listen.is_some() {
        config.metrics_listen.clone_from(&args.metrics_listen);
    }
    if !args.peers.is_empty() {
        config.peers.clone_from(&args.peers);
    }
    config.me = args.me.clone().or(config.me);
    config.secret_file = args.secret_file.clone().or(config.secret_file);
    logging::start(config.log_format);
    if !config.peers.is_empty() {
        return node::start(&args.dir, &config).map_err(|error| ServerError::Node(Box::new(error)));
    }
    kind::check(&args.dir, Kind::Store)?;
    if config.me.is_some() || config.secret_file.is_some() {
        let field = if config.me.is_some() { "--me" } else { "--secret-file" };
        return Err(ServerError::WithoutPeers(field));
    }
    check_gateway_options(&config.face())?;
    if kind::found(&args.dir)?.is_none() {
        check_device(&config.data)?;
    }
    let region_endpoint = RegionEndpoint::open(&args.dir)?;
    life::check(&args.dir, region_endpoint.as_deref())?;
    let region =
        region_endpoint.as_ref().map_or(RegionId::OWN, |region_endpoint| region_endpoint.number());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(ServingError::System)?;
    let held = kind::bind(&args.dir, Kind::Store)?;
    let bound = runtime.block_on(Bound::open(&config, region_endpoint))?;
    let accesses = bound.access_log.clone();
    let store = Store::open(&StoreConfig { region, ..store_config(&args.dir, &config) })?;
    let file = args.dir.join(credentials::FILE);
    let root = credentials::load(&file).map_err(ServingError::from)?;
    root.warn_if_replaced(&file, held.is_new());
    let outcome = runtime.block_on(listen_and_serve(&store, &config, root, bound, &args.dir));
    // A request that is cut off does the rest of its work before the store closes.
    runtime.shutdown_timeout(Duration::from_secs(1));
    // A store that cannot go on is left as it is: the next start recovers it.
    if !matches!(outcome, Err(ServerError::Serving(ServingError::Fatal(_)))) {
        store.close();
        tracing::info!("stopped: all acknowledged writes are on disk");
    }
    // Behind the store: a file that hangs may take the time that is left, and no more than lines is lost.
    accesses.close();
    outcome
}

/// The listeners of a server that has not made anything yet.
struct Bound {
    s3: TcpListener,
    metrics: Option<TcpListener>,
    access_log: Arc<AccessLog>,
    /// If the store is a region.
    region: Option<(Arc<RegionEndpoint>, TcpListener)>,
}

impl Bound {
    async fn open(
        config: &Config,
        region_endpoint: Option<Arc<RegionEndpoint>>,
    ) -> Result<Self, ServerError> {
        let s3 = bind("the S3 address", &config.listen, "--listen").await?;
        let metrics = metrics_listener(config.metrics_listen.as_deref()).await?;
        let access_log = access_log::follow(&config.access_log, config.access_log_again())?;
        let region = match region_endpoint {
            Some(region_endpoint) => {
                let listen = region_endpoint.members().borrow().own.listen.clone();
                let socket = bind("the address for other regions", &listen, REGION_FLAG).await?;
                Some((region_endpoint, socket))
            }
            None => None,
        };
        Ok(Self { s3, metrics, access_log, region })
    }
}

async fn listen_and_serve(
    store: &Store,
    config: &Config,
    root: Root,
    bound: Bound,
    dir: &Path,
) -> Result<(), ServerError> {
    let Bound { s3: listener, metrics: metrics_listener, access_log, region } = bound;
    let addr = listener.local_addr().map_err(ServingError::System)?;
    let shown = StoreMetrics::new(store);
    // Before anybody can put anything here that it would not tell of.
    let regions = match region {
        Some((region_endpoint, socket)) => {
            let started = Regions::start(region_endpoint, store.proxy(), socket, dir.to_owned());
            let regions = Arc::new(started.map_err(ServingError::System)?);
            shown.show(regions.clone());
            Some(regions)
        }
        None => None,
    };
    if let Some(regions) = &regions {
        regions.clocks_are_known().await;
    }
    let metrics = Arc::new(Metrics::new(shown));
    metrics.log_accesses(access_log);
    let keys = Arc::new(StoreKeys::new(&root, dir.join(credentials::FILE)));
    let service = S3Service::new(store.proxy().clone(), keys.keys(), config.face());
    let service = service.map_err(ServingError::from)?;
    let metrics_addr = match metrics_listener {
        Some(listener) => {
            let addr = listener.local_addr().map_err(ServingError::System)?;
            tokio::spawn(serve_metrics(listener, metrics.clone()));
            Some(addr)
        }
        None => None,
    };
    store.start_background(&background(config.background_mib_per_s, config.scrub_within));
    tokio::spawn(coalesce_pieces(store.proxy().clone()));
    if let Some(age) = config.upload_life.time() {
        tokio::spawn(expire_uploads(store.proxy().clone(), age));
    }
    let observer = Arc::new(Observer::new(store, metrics.clone(), dir, &config.data));
    metrics.set_state_source(Arc::new(observer.clone()));
    match Socket::open(dir) {
        Ok(socket) => drop(tokio::spawn(socket.serve(observer.clone(), keys.clone()))),
        Err(error) => {
            tracing::warn!(%error, socket = SOCKET, "`larder status` cannot reach this server")
        }
    }
    // A command that found no socket has left it to this start to see what it wrote.
    keys.settle();
    tokio::spawn(observer.watch());
    announce::serves(addr, metrics_addr, &root, config.face().region(), dir);
    let leaving = ShutdownNotice::new(config.stop_notice, metrics.clone());
    let server = server_of(service, metrics);
    let served = serve_until_stopped(listener, server, (store.meta().fatal(), leaving)).await;
    if let Some(regions) = regions {
        regions.stop();
    }
    Ok(served?)
}
