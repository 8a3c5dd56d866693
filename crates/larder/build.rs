//! Names the commit that the program is built from: that of the checkout, or of the variable `LARDER_COMMIT` where there is none.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=LARDER_COMMIT");
    let commit = env::var("LARDER_COMMIT").ok().or_else(checked_out);
    println!("cargo::rustc-env=LARDER_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
}

/// The commit of the checkout that this file is in.
fn checked_out() -> Option<String> {
    let of_git = |words: &[&str]| {
        let done =
            Command::new("git").args(words).output().ok().filter(|it| it.status.success())?;
        Some(String::from_utf8(done.stdout).ok()?.trim().to_owned())
    };
    // Where the sources were unpacked into another project's checkout, that one's commit is none of theirs.
    let top = of_git(&["rev-parse", "--show-toplevel"])?;
    if !Path::new(&top).join("crates/larder/build.rs").exists() {
        return None;
    }
    // Both change when another commit is checked out, or made.
    for file in ["HEAD", "logs/HEAD"] {
        println!("cargo::rerun-if-changed={}", of_git(&["rev-parse", "--git-path", file])?);
    }
    of_git(&["rev-parse", "--short=12", "HEAD"])
}
