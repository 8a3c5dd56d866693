//! Prometheus' view of the server: requests, latencies, log and disk, queues, space.

use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use larder_roles::meta::Meta;
use larder_roles::{Proxy, Store, data::DataServer};
use larder_s3::ServerHooks;
use larder_types::limits::BLOCK_BYTES;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Scrapes answered at once; more wait for a connection.
const SCRAPES_MAX: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    op: &'static str,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OpLabels {
    op: &'static str,
}

type Histograms = Family<OpLabels, Histogram, fn() -> Histogram>;

/// All metrics of a server.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    seconds: Histograms,
    bytes_in: Counter,
    bytes_out: Counter,
    meta: Arc<Meta>,
    data: Arc<DataServer>,
    proxy: Arc<Proxy>,
}

impl Metrics {
    /// Metrics of an open store.
    pub(crate) fn new(store: &Store) -> Self {
        let mut registry = Registry::with_prefix("larder");
        let requests = Family::default();
        let seconds: Histograms =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.000_05, 2.0, 18)));
        let (bytes_in, bytes_out) = (Counter::default(), Counter::default());
        registry.register("requests", "S3 requests, by operation and status", requests.clone());
        let help = "Seconds from a request's head to its last byte";
        registry.register("request_seconds", help, seconds.clone());
        registry.register("request_bytes_in", "Body bytes announced by clients", bytes_in.clone());
        registry.register("request_bytes_out", "Body bytes sent to clients", bytes_out.clone());
        Self {
            registry,
            requests,
            seconds,
            bytes_in,
            bytes_out,
            meta: store.meta().clone(),
            data: store.data().clone(),
            proxy: store.proxy().clone(),
        }
    }

    /// The text that Prometheus reads.
    fn text(&self) -> Result<String, std::fmt::Error> {
        let mut own = String::new();
        prometheus_client::encoding::text::encode(&mut own, &self.registry)?;
        let end = own.rfind("# EOF").unwrap_or(own.len());
        own.truncate(end);
        self.roles(&mut own)?;
        own.push_str("# EOF\n");
        Ok(own)
    }

    /// What the roles count themselves, read when asked for.
    fn roles(&self, out: &mut String) -> std::fmt::Result {
        let log = self.meta.log_counters();
        let disk = self.data.counters();
        let alarms = self.proxy.alarms();
        let counters: [(&str, &str, f64); 10] = [
            ("log_groups", "Groups of ops written to the log and synced", log.groups as f64),
            ("log_ops", "Ops written to the log", log.ops as f64),
            ("log_bytes", "Bytes of log that are synced", log.synced as f64),
            (
                "log_sync_seconds",
                "Seconds spent writing and syncing the log",
                log.sync_ns as f64 / 1e9,
            ),
            (
                "disk_groups",
                "Groups of commands written to the disk and synced",
                disk.groups as f64,
            ),
            ("disk_commands", "Commands carried out by the disk", disk.commands as f64),
            ("disk_bytes", "Bytes of data written to the disk", disk.bytes as f64),
            (
                "disk_sync_seconds",
                "Seconds spent writing and syncing data",
                disk.group_ns as f64 / 1e9,
            ),
            ("bad_copies", "Copies found with wrong checksums", load(&alarms.bad_copies)),
            ("lost_reads", "Reads that found no good copy", load(&alarms.lost_reads)),
        ];
        for (name, help, value) in counters {
            writeln!(out, "# HELP larder_{name} {help}.\n# TYPE larder_{name} counter")?;
            writeln!(out, "larder_{name}_total {value}")?;
        }
        let mut tail = 0;
        let (mut open, mut doubt, mut waiting) = (0, 0, 0);
        let mut space = larder_roles::SpaceUse::default();
        for pg in self.meta.pg_ids() {
            let gauges = self.meta.gauges(pg);
            tail += gauges.tail_ops;
            open += gauges.open_puts;
            doubt += gauges.in_doubt;
            waiting += gauges.waiting_calls;
            space.total += gauges.space.total;
            space.free += gauges.space.free;
            space.waiting += gauges.space.waiting;
            space.withheld += gauges.space.withheld;
        }
        let block = f64::from(BLOCK_BYTES);
        let used = space.total - space.free - space.withheld - space.waiting;
        let gauges: [(&str, &str, f64); 15] = [
            (
                "disk_broken",
                "1 when the data disk failed and takes nothing any more",
                f64::from(u8::from(self.data.is_broken())),
            ),
            (
                "log_buffered_bytes",
                "Bytes that wait to be written to the log",
                log.buffered_bytes as f64,
            ),
            ("log_disk_bytes", "Bytes that the log takes on disk", log.disk_bytes as f64),
            (
                "disk_queued_commands",
                "Commands that wait for the disk",
                disk.queued_commands as f64,
            ),
            ("disk_queued_bytes", "Bytes of data that wait for the disk", disk.queued_bytes as f64),
            ("disk_free_bytes", "Bytes free in the file system", disk.free_bytes as f64),
            (
                "index_disk_bytes",
                "Bytes that the index takes on disk",
                self.meta.index_bytes() as f64,
            ),
            ("unapplied_ops", "Ops that the index does not show yet", tail as f64),
            ("open_puts", "Puts without an outcome", open as f64),
            ("puts_in_doubt", "Puts being resolved", doubt as f64),
            ("waiting_calls", "Calls that wait in placement groups", waiting as f64),
            ("space_used_bytes", "Bytes of blocks that hold data", used as f64 * block),
            (
                "space_waiting_bytes",
                "Bytes freed that wait for the floors",
                space.waiting as f64 * block,
            ),
            ("space_free_bytes", "Bytes free in volumes", space.free as f64 * block),
            (
                "space_withheld_bytes",
                "Bytes free in volumes for which the disk had no room",
                space.withheld as f64 * block,
            ),
        ];
        for (name, help, value) in gauges {
            writeln!(out, "# HELP larder_{name} {help}.\n# TYPE larder_{name} gauge")?;
            writeln!(out, "larder_{name} {value}")?;
        }
        Ok(())
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let mut response = if request.uri().path() == "/metrics" {
            match self.text() {
                Ok(text) => Response::new(Full::from(text)),
                Err(_) => status(StatusCode::INTERNAL_SERVER_ERROR),
            }
        } else {
            status(StatusCode::NOT_FOUND)
        };
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        if let Ok(kind) = kind.parse() {
            response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
        }
        response
    }
}

fn load(counter: &AtomicU64) -> f64 {
    counter.load(Ordering::Relaxed) as f64
}

fn status(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(format!("{status}; metrics are at /metrics\n")));
    *response.status_mut() = status;
    response
}

impl ServerHooks for Metrics {
    fn ready(&self) -> bool {
        self.meta.fatal().borrow().is_none() && !self.data.is_broken()
    }

    fn done(&self, op: &'static str, status: u16, micros: u64, bytes_in: u64, bytes_out: u64) {
        self.requests.get_or_create(&RequestLabels { op, status }).inc();
        self.seconds.get_or_create(&OpLabels { op }).observe(micros as f64 / 1e6);
        self.bytes_in.inc_by(bytes_in);
        self.bytes_out.inc_by(bytes_out);
    }
}

/// Answers scrapes until the process ends.
pub(crate) async fn serve_metrics(listener: TcpListener, metrics: Arc<Metrics>) {
    let places = Arc::new(Semaphore::new(SCRAPES_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a scrape could not be accepted");
                tokio::task::yield_now().await;
                continue;
            }
        };
        let metrics = metrics.clone();
        tokio::spawn(async move {
            let _place = place;
            let answer = service_fn(|request| {
                let response = metrics.answer(&request);
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), answer);
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a scrape broke off");
            }
        });
    }
}
