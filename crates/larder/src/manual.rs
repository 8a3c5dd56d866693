//! Man pages and completions for shells, made from the definition of the command line: they cannot differ from `--help`.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Program;
use crate::{exit, kind};

/// Prints the completions for a shell.
pub(crate) fn completions(shell: Shell) -> ExitCode {
    // In memory first: the generator panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Program::command(), "larder", &mut script);
    match io::stdout().write_all(&script) {
        Ok(()) => exit::code(exit::OK),
        // Nobody reads on, such as `head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => exit::code(exit::OK),
        Err(error) => {
            eprintln!("error: the completions cannot be written: {error}");
            exit::code(exit::FAULTS)
        }
    }
}

/// Writes the man pages into a directory, unless it is one that has something else of Larder's.
pub(crate) fn pages(dir: &Path) -> ExitCode {
    if let Err(error) = kind::check_unowned(dir) {
        return exit::failed(&error, exit::CANNOT_START);
    }
    let written =
        fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(Program::command(), dir));
    match written {
        Ok(()) => exit::code(exit::OK),
        Err(error) => {
            eprintln!("error: the man pages cannot be written into {}: {error}", dir.display());
            exit::code(exit::CANNOT_START)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    fn named(command: &Command, before: &str, names: &mut Vec<String>) {
        let name = match before {
            "" => command.get_name().to_owned(),
            _ => format!("{before}-{}", command.get_name()),
        };
        for below in command.get_subcommands().filter(|it| !it.is_hide_set()) {
            named(below, &name, names);
        }
        names.push(name);
    }

    #[test]
    fn each_command_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(pages(dir.path()), exit::code(exit::OK));
        let mut names = Vec::new();
        named(&Program::command(), "", &mut names);
        assert!(names.len() > 30, "{names:?}");
        for name in names {
            let page = fs::read_to_string(dir.path().join(format!("{name}.1"))).unwrap();
            assert!(page.contains(".SH SYNOPSIS"), "{name}: {page}");
        }
    }

    #[test]
    fn pages_are_not_written_over_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "mine").unwrap();
        assert_eq!(pages(&file), exit::code(exit::CANNOT_START));
        assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    }
}
