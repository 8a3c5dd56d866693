//! The files of a packed bucket, without a kernel.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use larder_objects::{Objects, PutOptions};
use larder_pack::{Backend, PackConfig, Packer};
use larder_types::{BucketName, Condition, ObjectKey};

use super::{Changes, OpenHow, Tree};
use crate::draft::DraftBody;
use crate::limits::COPY_UP_BYTES_MAX;
use crate::nodes::{Ino, ROOT};
use crate::path::TreePath;
use crate::refusal::Refusal;
use crate::stamp::{Kind, Stat};

const READ: OpenHow = OpenHow { writes: false, empties: false, is_new: false };
const WRITE: OpenHow = OpenHow { writes: true, ..READ };
const EMPTY: OpenHow = OpenHow { empties: true, ..WRITE };
const NEW: OpenHow = OpenHow { is_new: true, ..WRITE };

struct Bench {
    tree: Tree<Packer>,
    packer: Arc<Packer>,
    bucket: BucketName,
    _folders: [tempfile::TempDir; 3],
}

impl Bench {
    async fn new() -> Self {
        Self::with_capacity_of(1 << 20).await
    }

    async fn with_capacity_of(draft_bytes: u64) -> Self {
        let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let backend = format!("file://{}", folders[1].path().display());
        let config = PackConfig::new(folders[0].path());
        let packer = Packer::open(config, Backend::open(&backend).unwrap()).await.unwrap();
        let (packer, bucket) = (Arc::new(packer), BucketName::new("files").unwrap());
        packer.create_bucket(&bucket, None).await.unwrap();
        let drafts = folders[2].path().to_owned();
        let tree = Tree::new(packer.clone(), bucket.clone(), drafts, draft_bytes);
        Self { tree, packer, bucket, _folders: folders }
    }

    /// As another client does it.
    async fn s3_put(&self, key: &str, body: &'static str) {
        let key = ObjectKey::new(key).unwrap();
        let body = DraftBody::held(Bytes::from_static(body.as_bytes()));
        self.packer.put(&self.bucket, &key, PutOptions::default(), body).await.unwrap();
    }

    async fn s3_delete(&self, key: &str) {
        let key = ObjectKey::new(key).unwrap();
        self.packer.delete(&self.bucket, &key, Condition::default()).await.unwrap();
    }

    async fn s3_get(&self, key: &str) -> Option<String> {
        let key = ObjectKey::new(key).unwrap();
        let opened = self.packer.open(&self.bucket, &key).await.ok()?;
        if opened.metax.size == 0 {
            return Some(String::new());
        }
        let bytes = self.tree.read_range(&opened, 0..opened.metax.size).await.unwrap();
        Some(String::from_utf8(bytes.to_vec()).unwrap())
    }

    async fn walk(&self, path: &str) -> Result<(Ino, Stat), Refusal> {
        let mut at = (ROOT, self.tree.stat(ROOT).await?);
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = self.tree.lookup(at.0, OsStr::new(name)).await?;
        }
        Ok(at)
    }

    /// A path's directory and its name in it.
    async fn place<'a>(&self, path: &'a str) -> (Ino, &'a OsStr) {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        (self.walk(parent).await.unwrap().0, OsStr::new(name))
    }

    async fn create(&self, path: &str, how: OpenHow) -> Result<(Ino, u64), Refusal> {
        let (parent, name) = self.place(path).await;
        self.tree.create(parent, name, 0o644, how).await.map(|(ino, _, handle)| (ino, handle))
    }

    async fn write(&self, path: &str, body: &'static str) {
        let (_, handle) = self.create(path, EMPTY).await.unwrap();
        self.tree.write(handle, 0, Bytes::from_static(body.as_bytes())).await.unwrap();
        self.tree.save(handle).await.unwrap();
        self.tree.release(handle).await;
    }

    async fn read(&self, path: &str) -> Result<String, Refusal> {
        let (ino, _) = self.walk(path).await?;
        let handle = self.tree.open(ino, READ).await?;
        let bytes = self.read_open(handle).await;
        self.tree.release(handle).await;
        bytes
    }

    async fn read_open(&self, handle: u64) -> Result<String, Refusal> {
        let bytes = self.tree.read(handle, 0, 1 << 20).await?;
        Ok(String::from_utf8(bytes.to_vec()).unwrap())
    }

    async fn rename(&self, from: &str, to: &str) -> Result<(), Refusal> {
        self.tree.rename(self.place(from).await, self.place(to).await, false).await
    }

    async fn delete(&self, path: &str) -> Result<(), Refusal> {
        let (parent, name) = self.place(path).await;
        self.tree.delete_file(parent, name).await
    }

    async fn remove_directory(&self, path: &str) -> Result<(), Refusal> {
        let (parent, name) = self.place(path).await;
        self.tree.delete_directory(parent, name).await
    }

    async fn make_directory(&self, path: &str) -> Result<(Ino, Stat), Refusal> {
        let (parent, name) = self.place(path).await;
        self.tree.make_directory(parent, name, 0o755).await
    }

    async fn names(&self, path: &str) -> BTreeSet<String> {
        let handle = self.tree.open_directory(self.walk(path).await.unwrap().0).unwrap();
        let mut names = Vec::new();
        let give = |entry: &crate::listing::Entry, _| {
            names.push(entry.name.clone());
            false
        };
        self.tree.read_directory(handle, 0, give).await.unwrap();
        self.tree.release(handle).await;
        let count = names.len();
        let names: BTreeSet<_> = names.into_iter().filter(|it| !it.starts_with('.')).collect();
        assert_eq!(names.len() + 2, count, "each once, and the two that every directory has");
        names
    }
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Runs a test on threads, as the packed store wants it.
fn run(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.enable_all().build().unwrap().block_on(test);
}

#[test]
fn what_is_closed_is_an_object_and_not_before() {
    run(async {
        let bench = Bench::new().await;
        let (_, handle) = bench.create("a", NEW).await.unwrap();
        bench.tree.write(handle, 0, Bytes::from_static(b"hello")).await.unwrap();
        assert_eq!(bench.s3_get("a").await, None);
        assert_eq!(bench.names("").await, set(&["a"]), "the writer sees it");
        assert_eq!(bench.walk("a").await.unwrap().1.size, 5);
        bench.tree.save(handle).await.unwrap();
        assert_eq!(bench.s3_get("a").await.as_deref(), Some("hello"));
        let before = bench.walk("a").await.unwrap();
        bench.tree.release(handle).await;
        assert_eq!(bench.walk("a").await.unwrap(), before, "number and time stay");
        assert_eq!(bench.tree.held().draft_bytes, 0);
    });
}

#[test]
fn a_file_is_appended_to_and_patched_as_a_whole() {
    run(async {
        let bench = Bench::new().await;
        bench.s3_put("log", "one\n").await;
        let (ino, _) = bench.walk("log").await.unwrap();
        let handle = bench.tree.open(ino, WRITE).await.unwrap();
        bench.tree.write(handle, 4, Bytes::from_static(b"two\n")).await.unwrap();
        bench.tree.write(handle, 0, Bytes::from_static(b"O")).await.unwrap();
        bench.tree.save(handle).await.unwrap();
        bench.tree.release(handle).await;
        assert_eq!(bench.s3_get("log").await.as_deref(), Some("One\ntwo\n"));
        let shorter = Changes { size: Some(3), ..Changes::default() };
        assert_eq!(bench.tree.change(ino, shorter, None).await.unwrap().size, 3);
        assert_eq!(bench.s3_get("log").await.as_deref(), Some("One"));
        let handle = bench.tree.open(ino, WRITE).await.unwrap();
        bench.tree.release(handle).await;
        let puts = bench.tree.counters.saved.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(puts, 2, "what was not written is not put");
    });
}

#[test]
fn a_new_file_does_not_replace_what_another_client_made_meanwhile() {
    run(async {
        let bench = Bench::new().await;
        let (_, handle) = bench.create("lock", NEW).await.unwrap();
        assert_eq!(bench.create("lock", NEW).await, Err(Refusal::Exists));
        bench.s3_put("lock", "theirs").await;
        assert_eq!(bench.tree.save(handle).await, Err(Refusal::Exists));
        bench.tree.release(handle).await;
        assert_eq!(bench.s3_get("lock").await.as_deref(), Some("theirs"));
        assert_eq!(bench.create("lock", NEW).await, Err(Refusal::Exists));
    });
}

#[test]
fn what_is_written_at_once_is_bounded() {
    run(async {
        let bench = Bench::with_capacity_of(10).await;
        let (_, handle) = bench.create("a", NEW).await.unwrap();
        bench.tree.write(handle, 0, Bytes::from_static(b"01234567")).await.unwrap();
        let more = bench.tree.write(handle, 8, Bytes::from_static(b"890")).await;
        assert_eq!(more, Err(Refusal::NoSpace));
        bench.tree.save(handle).await.unwrap();
        bench.tree.release(handle).await;
        assert_eq!(bench.s3_get("a").await.as_deref(), Some("01234567"));
        assert_eq!(bench.tree.room(), (10, 10));
    });
}

#[test]
fn who_has_a_file_open_keeps_it() {
    run(async {
        let bench = Bench::new().await;
        for (name, body) in [("deleted", "a"), ("replaced", "b"), ("moved", "c"), ("theirs", "d")] {
            bench.write(name, body).await;
        }
        let mut handles = Vec::new();
        for name in ["deleted", "replaced", "moved", "theirs"] {
            let (ino, _) = bench.walk(name).await.unwrap();
            handles.push(bench.tree.open(ino, WRITE).await.unwrap());
        }
        bench.delete("deleted").await.unwrap();
        bench.write("other", "new").await;
        bench.rename("other", "replaced").await.unwrap();
        bench.rename("moved", "elsewhere").await.unwrap();
        bench.s3_put("theirs", "new").await;
        for (handle, body) in handles.iter().zip(["a", "b", "c"]) {
            assert_eq!(bench.read_open(*handle).await.as_deref(), Ok(body));
        }
        assert_eq!(bench.read_open(handles[3]).await, Err(Refusal::Stale), "never mixed");
        assert_eq!(bench.read("theirs").await.as_deref(), Ok("new"), "under a number of its own");
        // Bytes written to a file that is gone stay gone.
        for handle in &handles[..2] {
            bench.tree.write(*handle, 0, Bytes::from_static(b"X")).await.unwrap();
            bench.tree.save(*handle).await.unwrap();
        }
        for handle in handles {
            bench.tree.release(handle).await;
        }
        assert_eq!(bench.s3_get("deleted").await, None);
        assert_eq!(bench.s3_get("replaced").await.as_deref(), Some("new"));
        assert_eq!(bench.names("").await, set(&["elsewhere", "replaced", "theirs"]));
    });
}

#[test]
fn an_open_file_is_renamed_with_what_was_written() {
    run(async {
        let bench = Bench::new().await;
        bench.write("target", "old").await;
        let (ino, handle) = bench.create("target.lock", NEW).await.unwrap();
        bench.tree.write(handle, 0, Bytes::from_static(b"new")).await.unwrap();
        bench.rename("target.lock", "target").await.unwrap();
        assert_eq!(bench.s3_get("target").await.as_deref(), Some("new"), "at once");
        assert_eq!(bench.s3_get("target.lock").await, None);
        bench.tree.write(handle, 3, Bytes::from_static(b"er")).await.unwrap();
        bench.tree.save(handle).await.unwrap();
        bench.tree.release(handle).await;
        assert_eq!(bench.s3_get("target").await.as_deref(), Some("newer"));
        assert_eq!(bench.walk("target").await.unwrap().0, ino);
        assert_eq!(bench.names("").await, set(&["target"]));
    });
}

#[test]
fn directories_are_what_keys_begin_with() {
    run(async {
        let bench = Bench::new().await;
        bench.s3_put("photos/2026/cat", "meow").await;
        assert_eq!(bench.walk("photos/2026").await.unwrap().1.kind, Kind::Directory);
        assert_eq!(bench.read("photos/2026/cat").await.as_deref(), Ok("meow"));
        assert_eq!(bench.remove_directory("photos/2026").await, Err(Refusal::NotEmpty));
        assert_eq!(bench.delete("photos/2026").await, Err(Refusal::IsADirectory));
        bench.delete("photos/2026/cat").await.unwrap();
        assert_eq!(bench.names("photos").await, set(&["2026"]), "it stays until it is removed");
        bench.remove_directory("photos/2026").await.unwrap();
        bench.remove_directory("photos").await.unwrap();
        assert_eq!(bench.names("").await, set(&[]));
        bench.make_directory("new").await.unwrap();
        assert_eq!(bench.make_directory("new").await, Err(Refusal::Exists));
        assert_eq!(bench.s3_get("new/").await.as_deref(), Some(""));
        assert_eq!(bench.walk("nothing").await, Err(Refusal::NotFound));
    });
}

#[test]
fn a_directory_is_renamed_with_all_that_is_below() {
    run(async {
        let bench = Bench::new().await;
        for key in ["d/a", "d/e/b", "d//hidden", "d-c", "other/x"] {
            bench.s3_put(key, "body").await;
        }
        let (open, _) = bench.walk("d/e/b").await.unwrap();
        let reader = bench.tree.open(open, READ).await.unwrap();
        let (_, writer) = bench.create("d/e/new", NEW).await.unwrap();
        bench.make_directory("empty").await.unwrap();
        assert_eq!(bench.rename("d", "other").await, Err(Refusal::NotEmpty));
        assert_eq!(bench.rename("d", "d-c").await, Err(Refusal::NotADirectory));
        assert_eq!(bench.rename("d-c", "d").await, Err(Refusal::IsADirectory));
        assert_eq!(bench.rename("d", "d/e/f").await, Err(Refusal::Invalid));
        bench.rename("d", "empty").await.unwrap();
        assert_eq!(bench.names("").await, set(&["d-c", "empty", "other"]));
        assert_eq!(bench.names("empty/e").await, set(&["b", "new"]));
        assert_eq!(bench.s3_get("empty//hidden").await.as_deref(), Some("body"));
        assert_eq!(bench.read_open(reader).await.as_deref(), Ok("body"));
        bench.tree.save(writer).await.unwrap();
        assert_eq!(bench.s3_get("empty/e/new").await.as_deref(), Some(""));
        assert_eq!(bench.s3_get("d/e/new").await, None);
        assert_eq!(bench.walk("empty/e/b").await.unwrap().0, open);
    });
}

#[test]
fn mode_time_and_links_are_kept_and_bytes_do_not_move() {
    run(async {
        let bench = Bench::new().await;
        bench.write("tool", "#!/bin/sh\n").await;
        let (ino, _) = bench.walk("tool").await.unwrap();
        let reader = bench.tree.open(ino, READ).await.unwrap();
        let time = UNIX_EPOCH + Duration::new(1_000_000_000, 7);
        let changes = Changes { mode: Some(0o755), mtime: Some(time), size: None };
        let stat = bench.tree.change(ino, changes, None).await.unwrap();
        assert_eq!((stat.mode, stat.mtime), (0o755, time));
        assert_eq!(bench.walk("tool").await.unwrap(), (ino, stat), "the same file");
        assert_eq!(bench.read_open(reader).await.as_deref(), Ok("#!/bin/sh\n"));
        bench.tree.release(reader).await;
        bench.rename("tool", "bin").await.unwrap();
        assert_eq!(bench.walk("bin").await.unwrap().1, stat);
        let special = Changes { mode: Some(0o4755), ..Changes::default() };
        assert_eq!(bench.tree.change(ino, special, None).await, Err(Refusal::NotPermitted));

        let (link, _) =
            bench.tree.make_link(ROOT, OsStr::new("link"), OsStr::new("bin")).await.unwrap();
        assert_eq!(bench.walk("link").await.unwrap().1.kind, Kind::Symlink);
        assert_eq!(bench.tree.read_link(link).await.unwrap(), "bin");
        assert_eq!(bench.tree.read_link(ino).await, Err(Refusal::Invalid));

        let (directory, _) = bench.make_directory("d").await.unwrap();
        let stat = bench.tree.change(directory, changes, None).await.unwrap();
        assert_eq!((stat.kind, stat.mode, stat.mtime), (Kind::Directory, 0o755, time));
    });
}

#[test]
fn a_mode_set_while_a_file_is_written_is_put_with_it() {
    run(async {
        let bench = Bench::new().await;
        let (ino, handle) = bench.create("script", NEW).await.unwrap();
        let mode = Changes { mode: Some(0o700), ..Changes::default() };
        bench.tree.change(ino, mode, Some(handle)).await.unwrap();
        bench.tree.save_all().await;
        assert_eq!(bench.walk("script").await.unwrap().1.mode, 0o700);
        bench.tree.release(handle).await;
        bench.tree.forget(ino, 1);
        assert_eq!(bench.walk("script").await.unwrap().1.mode, 0o700, "from the store");
    });
}

#[test]
fn a_file_that_another_client_deleted_is_stale_or_gone() {
    run(async {
        let bench = Bench::new().await;
        bench.write("a", "x").await;
        let (ino, _) = bench.walk("a").await.unwrap();
        bench.s3_put("a", "y").await;
        assert_eq!(bench.tree.stat(ino).await, Err(Refusal::Stale));
        assert_eq!(bench.tree.open(ino, READ).await, Err(Refusal::Stale));
        assert_ne!(bench.walk("a").await.unwrap().0, ino);
        bench.s3_delete("a").await;
        assert_eq!(bench.walk("a").await, Err(Refusal::NotFound));
        assert_eq!(bench.delete("a").await, Err(Refusal::NotFound));
    });
}

#[test]
fn what_is_written_to_a_file_that_another_client_replaced_is_not_lost_in_silence() {
    run(async {
        let bench = Bench::new().await;
        let (ino, handle) = bench.create("a", NEW).await.unwrap();
        bench.tree.write(handle, 0, Bytes::from_static(b"ours")).await.unwrap();
        bench.tree.save(handle).await.unwrap();
        bench.s3_put("a", "theirs").await;
        bench.tree.write(handle, 4, Bytes::from_static(b", again")).await.unwrap();
        bench.tree.save(handle).await.unwrap();
        assert_eq!(bench.s3_get("a").await.as_deref(), Some("ours, again"), "the last wins");
        bench.s3_put("a", "theirs").await;
        assert_eq!(bench.read("a").await.as_deref(), Ok("theirs"));
        bench.tree.write(handle, 4, Bytes::from_static(b", late")).await.unwrap();
        assert_eq!(bench.tree.save(handle).await, Err(Refusal::Stale));
        let mode = Changes { mode: Some(0o700), ..Changes::default() };
        assert_eq!(bench.tree.change(ino, mode, Some(handle)).await, Err(Refusal::Stale));
        bench.tree.release(handle).await;
        assert_eq!(bench.tree.counters.lost.load(std::sync::atomic::Ordering::Relaxed), 1);
        assert_eq!(bench.s3_get("a").await.as_deref(), Some("theirs"));
    });
}

#[test]
fn a_file_that_another_client_deleted_is_made_anew_though_it_is_open() {
    run(async {
        let bench = Bench::new().await;
        bench.write("a", "old").await;
        let (ino, _) = bench.walk("a").await.unwrap();
        let reader = bench.tree.open(ino, READ).await.unwrap();
        bench.s3_delete("a").await;
        bench.write("a", "new").await;
        assert_eq!(bench.s3_get("a").await.as_deref(), Some("new"));
        assert_eq!(bench.read("a").await.as_deref(), Ok("new"));
        assert_eq!(bench.read_open(reader).await, Err(Refusal::Stale));
        bench.tree.release(reader).await;
    });
}

#[test]
fn a_file_is_cut_without_reading_what_goes() {
    run(async {
        let bench = Bench::with_capacity_of(10).await;
        for key in ["emptied", "cut"] {
            bench.s3_put(key, "as long as no draft may be").await;
        }
        let cut = |size| Changes { size: Some(size), ..Changes::default() };
        let (ino, _) = bench.walk("cut").await.unwrap();
        assert_eq!(bench.tree.change(ino, cut(7), None).await.unwrap().size, 7);
        assert_eq!(bench.s3_get("cut").await.as_deref(), Some("as long"));
        let (ino, _) = bench.walk("emptied").await.unwrap();
        assert_eq!(bench.tree.change(ino, cut(0), None).await.unwrap().size, 0);
        assert_eq!(bench.s3_get("emptied").await.as_deref(), Some(""));
    });
}

#[test]
fn a_file_too_large_to_be_copied_can_be_cut() {
    run(async {
        let bench = Bench::with_capacity_of(COPY_UP_BYTES_MAX + 10).await;
        let (ino, handle) = bench.create("large", NEW).await.unwrap();
        bench.tree.write(handle, COPY_UP_BYTES_MAX, Bytes::from_static(b"x")).await.unwrap();
        bench.tree.save(handle).await.unwrap();
        bench.tree.release(handle).await;
        assert_eq!(bench.tree.open(ino, WRITE).await, Err(Refusal::TooLarge));
        let cut = |size| Changes { size: Some(size), ..Changes::default() };
        assert_eq!(bench.tree.change(ino, cut(5), None).await.unwrap().size, 5);
        assert_eq!(bench.tree.change(ino, cut(0), None).await.unwrap().size, 0);
    });
}

#[test]
fn a_directory_that_is_renamed_replaces_nothing_that_came_meanwhile() {
    run(async {
        let bench = Bench::new().await;
        for key in ["d/a", "d/b", "d/c"] {
            bench.s3_put(key, "ours").await;
        }
        let [from, to] = ["d", "e"].map(|name| TreePath::root().child(OsStr::new(name)).unwrap());
        let pairs = bench.tree.pairs_below(&from, &to).await.unwrap();
        bench.s3_put("e/b", "theirs").await;
        let marker = to.marker_key().unwrap();
        let linked = bench.tree.link_all(pairs, &marker).await;
        assert_eq!(linked.err(), Some(Refusal::NotEmpty));
        assert_eq!(bench.s3_get("e/b").await.as_deref(), Some("theirs"));
        for (key, there) in
            [("d/a", true), ("d/b", true), ("d/c", true), ("e/a", false), ("e/c", false)]
        {
            assert_eq!(bench.s3_get(key).await.is_some(), there, "{key}");
        }
    });
}

#[test]
fn a_renaming_that_is_taken_back_leaves_what_others_put_meanwhile() {
    run(async {
        let bench = Bench::new().await;
        bench.s3_put("d/a", "same").await;
        let [from, to, marker] = ["d/a", "e/a", "e/"].map(|key| ObjectKey::new(key).unwrap());
        let linked = bench.tree.link_key(from, to, &marker).await.unwrap();
        bench.s3_put("e/a", "same").await;
        bench.tree.take_back(&[linked]).await;
        assert_eq!(bench.s3_get("e/a").await.as_deref(), Some("same"), "it is theirs");
    });
}
