//! Operations and requests by kind and size: of clients, of a disk, of a meta server and of a manager.

use std::fmt::Write;
use std::time::Duration;

use larder_roles::breakdown::{BySize, ClientOps, DiskOps, Sum};
use larder_roles::meta::MetaRequests;
use larder_roles::quorum::ManagerRequests;
use larder_s3::BytesMoved;

/// A count of each class by size: its name without prefix, its help, and how it is read.
type OfSize = (&'static str, &'static str, fn(&Sum) -> f64);

const MICROSECONDS: f64 = 1e6;
const MILLISECONDS: f64 = 1e3;

const OF_CLIENTS: [OfSize; 3] = [
    ("operations", "Operations of clients on bytes of objects", |sum| sum.ops as f64),
    ("operation_bytes", "Bytes of objects that they moved", |sum| sum.bytes as f64),
    ("operation_seconds", "Seconds from their heads to their last bytes", |sum| {
        sum.served_us as f64 / MICROSECONDS
    }),
];

const OF_DISK: [OfSize; 2] = [
    ("data_operations", "Operations on the data disk that succeeded", |sum| sum.ops as f64),
    ("data_operation_bytes", "Bytes that they read or wrote", |sum| sum.bytes as f64),
];

/// Where reads have a queue: at a cluster's data server.
const OF_QUEUE: [OfSize; 2] = [
    ("data_read_wait_seconds", "Seconds for which reads waited for the data disk", |sum| {
        sum.waited_us as f64 / MICROSECONDS
    }),
    ("data_read_seconds", "Seconds for which they were at the data disk", |sum| {
        sum.served_us as f64 / MICROSECONDS
    }),
];
/// The kinds that have one.
const QUEUED: [&str; 3] = ["read", "read_copy", "verify"];

/// Counts what a request of a client moved.
pub(super) fn note(ops: &ClientOps, moved: BytesMoved, took: Duration) {
    let (kind, bytes) = match moved {
        BytesMoved::Read(bytes) => (&ops.read, bytes),
        BytesMoved::Written(bytes) => (&ops.write, bytes),
        BytesMoved::Appended(bytes) => (&ops.append, bytes),
    };
    kind.note(bytes);
    kind.note_time(bytes, 0, took.as_micros() as u64);
}

pub(super) fn of_clients(ops: &ClientOps, out: &mut String) -> std::fmt::Result {
    by_size(&OF_CLIENTS, &ops.kinds(), out)
}

pub(super) fn of_disk(ops: &DiskOps, out: &mut String) -> std::fmt::Result {
    by_size(&OF_DISK, &ops.kinds(), out)
}

pub(super) fn of_queue(ops: &DiskOps, out: &mut String) -> std::fmt::Result {
    let kinds: Vec<_> = ops.kinds().into_iter().filter(|(kind, _)| QUEUED.contains(kind)).collect();
    by_size(&OF_QUEUE, &kinds, out)
}

pub(super) fn of_meta(requests: &MetaRequests, out: &mut String) -> std::fmt::Result {
    let name = head("meta_requests", "Requests to the meta server", out)?;
    for (kind, (count, _)) in requests.sums() {
        writeln!(out, "{name}{{kind=\"{kind}\"}} {count}")?;
    }
    let help = "Seconds until the first answer of those that a placement group answered";
    let name = head("meta_request_seconds", help, out)?;
    for (kind, (_, ms)) in requests.sums() {
        writeln!(out, "{name}{{kind=\"{kind}\"}} {}", ms as f64 / MILLISECONDS)?;
    }
    Ok(())
}

pub(super) fn of_manager(requests: &ManagerRequests, out: &mut String) -> std::fmt::Result {
    let name = head("manager_requests", "Requests and messages to the manager", out)?;
    for (kind, count) in requests.sums() {
        writeln!(out, "{name}{{kind=\"{kind}\"}} {count}")?;
    }
    Ok(())
}

fn by_size(
    counts: &[OfSize],
    kinds: &[(&'static str, &BySize)],
    out: &mut String,
) -> std::fmt::Result {
    for (name, help, of) in counts {
        let name = head(name, help, out)?;
        for (kind, by_size) in kinds {
            for (size, sum) in by_size.sums() {
                let size = size.name();
                writeln!(out, "{name}{{kind=\"{kind}\",size=\"{size}\"}} {}", of(&sum))?;
            }
        }
    }
    Ok(())
}

/// Writes the head of a counter; the name of its samples.
fn head(name: &str, help: &str, out: &mut String) -> Result<String, std::fmt::Error> {
    writeln!(out, "# HELP larder_{name} {help}.\n# TYPE larder_{name} counter")?;
    Ok(format!("larder_{name}_total"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The samples that are not 0.
    fn samples(write: impl FnOnce(&mut String) -> std::fmt::Result) -> Vec<String> {
        let mut out = String::new();
        write(&mut out).unwrap();
        let is_some = |line: &&str| !line.starts_with('#') && !line.ends_with(" 0");
        out.lines().filter(is_some).map(str::to_owned).collect()
    }

    #[test]
    fn an_operation_of_a_client_is_in_its_cell_and_in_no_other() {
        let ops = ClientOps::default();
        let took = Duration::from_millis(250);
        note(&ops, BytesMoved::Read(0), took);
        note(&ops, BytesMoved::Written(1023), took);
        note(&ops, BytesMoved::Written(1024), took);
        note(&ops, BytesMoved::Appended(1 << 20), took);
        let seen = samples(|out| of_clients(&ops, out));
        let cell = |kind, size| format!("{{kind=\"{kind}\",size=\"{size}\"}}");
        let (none, small) = (cell("read", "0"), cell("write", "1B..1K"));
        let (next, large) = (cell("write", "1K..8K"), cell("append", "1M..inf"));
        let expected = [
            format!("larder_operations_total{none} 1"),
            format!("larder_operations_total{small} 1"),
            format!("larder_operations_total{next} 1"),
            format!("larder_operations_total{large} 1"),
            format!("larder_operation_bytes_total{small} 1023"),
            format!("larder_operation_bytes_total{next} 1024"),
            format!("larder_operation_bytes_total{large} 1048576"),
            format!("larder_operation_seconds_total{none} 0.25"),
            format!("larder_operation_seconds_total{small} 0.25"),
            format!("larder_operation_seconds_total{next} 0.25"),
            format!("larder_operation_seconds_total{large} 0.25"),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn reads_have_a_queue_and_writes_another() {
        let ops = DiskOps::default();
        ops.read.note(8192);
        ops.read.note_time(8192, 500_000, 2_000_000);
        ops.write.note(100);
        let (read, write) =
            ("{kind=\"read\",size=\"8K..64K\"}", "{kind=\"write\",size=\"1B..1K\"}");
        let expected = [
            format!("larder_data_operations_total{read} 1"),
            format!("larder_data_operations_total{write} 1"),
            format!("larder_data_operation_bytes_total{read} 8192"),
            format!("larder_data_operation_bytes_total{write} 100"),
            format!("larder_data_read_wait_seconds_total{read} 0.5"),
            format!("larder_data_read_seconds_total{read} 2"),
        ];
        let seen = samples(|out| of_disk(&ops, out).and_then(|()| of_queue(&ops, out)));
        assert_eq!(seen, expected);
    }
}
