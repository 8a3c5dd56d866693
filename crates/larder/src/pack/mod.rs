//! `larder pack`: a packed store and its listeners; what it says of itself; and what can be done with a blob alone.

mod blobs;
mod error;
mod files;
mod packing;
pub(crate) mod status;
mod workers;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use larder_mount::Mounted;
use larder_pack::{Acknowledge, Backend, PackConfig, Packer, Packing, Prices, Sharing, WorkerName};
use larder_s3::{GatewayOptions, S3Service};
use serde::Deserialize;
use tokio::net::TcpListener;

use crate::access_log::{self, AccessLog};
use crate::args::{AckArg, PackArgs, PackServeArgs, PackTool};
use crate::config::{self, Config, LogFormat, Notice};
use crate::kind::{self, Kind};
use crate::metrics::{Metrics, MountMetrics, PackMetrics, serve_metrics};
use crate::serving::{
    ServingError, bind, check_gateway_options, metrics_listener, serve_until_stopped, server_of,
    stop_signal, unless_fatal,
};
use crate::shutdown_notice::ShutdownNotice;
use crate::{announce, credentials, exit, logging};

use error::WorkerError;
use packing::PackingTable;

/// Stands in place of an address for no listener.
const NO_LISTENER: &str = "off";
const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
/// KiB that are read ahead where there is a cache.
const AHEAD_KIB_DEFAULT: u32 = (larder_pack::limits::AHEAD_BYTES_DEFAULT / KIB) as u32;

/// Settings of the file. The same words as those of `larder server`, prices, and what goes together.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    listen: String,
    metrics_listen: Option<String>,
    region: Option<String>,
    domains: Vec<String>,
    html_forms: bool,
    presigned_v2: bool,
    access_log: access_log::Setting,
    stop_notice: Notice,
    log_format: LogFormat,
    prices: PriceTable,
    packing: PackingTable,
}

/// The prices of a thousand requests; those that are left out are as in [`Prices::default`].
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PriceTable {
    currency: Option<String>,
    put: Option<f64>,
    part: Option<f64>,
    get: Option<f64>,
    head: Option<f64>,
    list: Option<f64>,
    delete: Option<f64>,
}

impl From<PriceTable> for Prices {
    fn from(table: PriceTable) -> Self {
        let mut prices = Self::default();
        if let Some(currency) = table.currency {
            prices.currency = currency;
        }
        let of = &mut prices.per_thousand;
        for (price, said) in [
            (&mut of.put, table.put),
            (&mut of.part, table.part),
            (&mut of.get, table.get),
            (&mut of.head, table.head),
            (&mut of.list, table.list),
            (&mut of.delete, table.delete),
        ] {
            *price = said.unwrap_or(*price);
        }
        prices
    }
}

impl Default for Settings {
    fn default() -> Self {
        let config = Config::default();
        Self {
            listen: config.listen,
            metrics_listen: config.metrics_listen,
            region: config.region,
            domains: config.domains,
            html_forms: config.html_forms,
            presigned_v2: config.presigned_v2,
            access_log: config.access_log,
            stop_notice: config.stop_notice,
            log_format: config.log_format,
            prices: PriceTable::default(),
            packing: PackingTable::default(),
        }
    }
}

/// Runs what was asked for.
pub(crate) fn run(args: PackArgs) -> ExitCode {
    match (args.tool, args.serve) {
        (Some(PackTool::Inspect { blob, verify }), _) => blobs::inspect(&blob, verify),
        (Some(PackTool::Status { dir, json }), _) => status::show(&dir, json),
        (Some(PackTool::Extract { blob, dir, keys }), _) => blobs::extract(&blob, &dir, &keys),
        (None, Some(args)) => match serve(&args) {
            Ok(()) => exit::code(exit::OK),
            Err(error) => {
                eprintln!("error: {error}");
                exit::code(error.code())
            }
        },
        (None, None) => {
            eprintln!("error: name a directory and a backend; see larder pack --help");
            exit::code(exit::USAGE)
        }
    }
}

fn serve(args: &PackServeArgs) -> Result<(), WorkerError> {
    let mut settings: Settings =
        args.config.as_deref().map_or_else(|| Ok(Settings::default()), config::read)?;
    if let Some(listen) = &args.listen {
        settings.listen.clone_from(listen);
    }
    if args.metrics_listen.is_some() {
        settings.metrics_listen.clone_from(&args.metrics_listen);
    }
    if settings.listen == NO_LISTENER && args.mount.is_none() {
        return Err(WorkerError::NothingToServe);
    }
    kind::check(&args.dir, Kind::Worker)?;
    logging::start(settings.log_format);
    let options = GatewayOptions {
        region: settings.region.clone(),
        domains: settings.domains.clone(),
        version_2: settings.presigned_v2,
        forms: settings.html_forms,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(ServingError::System)?;
    let prices = std::mem::take(&mut settings.prices).into();
    let packing = std::mem::take(&mut settings.packing).chosen(args.packing)?;
    let config = pack_config(args, prices, packing);
    // Some of the checks need the runtime that they run in.
    runtime.block_on(async { check(args, &config, &options) })?;
    let held = kind::bind(&args.dir, Kind::Worker)?;
    let bound = runtime.block_on(Bound::open(&settings, args))?;
    let accesses = bound.access_log.clone();
    let packer = runtime.block_on(async {
        Ok::<_, WorkerError>(Packer::open(config, Backend::open(&args.backend)?).await?)
    });
    let packer = Arc::new(packer?);
    let outcome = files::start(&packer, args, runtime.handle()).and_then(|mounted| {
        let is_new = held.is_new();
        let serving = listen_and_serve(&packer, mounted.as_ref(), args, bound, options, is_new);
        let outcome = runtime.block_on(serving);
        // Closing files still puts what was written.
        if let Some(mounted) = mounted {
            mounted.close();
        }
        outcome
    });
    // A request that is cut off does the rest of its work before the store closes.
    runtime.shutdown_timeout(Duration::from_secs(1));
    packer.close();
    accesses.close();
    outcome
}

/// Checks settings, backend and mount before anything is made.
fn check(
    args: &PackServeArgs,
    config: &PackConfig,
    options: &GatewayOptions,
) -> Result<(), WorkerError> {
    config.check()?;
    check_gateway_options(options)?;
    Backend::check(&args.backend)?;
    if let Some(backend) = args.backend.strip_prefix("file://") {
        kind::check_backend(Path::new(backend), &args.dir)?;
    }
    files::check(args)
}

/// The listeners of a worker that has not made anything yet.
struct Bound {
    s3: Option<TcpListener>,
    metrics: Option<TcpListener>,
    access_log: Arc<AccessLog>,
    notice: Notice,
}

impl Bound {
    async fn open(settings: &Settings, args: &PackServeArgs) -> Result<Self, WorkerError> {
        let s3 = match settings.listen.as_str() {
            NO_LISTENER => None,
            listen => Some(bind("the S3 address", listen, "--listen").await?),
        };
        let metrics = metrics_listener(settings.metrics_listen.as_deref()).await?;
        let again = args
            .config
            .clone()
            .map(|file| move || config::read::<Settings>(&file).map(|it| it.access_log));
        let access_log = access_log::follow(&settings.access_log, again)?;
        // The store binds it later: a first start finds out now whether it can.
        if let Some(listen) = &args.peer_listen {
            drop(bind("the address for other workers", listen, "--peer-listen").await?);
        }
        Ok(Self { s3, metrics, access_log, notice: settings.stop_notice })
    }
}

fn pack_config(args: &PackServeArgs, prices: Prices, packing: Packing) -> PackConfig {
    let ahead_default = if args.cache_mib == 0 { 0 } else { AHEAD_KIB_DEFAULT };
    let blob_bytes = u64::from(args.blob_mib) * MIB;
    let default = PackConfig::new(&args.dir);
    let packed_default = default.packed_bytes.min(blob_bytes);
    PackConfig {
        blob_bytes,
        flush_timeout: Duration::from_millis(args.flush_ms),
        packed_bytes: args.packed_kib.map_or(packed_default, |kib| u64::from(kib) * KIB),
        spool_bytes: u64::from(args.spool_mib) * MIB,
        packing,
        packing_threads: args.packing_threads.unwrap_or(default.packing_threads),
        acknowledge: match args.ack {
            AckArg::Local => Acknowledge::Local,
            AckArg::Uploaded => Acknowledge::Uploaded,
        },
        repack_below_percent: args.repack_below,
        grace: Duration::from_secs(args.grace_s),
        background_bytes_per_s: u64::from(args.background_mib_s) * MIB,
        backup_interval: Duration::from_secs(args.backup_s),
        accept_loss: args.accept_loss,
        take_over: args.take_over,
        sharing: args.worker.clone().map(|name| sharing(name, args)),
        requests_per_second: args.requests_per_second,
        spend_per_day: args.spend_per_day,
        prices,
        cache_bytes: u64::from(args.cache_mib) * MIB,
        ahead_bytes: u64::from(args.readahead_kib.unwrap_or(ahead_default)) * KIB,
        ..default
    }
}

/// The settings for sharing the backend with other workers.
fn sharing(name: WorkerName, args: &PackServeArgs) -> Sharing {
    let kept = Duration::from_secs(args.superseded_retention_s);
    Sharing {
        listen: args.peer_listen.clone(),
        advertise: args.peer_advertise.clone(),
        look_period: Duration::from_secs(args.poll_interval_s),
        unseen_max: kept / 3,
        kept,
        ..Sharing::new(name)
    }
}

async fn listen_and_serve(
    packer: &Arc<Packer>,
    mounted: Option<&Mounted<Packer>>,
    args: &PackServeArgs,
    bound: Bound,
    options: GatewayOptions,
    is_new: bool,
) -> Result<(), WorkerError> {
    let metrics = Arc::new(Metrics::new(PackMetrics::new(packer.clone())));
    metrics.log_accesses(bound.access_log);
    if let Some(mounted) = mounted {
        metrics.add(Some(Box::new(MountMetrics::new(mounted.tree.clone()))), None);
    }
    let metrics_addr = match bound.metrics {
        Some(listener) => {
            let addr = listener.local_addr().map_err(ServingError::System)?;
            tokio::spawn(serve_metrics(listener, metrics.clone()));
            Some(addr)
        }
        None => None,
    };
    let Some(listener) = bound.s3 else {
        // Nobody asks if it serves.
        let leaving = ShutdownNotice::new(Notice::default(), metrics);
        return Ok(unless_fatal(stop_signal(packer.fatal(), leaving)?, packer.fatal()).await?);
    };
    let file = args.dir.join(credentials::FILE);
    let root = credentials::load(&file).map_err(ServingError::from)?;
    root.warn_if_replaced(&file, is_new);
    let addr = listener.local_addr().map_err(ServingError::System)?;
    let region = options.region().to_owned();
    let service = S3Service::new(packer.clone(), root.keys.clone(), options);
    let service = service.map_err(ServingError::from)?;
    let service = service.with_forwarder(Arc::new(workers::OtherWorkers(packer.clone())));
    let leaving = ShutdownNotice::new(bound.notice, metrics.clone());
    let server = server_of(service, metrics);
    workers::answer_them(packer, server.clone());
    announce::serves(addr, metrics_addr, &root, &region, &args.dir);
    Ok(serve_until_stopped(listener, server, (packer.fatal(), leaving)).await?)
}
