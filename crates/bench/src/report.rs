//! The result of a run, for people and for scripts.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::load::Tally;
use crate::units::ByteSize;

const MIB: f64 = (1u64 << 20) as f64;

/// CPU time used in the measured window.
#[derive(Debug, Clone, Copy)]
pub struct CpuTime {
    /// By the processes named with `--pid`, if any were.
    pub server: Option<Duration>,
    /// CPU time of this process, the load driver, in user and kernel mode.
    pub client: Duration,
}

/// The result of a run. The first seven fields are what scripts rely on; `null` means that nothing
/// was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Requests answered well, per second.
    pub ops_s: f64,
    /// Object bytes moved by them, in MiB per second.
    pub mib_s: f64,
    /// Half of all requests took at most so long, in microseconds.
    pub p50_us: Option<f64>,
    /// 99 % of them did.
    pub p99_us: Option<f64>,
    /// 99.9 % of them did.
    pub p999_us: Option<f64>,
    /// Failed requests, whenever they happened.
    pub errors: u64,
    /// CPU time of the server's processes per request.
    pub server_cpu_us_per_op: Option<f64>,
    /// CPU time of this process per request.
    pub client_cpu_us_per_op: Option<f64>,
    /// The operation that was measured.
    pub op: &'static str,
    /// Bytes of each object; `null` where sizes differ.
    pub size: Option<u64>,
    /// Most requests in flight.
    pub concurrency: usize,
    /// Length of the measured window.
    pub seconds: f64,
    /// Requests answered well in it.
    pub ops: u64,
    /// Object bytes moved by them.
    pub bytes: u64,
    /// Object bytes moved by all requests answered well, warm-up and stragglers included.
    pub bytes_moved: u64,
    /// Requests of an open loop that were due but never sent.
    pub unsent: u64,
    /// Names checked after the measured time, against what should have become of them.
    pub checked: u64,
    /// Failed requests by kind.
    pub errors_by_kind: BTreeMap<String, u64>,
}

impl Report {
    /// The result of `tally` over `elapsed`, with nothing unsent or checked.
    #[must_use]
    pub fn new(
        op: &'static str,
        concurrency: usize,
        tally: Tally,
        elapsed: Duration,
        cpu: CpuTime,
    ) -> Self {
        let seconds = elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        let latency =
            |per_million| tally.latencies.quantile(per_million).map(|latency| micros(latency, 1));
        let per_op = |cpu| (tally.done > 0).then(|| micros(cpu, tally.done));
        Self {
            ops_s: tenths(tally.done as f64 / seconds),
            mib_s: tenths(tally.bytes as f64 / MIB / seconds),
            p50_us: latency(500_000),
            p99_us: latency(990_000),
            p999_us: latency(999_000),
            errors: tally.errors.values().sum(),
            server_cpu_us_per_op: cpu.server.and_then(per_op),
            client_cpu_us_per_op: per_op(cpu.client),
            op,
            size: None,
            concurrency,
            seconds: (seconds * 1000.0).round() / 1000.0,
            ops: tally.done,
            bytes: tally.bytes,
            bytes_moved: tally.bytes_moved,
            unsent: 0,
            checked: 0,
            errors_by_kind: tally.errors,
        }
    }

    /// One line of JSON.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and text always encode")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.op)?;
        if let Some(size) = self.size {
            write!(f, " {}", ByteSize(size))?;
        }
        writeln!(f, ", {} in flight, {:.1} s", self.concurrency, self.seconds)?;
        writeln!(f, "  throughput  {:.1} ops/s, {:.1} MiB/s", self.ops_s, self.mib_s)?;
        for (name, latency) in [("p50", self.p50_us), ("p99", self.p99_us), ("p99.9", self.p999_us)]
        {
            if let Some(latency) = latency {
                writeln!(f, "  {name:<10}  {latency:.1} us")?;
            }
        }
        for (name, cpu) in
            [("server CPU", self.server_cpu_us_per_op), ("client CPU", self.client_cpu_us_per_op)]
        {
            if let Some(cpu) = cpu {
                writeln!(f, "  {name}  {cpu:.1} us/op")?;
            }
        }
        if self.unsent > 0 {
            writeln!(f, "  unsent      {} requests were due but not sent in time", self.unsent)?;
        }
        if self.checked > 0 {
            writeln!(f, "  checked     {} names after the last request", self.checked)?;
        }
        write!(f, "  errors      {}", self.errors)?;
        self.errors_by_kind.iter().try_for_each(|(kind, count)| write!(f, "\n    {count} x {kind}"))
    }
}

fn micros(duration: Duration, share: u64) -> f64 {
    tenths(duration.as_nanos() as f64 / 1000.0 / share as f64)
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(done: u64, server: Option<Duration>) -> Report {
        let mut tally = Tally { done, bytes: done << 13, ..Tally::default() };
        for _ in 0..done {
            tally.latencies.record(Duration::from_micros(100));
        }
        let cpu = CpuTime { server, client: Duration::from_millis(20) };
        Report::new("put", 20, tally, Duration::from_secs(2), cpu)
    }

    #[test]
    fn rates_and_cpu_are_per_second_and_per_request() {
        let report = report(1000, Some(Duration::from_millis(30)));
        assert_eq!(report.ops_s, 500.0);
        assert_eq!(report.mib_s, 3.9);
        assert_eq!(report.p50_us, Some(100.0));
        assert_eq!(report.server_cpu_us_per_op, Some(30.0));
        assert_eq!(report.client_cpu_us_per_op, Some(20.0));
    }

    #[test]
    fn json_is_one_object_with_the_fields_that_scripts_rely_on() {
        for report in [report(10, None), report(0, Some(Duration::ZERO))] {
            let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
            for field in
                ["ops_s", "mib_s", "p50_us", "p99_us", "p999_us", "errors", "server_cpu_us_per_op"]
            {
                assert!(json.get(field).is_some(), "{field}");
            }
            assert!(json["server_cpu_us_per_op"].is_null());
        }
    }

    #[test]
    fn errors_are_shown_by_kind() {
        let mut report = report(10, None);
        report.errors = 3;
        report.errors_by_kind = [("503 SlowDown".into(), 2), ("timed out".into(), 1)].into();
        let text = report.to_string();
        assert!(text.contains("2 x 503 SlowDown") && text.contains("1 x timed out"), "{text}");
    }
}
