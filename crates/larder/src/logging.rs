//! Structured logs on stderr. Secrets never reach them: nothing that holds one is ever logged.

use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::LogFormat;

/// Variable that chooses what is logged, such as `info` or `larder_roles=debug`.
const VARIABLE: &str = "LARDER_LOG";

/// The filter if none is asked for, or one that is none.
const DEFAULT: &str = "info";

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
    let asked = if asked.trim().is_empty() { DEFAULT } else { &asked };
    let filter = EnvFilter::try_new(asked).unwrap_or_else(|error| {
        eprintln!(
            "larder: {VARIABLE} = {asked:?} is not a filter ({error}); logging at `{DEFAULT}`"
        );
        EnvFilter::new(DEFAULT)
    });
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let _already_started = match format {
        LogFormat::Text => builder.with_target(false).finish().try_init(),
        LogFormat::Json => builder.json().finish().try_init(),
    };
}
