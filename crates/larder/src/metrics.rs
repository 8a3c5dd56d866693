//! Prometheus' view of a process that serves S3: requests and latencies, and what its roles count.

mod appends;
mod background;
mod bucket_requests;
mod buckets;
mod connections;
mod data;
mod disk;
mod exposition;
mod groups;
mod manager;
mod meta;
mod mount;
mod operations;
mod pack;
mod process;
mod proxy;
mod reads;
mod regions;
mod space;
mod store;

use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use larder_roles::breakdown::ClientOps;
use larder_roles::renewal::CertificateExpiry;
use larder_s3::{ClusterHealth, FinishedRequest, ServerHooks};
use larder_types::BucketName;
use parking_lot::RwLock;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::access_log::AccessLog;
use crate::minio;
use bucket_requests::BucketRequests;
pub(crate) use data::DataMetrics;
use exposition::Form;
pub(crate) use manager::ManagerMetrics;
pub(crate) use meta::MetaMetrics;
pub(crate) use mount::MountMetrics;
pub(crate) use pack::PackMetrics;
pub(crate) use proxy::ProxyMetrics;
pub(crate) use store::StoreMetrics;

/// Name without prefix, help, value.
pub(crate) type Metric = (&'static str, &'static str, f64);

/// Help of the counter of uploads that expired, wherever the proxy runs.
const EXPIRED: &str = "Uploads that were aborted, as nobody had ended them for long";
const PIECES_AHEAD: &str =
    "Pieces of large objects that are read ahead of what their clients have taken";
/// The same of changes that wait for other regions.
const WAITS_MET: &str =
    "Changes that were answered once as many regions had them as their bucket asks for";
const WAITS_UNMET: &str = "Changes that fewer regions had in time than their bucket asks for";
/// From this status on a request failed by the server's fault, or was turned away.
const FAILED_FROM: u16 = 500;
/// But for this one: the client asked for what there is not.
const NOT_IMPLEMENTED: u16 = 501;
/// Connections for scrapes at once; one more takes the place of the oldest.
const SCRAPES_MAX: usize = 32;
/// Time that a scrape has to send its head.
const SCRAPE_HEAD_MAX: Duration = Duration::from_secs(5);
/// Time that it has in all.
const SCRAPE_MAX: Duration = Duration::from_secs(30);
/// Pause after a failed `accept`, which fails while the process has no free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

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
    bucket_requests: BucketRequests,
    /// Operations of clients that move bytes of objects.
    operations: ClientOps,
    /// Requests that ended, and those of them that failed or were turned away.
    ended: AtomicU64,
    failed: AtomicU64,
    roles: RwLock<Vec<Box<dyn RoleMetrics>>>,
    /// Of each server of the process that has a certificate.
    certificate_expiries: RwLock<Vec<Arc<CertificateExpiry>>>,
    access_log: OnceLock<Arc<AccessLog>>,
    state: OnceLock<Arc<dyn State>>,
    /// The process is about to stop, and says so in `/readyz`.
    is_leaving: AtomicBool,
    /// Somebody was told that it serves, and may still go by that.
    was_ready: AtomicBool,
    /// Of the connections of each of them.
    connections: RwLock<Vec<Arc<larder_net::Metrics>>>,
    /// Seconds since 1970.
    began_s: f64,
}

/// The counts that the roles of this process keep themselves.
pub(crate) trait RoleMetrics: Send + Sync + 'static {
    /// True if they serve.
    fn is_ready(&self) -> bool;

    /// A word on what they do not do, though they serve: they take no changes then.
    fn caveat(&self) -> Option<&'static str> {
        None
    }

    /// True if they serve clients by S3.
    fn has_clients(&self) -> bool {
        false
    }

    /// The state of the cluster that they serve, if they serve one.
    fn cluster(&self) -> Option<ClusterHealth> {
        None
    }

    /// All buckets that there are, if it knows.
    fn buckets(&self) -> Option<BTreeSet<BucketName>> {
        None
    }

    /// Name without prefix, help and value of what only grows.
    fn counters(&self) -> Vec<Metric>;

    /// The same of what rises and falls.
    fn gauges(&self) -> Vec<Metric>;

    /// Writes metrics that have labels.
    ///
    /// # Errors
    /// If it cannot be written.
    fn write_labelled(&self, _out: &mut String) -> std::fmt::Result {
        Ok(())
    }
}

/// A state that is told as `larder status --json` prints it.
pub(crate) trait State: Send + Sync + 'static {
    /// The JSON; `None` if it cannot be had.
    fn state_json(&self) -> BoxFuture<'_, Option<Bytes>>;
}

fn write_roles(roles: &dyn RoleMetrics, out: &mut String) -> std::fmt::Result {
    for (name, help, value) in roles.counters() {
        writeln!(out, "# HELP larder_{name} {help}.\n# TYPE larder_{name} counter")?;
        writeln!(out, "larder_{name}_total {value}")?;
    }
    for (name, help, value) in roles.gauges() {
        write_gauge(out, name, help, value)?;
    }
    roles.write_labelled(out)
}

fn write_gauge(out: &mut String, name: &str, help: &str, value: f64) -> std::fmt::Result {
    writeln!(out, "# HELP larder_{name} {help}.\n# TYPE larder_{name} gauge")?;
    writeln!(out, "larder_{name} {value}")
}

fn write_counter(out: &mut String, name: &str, help: &str, value: u64) -> std::fmt::Result {
    writeln!(out, "# HELP larder_{name} {help}.\n# TYPE larder_{name} counter")?;
    writeln!(out, "larder_{name}_total {value}")
}

impl Metrics {
    /// Metrics of a process with these roles.
    pub(crate) fn new(roles: impl RoleMetrics) -> Self {
        let metrics = Self::of_none();
        metrics.add(Some(Box::new(roles)), None);
        metrics
    }

    /// Adds the metrics of another role of the process. No two roles count the same things.
    pub(crate) fn add(
        &self,
        roles: Option<Box<dyn RoleMetrics>>,
        certificate_expiry: Option<Arc<CertificateExpiry>>,
    ) {
        self.roles.write().extend(roles);
        self.certificate_expiries.write().extend(certificate_expiry);
    }

    /// Has the process be no longer ready, for good.
    pub(crate) fn leave(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
    }

    /// True if it is ready, or was when somebody asked.
    pub(crate) fn has_been_ready(&self) -> bool {
        self.ready() || self.was_ready.load(Ordering::Relaxed)
    }

    /// Requests that ended since the start, and those of them that failed or were turned away.
    pub(crate) fn ended(&self) -> (u64, u64) {
        (self.ended.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }

    /// Operations of clients on bytes of objects that ended, by size.
    pub(crate) fn operations(&self) -> &ClientOps {
        &self.operations
    }

    /// Has requests noted in a log, too. The first one stays.
    pub(crate) fn log_accesses(&self, log: Arc<AccessLog>) {
        let _first = self.access_log.set(log);
    }

    /// Sets the source of the status for programs that request it with root's keys. The first one stays.
    pub(crate) fn set_state_source(&self, state: Arc<dyn State>) {
        let _first = self.state.set(state);
    }

    /// Adds the counts of a server's connections.
    pub(crate) fn add_connections(&self, of: Arc<larder_net::Metrics>) {
        self.connections.write().push(of);
    }

    /// Metrics of a process whose roles are still to come.
    pub(crate) fn of_none() -> Self {
        let mut registry = Registry::with_prefix("larder");
        let requests = Family::default();
        let seconds: Histograms =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.000_05, 2.0, 18)));
        let (bytes_in, bytes_out) = (Counter::default(), Counter::default());
        registry.register("requests", "S3 requests, by operation and status", requests.clone());
        let help = "Seconds from a request's head to its last byte";
        registry.register("request_seconds", help, seconds.clone());
        registry.register("request_bytes_in", "Body bytes received from clients", bytes_in.clone());
        registry.register("request_bytes_out", "Body bytes sent to clients", bytes_out.clone());
        Self {
            registry,
            requests,
            seconds,
            bytes_in,
            bytes_out,
            bucket_requests: BucketRequests::default(),
            operations: ClientOps::default(),
            ended: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            roles: RwLock::default(),
            certificate_expiries: RwLock::default(),
            access_log: OnceLock::new(),
            state: OnceLock::new(),
            is_leaving: AtomicBool::new(false),
            was_ready: AtomicBool::new(false),
            connections: RwLock::default(),
            began_s: process::now_s(),
        }
    }

    /// The metrics, as OpenMetrics.
    fn text(&self) -> Result<String, std::fmt::Error> {
        let mut own = String::new();
        prometheus_client::encoding::text::encode(&mut own, &self.registry)?;
        let end = own.rfind("# EOF").unwrap_or(own.len());
        own.truncate(end);
        if let Some(names) = self.roles.read().iter().find_map(|it| it.buckets()) {
            self.bucket_requests.keep(&names);
        }
        self.bucket_requests.write(&mut own)?;
        // A process without S3 says nothing of clients. Another says 0 at first, or the rate of the first requests is lost.
        let has_clients = self.roles.read().iter().any(|roles| roles.has_clients());
        if has_clients || self.ended.load(Ordering::Relaxed) > 0 {
            operations::of_clients(&self.operations, &mut own)?;
        }
        for roles in &*self.roles.read() {
            write_roles(&**roles, &mut own)?;
        }
        let ready = f64::from(u8::from(self.ready()));
        write_gauge(&mut own, "ready", "1 if all roles of this process serve", ready)?;
        if let Some(log) = self.access_log.get() {
            let (written, dropped) = log.counts();
            let help = "Lines of the access log that were written";
            write_counter(&mut own, "access_log_lines", help, written)?;
            let help = "Lines of the access log that found no room or could not be written";
            write_counter(&mut own, "access_log_dropped", help, dropped)?;
        }
        let certificate_expiries = self.certificate_expiries.read();
        // The first that ends: each is renewed by itself.
        if let Some(left) = certificate_expiries.iter().map(|it| it.seconds_left()).reduce(f64::min)
        {
            let help = "Seconds until a certificate of this process ends";
            write_gauge(&mut own, "certificate_expires_seconds", help, left)?;
        }
        connections::write(&self.connections.read(), &mut own)?;
        process::write(self.began_s, &mut own)?;
        own.push_str("# EOF\n");
        Ok(own)
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if request.uri().path() != "/metrics" {
            return status(StatusCode::NOT_FOUND);
        }
        let form = Form::accepted(request.headers());
        let Ok(text) = self.text() else { return status(StatusCode::INTERNAL_SERVER_ERROR) };
        let mut response = Response::new(Full::from(form.of(text)));
        let kind = HeaderValue::from_static(form.content_type());
        response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
        response
    }
}

fn status(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(format!("{status}; metrics are at /metrics\n")));
    *response.status_mut() = status;
    response
}

impl ServerHooks for Metrics {
    fn ready(&self) -> bool {
        let roles = self.roles.read();
        let is_leaving = self.is_leaving.load(Ordering::Relaxed);
        let is_ready = !is_leaving && !roles.is_empty() && roles.iter().all(|it| it.is_ready());
        if is_ready {
            self.was_ready.store(true, Ordering::Relaxed);
        }
        is_ready
    }

    fn caveat(&self) -> Option<&'static str> {
        self.roles.read().iter().find_map(|roles| roles.caveat())
    }

    fn cluster(&self) -> ClusterHealth {
        let of_cluster = self.roles.read().iter().find_map(|roles| roles.cluster());
        let takes_writes = of_cluster.is_none() && self.ready() && self.caveat().is_none();
        let alone = ClusterHealth { takes_writes, can_spare_this: false, write_quorum: 1 };
        of_cluster.unwrap_or(alone)
    }

    async fn status(&self) -> Option<Bytes> {
        self.state.get()?.state_json().await
    }

    fn minio_info(&self, status: &[u8]) -> Option<Bytes> {
        minio::info(status)
    }

    fn metrics(&self, headers: &HeaderMap) -> Option<(&'static str, String)> {
        let form = Form::accepted(headers);
        Some((form.content_type(), form.of(self.text().ok()?)))
    }

    fn done(&self, ended: &FinishedRequest<'_>) {
        let FinishedRequest { op, status, took, bytes_in, bytes_out, .. } = *ended;
        self.requests.get_or_create(&RequestLabels { op, status }).inc();
        self.seconds.get_or_create(&OpLabels { op }).observe(took.as_secs_f64());
        self.bytes_in.inc_by(bytes_in);
        self.bytes_out.inc_by(bytes_out);
        self.bucket_requests.note(ended);
        if let Some(moved) = ended.moved {
            operations::note(&self.operations, moved, took);
        }
        self.ended.fetch_add(1, Ordering::Relaxed);
        if status >= FAILED_FROM && status != NOT_IMPLEMENTED {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(log) = self.access_log.get() {
            log.note(ended);
        }
    }
}

/// Answers scrapes until the process ends, each on a connection of its own.
pub(crate) async fn serve_metrics(listener: TcpListener, metrics: Arc<Metrics>) {
    let mut scrapes: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the metrics listener could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        scrapes.retain(|scrape| !scrape.is_finished());
        if scrapes.len() >= SCRAPES_MAX
            && let Some(oldest) = scrapes.pop_front()
        {
            oldest.abort();
        }
        let scrape = tokio::spawn(timeout(SCRAPE_MAX, scrape(stream, metrics.clone())));
        scrapes.push_back(scrape.abort_handle());
    }
}

async fn scrape(stream: TcpStream, metrics: Arc<Metrics>) {
    let answer = service_fn(|request| {
        let response = metrics.answer(&request);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(SCRAPE_HEAD_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answer);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a metrics scrape ended early");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn scraped(address: std::net::SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[test]
    fn a_process_that_logs_accesses_shows_how_many_lines_it_lost() {
        let metrics = Metrics::of_none();
        assert!(!metrics.text().unwrap().contains("larder_access_log"));
        metrics.log_accesses(Arc::default());
        let text = metrics.text().unwrap();
        for name in ["lines", "dropped"] {
            let name = format!("larder_access_log_{name}");
            assert!(text.contains(&format!("# TYPE {name} counter\n{name}_total 0\n")), "{text}");
        }
    }

    /// Roles that serve clients, or do not.
    struct Serves(bool);

    impl RoleMetrics for Serves {
        fn is_ready(&self) -> bool {
            true
        }

        fn has_clients(&self) -> bool {
            self.0
        }

        fn counters(&self) -> Vec<Metric> {
            Vec::new()
        }

        fn gauges(&self) -> Vec<Metric> {
            Vec::new()
        }
    }

    #[test]
    fn operations_of_clients_are_shown_from_0_on_where_there_are_any() {
        let first = "larder_operations_total{kind=\"append\",size=\"1M..inf\"} 0\n";
        for has_clients in [true, false] {
            let text = Metrics::new(Serves(has_clients)).text().unwrap();
            assert_eq!(text.contains(first), has_clients, "{text}");
            assert_eq!(text.contains("larder_operation"), has_clients, "{text}");
        }
    }

    #[test]
    fn a_process_without_a_cluster_is_its_own() {
        let alone = Metrics::new(Many).cluster();
        assert!(alone.takes_writes && !alone.can_spare_this && alone.write_quorum == 1);
        assert!(!Metrics::of_none().cluster().takes_writes);
    }

    #[tokio::test]
    async fn silent_connections_do_not_stop_a_scrape() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve_metrics(listener, Arc::new(Metrics::of_none())));
        let mut silent = Vec::new();
        for _ in 0..2 * SCRAPES_MAX {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        // None of them has ended of itself by then.
        let answer = timeout(SCRAPE_HEAD_MAX, scraped(address)).await.expect("one made room");
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.contains("\nlarder_build_info{"),
            "{answer}"
        );
        let mut end = Vec::new();
        let _ = silent[0].read_to_end(&mut end).await;
        assert!(end.is_empty(), "the oldest made room");
    }

    /// Waits until so many hold the metrics: the test, the listener and each scrape.
    async fn held_by(metrics: &Arc<Metrics>, count: usize) {
        while Arc::strong_count(metrics) != count {
            // Nothing is idle meanwhile, so that the paused clock stands.
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_scrape_that_sends_no_head_is_cut_off() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let metrics = Arc::new(Metrics::of_none());
        tokio::spawn(serve_metrics(listener, metrics.clone()));
        let mut silent = TcpStream::connect(address).await.unwrap();
        held_by(&metrics, 3).await;
        silent.write_all(b"GET /metrics HTTP/1.1\r\n").await.unwrap();
        tokio::time::sleep(SCRAPE_HEAD_MAX + Duration::from_secs(1)).await;
        assert_eq!(Arc::strong_count(&metrics), 2, "it has its head's time and no more");
    }

    /// Numbers that fill more than the system buffers for a client.
    struct Many;

    impl RoleMetrics for Many {
        fn is_ready(&self) -> bool {
            true
        }

        fn counters(&self) -> Vec<Metric> {
            vec![("many", "Something that is counted", 1.0); 200_000]
        }

        fn gauges(&self) -> Vec<Metric> {
            Vec::new()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_scrape_that_takes_nothing_of_its_answer_is_cut_off() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let metrics = Arc::new(Metrics::new(Many));
        tokio::spawn(serve_metrics(listener, metrics.clone()));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        // The answer has begun.
        stream.readable().await.unwrap();
        assert_eq!(Arc::strong_count(&metrics), 3);
        tokio::time::sleep(SCRAPE_MAX + Duration::from_secs(1)).await;
        assert_eq!(Arc::strong_count(&metrics), 2, "it has its time and no more");
    }
}
