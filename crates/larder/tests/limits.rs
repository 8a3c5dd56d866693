//! Whole processes of the program, and what the system gives them: open files, and rights of files.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use tokio::net::TcpSocket;

const KEYS: (&str, &str) = ("LIMITSTEST", "limits-test-secret");

/// A process that serves S3. Dropped, it is killed.
struct Served {
    child: Child,
    s3: SocketAddr,
    metrics: SocketAddr,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _has_ended = self.child.kill();
        let _has_ended = self.child.wait();
    }
}

/// Starts the program behind a command of the shell, and waits until it serves.
fn serve(shell: &str, words: &[&str]) -> Served {
    let mut child = Command::new("sh")
        .args(["-c", &format!("{shell} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_larder")])
        .args(words)
        .args(["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"])
        .env("LARDER_ROOT_ACCESS_KEY", KEYS.0)
        .env("LARDER_ROOT_SECRET_KEY", KEYS.1)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut address = |behind: &str| loop {
        let line = lines.next().expect("it serves").unwrap();
        if let Some((_, address)) = line.split_once(behind) {
            let address = address.trim_end_matches("/metrics");
            return address.parse().unwrap();
        }
    };
    let (s3, metrics) = (address("serves S3 on http://"), address("Metrics are on http://"));
    Served { child, s3, metrics, lines }
}

impl Served {
    /// Its open files, as the system names them.
    fn open_files(&self) -> Vec<String> {
        let files = fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        // One that is closed meanwhile has no name any more.
        let names = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
        names.map(|name| name.display().to_string()).collect()
    }

    fn sockets(&self) -> usize {
        self.open_files().iter().filter(|name| name.starts_with("socket:")).count()
    }

    /// Asks for its health as a new client; false without an answer of 200.
    fn is_healthy(&self) -> bool {
        let mut answer = String::new();
        let asked = TcpStream::connect(self.s3).and_then(|mut stream| {
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
            stream.read_to_string(&mut answer)
        });
        asked.is_ok() && answer.starts_with("HTTP/1.1 200")
    }

    fn until_healthy(&self) {
        let begun = Instant::now();
        while !self.is_healthy() {
            assert!(begun.elapsed() < Duration::from_secs(60), "no new client is answered");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Lets the program have so many open files from now on.
    fn limit_files(&self, files: u64) {
        let limit = Rlimit { current: Some(files), ..getrlimit(Resource::Nofile) };
        prlimit(Some(Pid::from_child(&self.child)), Resource::Nofile, limit).unwrap();
    }

    /// The next so many lines of its log that say this.
    fn wait_for_lines(&mut self, text: &str, count: usize) {
        let said = self.lines.by_ref().map(Result::unwrap);
        assert_eq!(said.filter(|line| line.contains(text)).take(count).count(), count);
    }
}

#[test]
fn connections_take_no_more_than_half_of_a_low_limit_of_open_files() {
    const FILES: usize = 200;
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("store");
    let served = serve(&format!("ulimit -n {FILES}"), &["server", dir.to_str().unwrap()]);
    let before = served.sockets();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let silent = runtime.block_on(async {
        let mut silent = Vec::new();
        // Of several clients: one alone gets fewer.
        for number in 0..3 * FILES {
            let socket = TcpSocket::new_v4().unwrap();
            let client = format!("127.0.0.{}:0", 2 + number % 6);
            socket.bind(client.parse().unwrap()).unwrap();
            silent.push(socket.connect(served.s3).await.unwrap());
        }
        silent
    });
    served.until_healthy();
    let (sockets, all) = (served.sockets(), served.open_files().len());
    assert!(sockets > before + FILES / 4, "silent clients have connections: {sockets}");
    assert!(sockets <= before + FILES / 2, "{sockets} of {all} open files are sockets");
    let mut put = Command::new(env!("CARGO_BIN_EXE_larder"));
    put.args(["bench", "put", "--endpoint", &format!("http://{}", served.s3)]);
    put.args(["--size", "100KiB", "--concurrency", "4", "--duration", "500ms", "--warmup", "0s"]);
    put.env("AWS_ACCESS_KEY_ID", KEYS.0).env("AWS_SECRET_ACCESS_KEY", KEYS.1);
    let put = put.output().unwrap();
    let said = String::from_utf8_lossy(&put.stderr);
    assert!(put.status.success(), "the disk has files left to open: {said}");
    drop(silent);
}

#[test]
fn a_listener_without_free_files_pauses_and_goes_on_when_there_are_some() {
    const LINES: usize = 8;
    /// Of both listeners.
    const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("store");
    let mut served = serve("true", &["server", dir.to_str().unwrap()]);
    for (address, says) in [
        (served.s3, "a connection could not be accepted"),
        (served.metrics, "the metrics listener could not accept a connection"),
    ] {
        served.limit_files(3);
        let waiting = TcpStream::connect(address).unwrap();
        served.wait_for_lines(says, 1);
        let begun = Instant::now();
        served.wait_for_lines(says, LINES);
        let took = begun.elapsed();
        // The first of them may have been written already.
        assert!(took >= ACCEPT_PAUSE * (LINES as u32 - 2), "{LINES} tries took {took:?}");
        served.limit_files(1000);
        served.until_healthy();
        drop(waiting);
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_directory_that_is_made_is_its_owners_alone() {
    let scratch = tempfile::tempdir().unwrap();
    let blobs = format!("file://{}", scratch.path().join("blobs").display());
    for (kind, words) in [("server", Vec::new()), ("pack", vec!["--backend", blobs.as_str()])] {
        let above = scratch.path().join(kind);
        let dir = above.join("dir");
        let words = [&[kind, dir.to_str().unwrap()][..], &words].concat();
        drop(serve("umask 022", &words));
        for made in [&above, &dir] {
            assert_eq!(mode(made), 0o700, "{}", made.display());
        }
        assert_eq!(mode(&dir.join("larder-dir.toml")), 0o600);
        // One that is there has the rights that somebody gave it.
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o750)).unwrap();
        drop(serve("umask 022", &words));
        assert_eq!(mode(&dir), 0o750);
    }
    let dir = scratch.path().join("drawn");
    let words = ["server", dir.to_str().unwrap()];
    let unset = "umask 022 && unset LARDER_ROOT_ACCESS_KEY LARDER_ROOT_SECRET_KEY";
    drop(serve(unset, &words));
    assert_eq!(mode(&dir.join("credentials.toml")), 0o600);
}
