//! `larder bench`: measures an endpoint, or fills a store.

use std::process::ExitCode;

use larder_bench::content::Content;
use larder_roles::StoreError;
use larder_roles::fill::{FillConfig, FillError, Filled, fill};

use crate::args::{BenchTool, FillArgs};
use crate::config::{Config, ConfigError, check_device, store_config};
use crate::credentials::{self, CredentialsError};
use crate::kind::{self, Kind, KindError};
use crate::{exit, logging};

/// Measures, or fills a store.
pub(crate) fn run(tool: BenchTool) -> ExitCode {
    match tool {
        BenchTool::Measure(command) => larder_bench::run(command),
        BenchTool::Fill(args) => match fill_store(&args) {
            Ok(filled) => {
                println!("{}", shown(&filled, args.size.0));
                exit::code(exit::OK)
            }
            Err(error) => {
                eprintln!("error: {error}");
                exit::code(error.code())
            }
        },
    }
}

/// Errors that keep a store from being filled.
#[derive(Debug, thiserror::Error)]
enum NotFilled {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Kind(#[from] KindError),
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error(transparent)]
    Fill(#[from] FillError),
    #[error(
        "{0} is a region, and others would never hear of what a fill writes: fill it before `larder region create`"
    )]
    Region(String),
    #[error(transparent)]
    Link(#[from] larder_link::LinkError),
}

impl NotFilled {
    fn code(&self) -> u8 {
        match self {
            Self::Config(_)
            | Self::Fill(
                FillError::Config { .. }
                | FillError::NotOfAFill { .. }
                | FillError::Store(StoreError::Config { .. }),
            )
            | Self::Region(_) => exit::USAGE,
            Self::Credentials(error) => error.code(),
            Self::Kind(_) | Self::Fill(_) | Self::Link(_) => exit::CANNOT_START,
        }
    }
}

fn fill_store(args: &FillArgs) -> Result<Filled, NotFilled> {
    let config = Config::load(args.config.as_deref())?;
    logging::start(config.log_format);
    kind::check(&args.dir, Kind::Store)?;
    if kind::found(&args.dir)?.is_none() {
        check_device(&config.data)?;
    }
    if larder_link::read(&args.dir)?.is_some() {
        return Err(NotFilled::Region(args.dir.display().to_string()));
    }
    let fill_config = FillConfig {
        store: store_config(&args.dir, &config),
        bucket: args.bucket.clone(),
        objects: args.objects,
        bytes: args.size.0,
        seed: args.seed,
    };
    fill_config.check()?;
    let held = kind::bind(&args.dir, Kind::Store)?;
    let content = |key: &str, bytes: u64| Content::new(key, bytes).all();
    let on_progress = |written: u64| eprintln!("{written} of {} objects", args.objects);
    let filled = fill(&fill_config, &content, &on_progress)?;
    if held.is_new() {
        // Drawn with the store: its first start has nothing to warn of.
        credentials::load(&args.dir.join(credentials::FILE))?;
    }
    Ok(filled)
}

/// The result, for people.
fn shown(filled: &Filled, size: u64) -> String {
    let Filled { first, objects, elapsed, index_bytes: [before, after] } = *filled;
    let seconds = elapsed.as_secs_f64();
    let rate = objects as f64 / seconds.max(f64::MIN_POSITIVE);
    let row_bytes = after.saturating_sub(before) as f64 / objects as f64;
    format!(
        "{objects} objects of {size} bytes from number {first} in {seconds:.1} s, {rate:.0} a second; the index has {} MiB, \
         {row_bytes:.0} bytes more for each",
        after / (1024 * 1024)
    )
}
