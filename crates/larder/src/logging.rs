//! Structured logs on stderr. Secrets never reach them: nothing that holds one is ever logged.

use std::sync::OnceLock;

use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{FilterFn, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::LogFormat;

/// Variable that chooses what is logged, such as `info` or `larder_roles=debug`.
const VARIABLE: &str = "LARDER_LOG";

/// The protocol library's crate.
const LIBRARY: &str = "s3s";

/// The form of the log, once it has started.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// True if the log is for machines.
pub(crate) fn is_json() -> bool {
    FORMAT.get() == Some(&LogFormat::Json)
}

/// Starts logging; the first call counts.
pub(crate) fn start(format: LogFormat) {
    let format = *FORMAT.get_or_init(|| format);
    let asked = std::env::var(VARIABLE).unwrap_or_default();
    let filter = EnvFilter::try_new(filter_of(&asked)).unwrap_or_else(|error| {
        eprintln!("larder: {VARIABLE} = {asked:?} is not a filter ({error}); logging at `info`");
        EnvFilter::new(filter_of(""))
    });
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let _already_started = match format {
        LogFormat::Text => builder.with_target(false).finish().with(discreet()).try_init(),
        LogFormat::Json => builder.json().finish().with(discreet()).try_init(),
    };
}

/// Keeps what the protocol library says below `info` out of every log: requests with their headers, and the signature that a
/// request should have had.
fn discreet() -> FilterFn<impl Fn(&Metadata<'_>) -> bool> {
    let is_of_library = |target: &str| {
        target.strip_prefix(LIBRARY).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    filter_fn(move |line| *line.level() <= Level::INFO || !is_of_library(line.target()))
}

/// The filter asked for, `info` if none is. The protocol library logs every 404 as an error: unless it
/// is asked for by name it is silent, answers are counted in the metrics instead.
fn filter_of(asked: &str) -> String {
    let level = if asked.trim().is_empty() { "info" } else { asked };
    if level.contains(LIBRARY) { level.to_owned() } else { format!("{level},{LIBRARY}=off") }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(line)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn no_level_shows_the_signature_that_a_request_should_have_had() {
        let log = Log::default();
        let writer = log.clone();
        let lines = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(filter_of("trace,s3s=trace")))
            .with_writer(move || writer.clone())
            .finish()
            .with(discreet());
        tracing::subscriber::with_default(lines, || {
            tracing::debug!(target: "s3s::ops::signature", signature = "hush", "signature mismatch");
            tracing::error!(target: "s3s::ops", "an error of the library");
            tracing::debug!(target: "s3store", "another's");
        });
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert!(!text.contains("hush"), "{text}");
        assert!(text.contains("an error of the library") && text.contains("another's"), "{text}");
    }

    #[test]
    fn the_library_is_silent_unless_asked_for() {
        assert_eq!(filter_of(""), "info,s3s=off");
        assert_eq!(filter_of("larder_roles=debug"), "larder_roles=debug,s3s=off");
        assert_eq!(filter_of("info,s3s=warn"), "info,s3s=warn");
    }
}
