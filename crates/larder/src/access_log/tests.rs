use std::fs;

use super::*;

fn log_to(path: &Path) -> Arc<AccessLog> {
    let log = Arc::<AccessLog>::default();
    log.switch(Some(path)).unwrap();
    log
}

#[test]
fn lines_are_appended_in_their_order_and_written_before_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    fs::write(&path, "before\n").unwrap();
    let log = log_to(&path);
    let lines: String = (0..1000).map(|number| format!("{number}\n")).collect();
    lines.split_inclusive('\n').for_each(|line| log.queue(line.as_bytes()));
    log.close();
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("before\n{lines}"));
    assert_eq!(log.counts(), (1000, 0));
}

#[test]
fn a_file_that_was_moved_away_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (path, moved) = (dir.path().join("access.log"), dir.path().join("access.log.1"));
    let log = log_to(&path);
    log.queue(b"1\n");
    while log.counts().0 < 1 {
        std::thread::yield_now();
    }
    fs::rename(&path, &moved).unwrap();
    log.switch(Some(&path)).unwrap();
    log.queue(b"2\n");
    log.close();
    assert_eq!(fs::read_to_string(&moved).unwrap(), "1\n");
    assert_eq!(fs::read_to_string(&path).unwrap(), "2\n");
}

/// Nothing writes: the queue stays as it is.
#[test]
fn a_queue_that_is_full_drops_lines_and_counts_them() {
    let log = AccessLog::default();
    let line = [b"x".repeat(1023), b"\n".to_vec()].concat();
    for _ in 0..QUEUE_BYTES_MAX / 1024 + 7 {
        log.queue(&line);
    }
    assert_eq!(log.counts(), (0, 7));
    assert_eq!(log.queue.lock().lines.len(), QUEUE_BYTES_MAX);
}

#[test]
fn lines_that_cannot_be_written_are_counted() {
    let log = log_to(Path::new("/dev/full"));
    log.queue(b"1\n2\n");
    log.close();
    assert_eq!(log.counts(), (0, 2));
}

#[test]
fn a_line_that_was_cut_off_is_ended_before_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    let mut out = Out::open(&path).unwrap();
    out.file.write_all(b"{\"v\":").unwrap();
    out.is_torn = Some(true);
    let (written, outcome) = out.append(b"1\n2\n");
    assert!(outcome.is_ok() && written == 2 && out.is_torn == Some(false));
    assert_eq!(fs::read_to_string(&path).unwrap(), "{\"v\":\n1\n2\n");
}

/// As a full disk leaves it until there is room and the file is opened anew, or a crash until the next start.
#[test]
fn a_line_that_was_cut_off_before_the_file_was_opened_is_ended_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    for (before, after) in [("{\"v\":", "{\"v\":\n1\n"), ("0\n", "0\n1\n"), ("", "1\n")] {
        fs::write(&path, before).unwrap();
        let log = log_to(&path);
        log.queue(b"1\n");
        log.close();
        assert_eq!(fs::read_to_string(&path).unwrap(), after);
        assert_eq!(log.counts(), (1, 0));
    }
}

/// Opening a pipe that nobody reads would not end.
#[test]
fn what_is_no_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    for path in [&*pipe, dir.path()] {
        let error = Arc::<AccessLog>::default().switch(Some(path)).unwrap_err();
        assert!(matches!(error, AccessLogError::NoFile(_)), "{error}");
    }
}

#[test]
fn a_file_that_cannot_be_opened_is_named_and_the_one_before_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    let log = log_to(&path);
    let error = log.switch(Some(&dir.path().join("no/such"))).unwrap_err().to_string();
    assert!(error.contains("no/such") && error.contains("access_log"), "{error}");
    log.queue(b"1\n");
    log.close();
    assert_eq!(fs::read_to_string(&path).unwrap(), "1\n");
}

#[test]
fn a_log_is_not_for_everybody_to_read() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    log_to(&path).close();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o007, 0);
}
