//! Runs one hot structure so many times, for an instruction counter to watch. `cargo xtask counts` runs
//! each twice under callgrind, with different counts, so that the cost of the start cancels out.
//!
//!     larder-micro                 lists the subjects
//!     larder-micro NAME COUNT      runs one
//!
//! Instructions in user space, without the kernel, on a processor that callgrind plays: a trend to look
//! at, not a speed.

#![deny(unsafe_code)]

mod digests;
mod group;
mod index;
mod log;
mod request;

use std::error::Error;
use std::process::ExitCode;

type Outcome = Result<(), Box<dyn Error>>;

/// Something that is run `count` times.
struct Subject {
    name: &'static str,
    about: &'static str,
    run: fn(count: u64) -> Outcome,
}

const SUBJECTS: &[Subject] = &[
    Subject {
        name: "log-append",
        about: "a record of 300 bytes, in groups of 16",
        run: log::append,
    },
    Subject { name: "allocate", about: "2 blocks taken and freed", run: group::allocate },
    Subject { name: "put-steps", about: "METAX, commit point, outcome, apply", run: group::put },
    Subject { name: "kv-apply", about: "a row of 300 bytes and a position", run: index::apply },
    Subject { name: "kv-get", about: "a row of 10,000 in a table", run: index::get },
    Subject { name: "sums", about: "block sums of 8 KiB", run: digests::sums },
    Subject { name: "md5", about: "8 KiB alone", run: digests::md5 },
    Subject { name: "md5-batch", about: "8 KiB, 16 in a batch, each", run: digests::md5_batch },
    Subject {
        name: "request-get",
        about: "HTTP, signature and answer of an 8 KiB get",
        run: request::get,
    },
    Subject {
        name: "request-put",
        about: "HTTP, signature and digests of an 8 KiB put",
        run: request::put,
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, count) = match &arguments[..] {
        [] => {
            SUBJECTS.iter().for_each(|subject| println!("{}\t{}", subject.name, subject.about));
            return ExitCode::SUCCESS;
        }
        [name, count] => (name, count.parse()),
        _ => return usage(),
    };
    let (Some(subject), Ok(count)) = (SUBJECTS.iter().find(|subject| subject.name == name), count)
    else {
        return usage();
    };
    match (subject.run)(count) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {name}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: larder-micro [NAME COUNT]; without arguments it lists the names");
    ExitCode::from(2)
}
