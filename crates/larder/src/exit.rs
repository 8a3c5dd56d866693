//! Exit codes, the same for every command.

use std::fmt::Display;
use std::process::ExitCode;

/// All went well.
pub(crate) const OK: u8 = 0;
/// It ran, and found faults: a damaged store, failed requests.
pub(crate) const FAULTS: u8 = 1;
/// The command line or the configuration is wrong; clap uses the same.
pub(crate) const USAGE: u8 = 2;
/// The store cannot be opened or served: in use, damaged, no disk, no port.
pub(crate) const CANNOT_START: u8 = 3;
/// The server stopped because it could not go on; start it again.
pub(crate) const EXIT_RESTART: u8 = 4;
/// The server was removed from its cluster: starting it again is of no use.
pub(crate) const REMOVED: u8 = 5;

/// For `--help`.
pub(crate) const HELP: &str = "\
Exit codes:
  0  all went well
  1  it ran and found faults (a damaged store, failed requests)
  2  the command line or the configuration is wrong
  3  the store cannot be opened or served (in use, damaged, no disk, no port)
  4  the server stopped because it could not go on; start it again
  5  the server was removed from its cluster; do not start it again";

pub(crate) fn code(code: u8) -> ExitCode {
    ExitCode::from(code)
}

/// Tells why a command failed.
pub(crate) fn failed(error: &impl Display, code: u8) -> ExitCode {
    eprintln!("error: {error}");
    self::code(code)
}

/// Prints the lines of a command that went well, or tells why it failed.
pub(crate) fn printed<E: Display>(
    outcome: Result<Vec<String>, E>,
    code_of: impl FnOnce(&E) -> u8,
) -> ExitCode {
    match outcome {
        Ok(lines) => {
            lines.iter().for_each(|line| println!("{line}"));
            code(OK)
        }
        Err(error) => failed(&error, code_of(&error)),
    }
}
