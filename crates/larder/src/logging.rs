//! Structured logs on stderr. Secrets never reach them: nothing that holds one is ever logged.

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Variable that chooses what is logged, such as `info` or `larder_roles=debug`.
const VARIABLE: &str = "LARDER_LOG";

/// The protocol library's crate.
const LIBRARY: &str = "s3s";

/// Starts logging; the first call counts.
pub(crate) fn start(format: LogFormat) {
    let asked = std::env::var(VARIABLE).unwrap_or_default();
    let filter = EnvFilter::try_new(filter_of(&asked)).unwrap_or_else(|error| {
        eprintln!("larder: {VARIABLE} = {asked:?} is not a filter ({error}); logging at `info`");
        EnvFilter::new(filter_of(""))
    });
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let _already_started = match format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}

/// The filter asked for, `info` if none is. The protocol library logs every 404 as an error: unless it
/// is asked for by name it is silent, answers are counted in the metrics instead.
fn filter_of(asked: &str) -> String {
    let level = if asked.trim().is_empty() { "info" } else { asked };
    if level.contains(LIBRARY) { level.to_owned() } else { format!("{level},{LIBRARY}=off") }
}

#[cfg(test)]
mod tests {
    use super::filter_of;

    #[test]
    fn the_library_is_silent_unless_asked_for() {
        assert_eq!(filter_of(""), "info,s3s=off");
        assert_eq!(filter_of("larder_roles=debug"), "larder_roles=debug,s3s=off");
        assert_eq!(filter_of("info,s3s=warn"), "info,s3s=warn");
    }
}
