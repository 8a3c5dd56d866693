//! Structured logs on stderr. Secrets never reach them: nothing that holds one is ever logged.

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Variable that chooses what is logged, such as `info` or `larder_roles=debug`.
const VARIABLE: &str = "LARDER_LOG";

/// Starts logging; the first call counts.
pub(crate) fn start(format: LogFormat) {
    // The protocol library logs every 404 as an error; answers are counted in the metrics instead.
    let filter =
        EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new("info,s3s=off"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let _already_started = match format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}
