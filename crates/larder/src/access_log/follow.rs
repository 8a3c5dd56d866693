//! The file of the access log, as the configuration sets it: at the start, and anew at each SIGHUP.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{AccessLog, AccessLogError};

/// The setting `access_log`: a file, or `off`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Setting(Option<PathBuf>);

impl Setting {
    fn path(&self) -> Option<&Path> {
        self.0.as_deref()
    }
}

impl TryFrom<String> for Setting {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text == "off" {
            return Ok(Self(None));
        }
        // A service's own directory is seldom what its operator thinks of.
        match Path::new(&text) {
            path if path.is_absolute() => Ok(Self(Some(path.to_owned()))),
            _ => Err("use the absolute path of a file, or off"),
        }
    }
}

/// Begins an access log as it is set, and looks at each SIGHUP what is set then: `read` reads the configuration file. A process
/// without one ends by SIGHUP, as it always did.
///
/// # Errors
/// [`AccessLogError`] if the file cannot be opened.
pub(crate) fn follow<R, E>(
    setting: &Setting,
    read: Option<R>,
) -> Result<Arc<AccessLog>, AccessLogError>
where
    R: Fn() -> Result<Setting, E> + Send + Sync + 'static,
    E: Display + 'static,
{
    let log = Arc::<AccessLog>::default();
    log.switch(setting.path())?;
    if let Some(read) = read {
        let hangups = hangups()?;
        tokio::spawn(at_each(hangups, log.clone(), setting.clone(), Arc::new(read)));
    }
    Ok(log)
}

/// Has a process that serves no S3 go on at SIGHUP, as operators may send it to all processes of a
/// machine.
///
/// # Errors
/// [`AccessLogError::System`]
pub(crate) fn ignore_hangups() -> Result<(), AccessLogError> {
    let mut hangups = hangups()?;
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            tracing::info!("SIGHUP: this process has no access log");
        }
    });
    Ok(())
}

fn hangups() -> Result<Signal, AccessLogError> {
    signal(SignalKind::hangup()).map_err(AccessLogError::System)
}

async fn at_each<R, E>(mut hangups: Signal, log: Arc<AccessLog>, mut setting: Setting, read: Arc<R>)
where
    R: Fn() -> Result<Setting, E> + Send + Sync + 'static,
    E: Display + 'static,
{
    while hangups.recv().await.is_some() {
        let (log, before, read) = (log.clone(), setting.clone(), read.clone());
        // It waits for files.
        let followed = tokio::task::spawn_blocking(move || again(&log, before, &*read)).await;
        if let Ok(now) = followed {
            setting = now;
        }
    }
}

/// Looks again what is set. Returns what the log goes by: a setting that cannot be read or used changes nothing, but the file
/// is opened anew all the same.
fn again<E: Display>(
    log: &Arc<AccessLog>,
    before: Setting,
    read: impl Fn() -> Result<Setting, E>,
) -> Setting {
    let wanted = read().unwrap_or_else(|error| {
        tracing::error!(%error, "SIGHUP: the configuration cannot be read; the access log stays where it is");
        before.clone()
    });
    match log.switch(wanted.path()) {
        Ok(()) => {
            let path = wanted.path().map_or("off".to_owned(), |path| path.display().to_string());
            tracing::info!(access_log = path, "SIGHUP: the access log was reopened");
            wanted
        }
        Err(error) => {
            tracing::error!(%error, "SIGHUP: the access log cannot be reopened and stays where it is");
            before
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_an_absolute_path_or_off() {
        let setting = |text: &str| Setting::try_from(text.to_owned());
        assert_eq!(setting("off"), Ok(Setting::default()));
        assert_eq!(setting("/var/log/a"), Ok(Setting(Some("/var/log/a".into()))));
        for text in ["", "access.log", "./a", "on"] {
            assert!(setting(text).is_err(), "{text}");
        }
    }

    fn good(setting: Setting) -> Result<Setting, &'static str> {
        Ok(setting)
    }

    #[test]
    fn a_setting_that_cannot_be_used_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let log = Arc::<AccessLog>::default();
        let set = |name: &str| Setting(Some(dir.path().join(name)));
        let first = again(&log, Setting::default(), || good(set("first")));
        assert_eq!(first, set("first"));
        let wrong = || Err("it is wrong");
        std::fs::rename(dir.path().join("first"), dir.path().join("first.1")).unwrap();
        assert_eq!(again(&log, first.clone(), wrong), first);
        assert!(dir.path().join("first").exists(), "it is opened anew all the same");
        assert_eq!(again(&log, first.clone(), || good(set("no/such"))), first);
        log.queue(b"x\n");
        assert_eq!(again(&log, first, || good(Setting::default())), Setting::default());
        log.close();
        assert_eq!(log.counts(), (1, 0));
        assert_eq!(std::fs::read_to_string(dir.path().join("first")).unwrap(), "x\n");
    }
}
