//! Connections between servers: how many, what passes on them by service, and how long calls take.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use larder_identity::Role;
use larder_net::{ConnectionSide, Metrics, Refused, RoundTrips, Traffic};

use super::{write_counter, write_gauge};

/// A count of connections between servers: its name, its help, and how it is read.
type OfConnections = (&'static str, &'static str, fn(&Metrics) -> u64);

const CONNECTIONS: [OfConnections; 9] = [
    ("connections_made", "Connections to servers that were made", |of| of.connected.get()),
    ("connections_local", "Of those made, the ones to servers of this process", |of| {
        of.local.get()
    }),
    ("connections_accepted", "Connections of servers that were accepted", |of| of.accepted.get()),
    ("connections_unreachable", "Attempts to connect that failed", |of| of.unreachable.get()),
    ("connections_broken", "Connections that broke or were closed", |of| of.broken.get()),
    ("frames_sent", "Frames sent to servers", |of| of.sent.get()),
    ("frames_received", "Frames received from servers", |of| of.received.get()),
    ("frame_bytes_sent", "Bytes of frames sent to servers", |of| of.bytes().1),
    ("frame_bytes_received", "Bytes of frames received", |of| of.bytes().0),
];

/// Writes the counts of connections between servers, if the process has any.
pub(super) fn write(of: &[Arc<Metrics>], out: &mut String) -> std::fmt::Result {
    if of.is_empty() {
        return Ok(());
    }
    let open: u64 = of.iter().map(|of| of.open.get()).sum();
    write_gauge(out, "connections_open", "Connections with servers, either way", open as f64)?;
    for (name, help, count) in CONNECTIONS {
        write_counter(out, name, help, of.iter().map(|of| count(of)).sum())?;
    }
    let name = "larder_connections_refused";
    writeln!(out, "# HELP {name} Connections between servers that were refused, by reason.")?;
    writeln!(out, "# TYPE {name} counter")?;
    for reason in Refused::ALL {
        let count: u64 = of.iter().map(|of| of.refused(reason)).sum();
        writeln!(out, "{name}_total{{reason=\"{}\"}} {count}", reason.name())?;
    }
    by_service(of, out)?;
    calls(of, out)
}

/// Bytes of frames by service, by the end at which this process stands, and by direction.
fn by_service(of: &[Arc<Metrics>], out: &mut String) -> std::fmt::Result {
    let name = "larder_service_bytes";
    writeln!(out, "# HELP {name} Bytes of frames with servers, by the service that is spoken.")?;
    writeln!(out, "# TYPE {name} counter")?;
    for service in Role::OF_CLUSTERS {
        for stands in ConnectionSide::ALL {
            let all = |bytes: fn(&Traffic) -> u64| -> u64 {
                of.iter().map(|of| bytes(of.traffic(service, stands))).sum()
            };
            let (received, sent) = (all(|of| of.received.get()), all(|of| of.sent.get()));
            for (direction, bytes) in [("received", received), ("sent", sent)] {
                let (service, end) = (service.name(), stands.name());
                writeln!(
                    out,
                    "{name}_total{{service=\"{service}\",end=\"{end}\",direction=\"{direction}\"}} {bytes}"
                )?;
            }
        }
    }
    Ok(())
}

/// Times of calls to other servers that were answered, by service.
fn calls(of: &[Arc<Metrics>], out: &mut String) -> std::fmt::Result {
    let name = "larder_call_seconds";
    writeln!(out, "# HELP {name} Seconds from a call to a server to its answer, by service.")?;
    writeln!(out, "# TYPE {name} histogram")?;
    for service in Role::OF_CLUSTERS {
        let mut counts = [0; RoundTrips::BUCKETS];
        let (mut bounds, mut sum) = ([None; RoundTrips::BUCKETS], Duration::ZERO);
        for trips in of.iter().map(|of| of.round_trips(service)) {
            for (at, (bound, count)) in trips.buckets().enumerate() {
                (bounds[at], counts[at]) = (bound, counts[at] + count);
            }
            sum += trips.sum();
        }
        let (service, mut until) = (service.name(), 0);
        for (bound, count) in bounds.into_iter().zip(counts) {
            until += count;
            let le = bound.map_or("+Inf".to_owned(), |bound| bound.as_secs_f64().to_string());
            writeln!(out, "{name}_bucket{{service=\"{service}\",le=\"{le}\"}} {until}")?;
        }
        writeln!(out, "{name}_sum{{service=\"{service}\"}} {}", sum.as_secs_f64())?;
        writeln!(out, "{name}_count{{service=\"{service}\"}} {until}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_a_process_show_their_services() {
        let mut out = String::new();
        write(&[], &mut out).unwrap();
        assert_eq!(out, "", "it has none");
        write(&[Arc::default(), Arc::default()], &mut out).unwrap();
        for line in [
            "larder_frame_bytes_sent_total 0",
            "larder_service_bytes_total{service=\"data\",end=\"serves\",direction=\"sent\"} 0",
            "larder_call_seconds_bucket{service=\"meta\",le=\"0.000016\"} 0",
            "larder_call_seconds_bucket{service=\"meta\",le=\"+Inf\"} 0",
            "larder_call_seconds_count{service=\"proxy\"} 0",
        ] {
            assert!(out.lines().any(|it| it == line), "{line} in {out}");
        }
    }
}
