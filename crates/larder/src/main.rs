//! The shipped program. All of it is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    larder::run(std::env::args_os(), &[])
}
