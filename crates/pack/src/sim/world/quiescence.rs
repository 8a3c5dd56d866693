//! The end of a run: nothing fails any more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::*;

impl World {
    /// Nothing fails any more: everything must come to rest, and be the same however it is rebuilt.
    pub(super) async fn heal(&mut self) {
        self.end(|disk| disk.kill()).await;
        self.store.set_calm(true);
        while self.store.deliver_one_late().await {}
        self.gives_up_older().await;
        self.store.set_calm(true);
        self.store.catch_up();
        self.touch();
        let mut idle = 0;
        for step in 0..3000 {
            if step % 50 == 0 {
                self.seal();
            }
            self.commit().await;
            self.process().upload();
            match self.process().run_maintenance() {
                Some(Ok(kept)) if kept == MaintenanceReport::default() => idle += 1,
                Some(Ok(_)) => idle = 0,
                Some(Err(error)) => panic!("housekeeping fails though nothing else does: {error}"),
                None => {}
            }
            tokio::time::advance(Duration::from_secs(31)).await;
            if idle > 3 && self.process().spool.waiting() == 0 {
                break;
            }
        }
        assert!(idle > 3, "housekeeping does not come to rest");
        self.compare().await;
        self.calls.check();
        self.check_quiescent().await;
        self.rebuild("from the last backup").await;
        for name in self.store.names("backups").await.into_iter().rev() {
            self.store.remove(&name).await;
            self.rebuild("from a backup before, or from footers").await;
        }
        self.rebuilds += 1;
    }

    /// The backend has what is needed and nothing else.
    async fn check_quiescent(&mut self) {
        let index = self.process().index.clone();
        let standing: BTreeSet<_> =
            index.standing().unwrap().into_iter().map(|(id, _)| id).collect();
        let there = self.store.names("blobs").await.len();
        assert_eq!(there, standing.len(), "blobs that nothing needs are gone");
        let mut owns = BTreeSet::new();
        for place in places(&index).into_keys() {
            if let Container::Own(own) = place.0 {
                owns.insert(match own.bundle() {
                    Some(_) => index.bundle_path(own).unwrap(),
                    None => own.path(),
                });
            }
        }
        let there: BTreeSet<_> = self.store.names("objects").await.into_iter().collect();
        assert_eq!(there, owns, "objects that nothing names are gone");
        for (id, content) in index.standing().unwrap() {
            assert!(content.live * 100 >= content.end * 80, "blob {id} was not repacked");
        }
        for (id, content) in index.bundles().unwrap() {
            let is_repacked = content.live * 100 >= content.end * 80;
            assert!(is_repacked, "bundle {} was not repacked", id.path());
        }
    }

    /// An index that is made from what the backend has equals that of the process.
    async fn rebuild(&mut self, how: &str) {
        let process = self.process.as_ref().expect("a process runs");
        let (backend, takeover_fence) = (&process.backend, &process.takeover_fence);
        let heads = backup::known(backend, takeover_fence).await.unwrap();
        let rebuild = Rebuild {
            backend,
            worker: self.worker,
            takeover_fence,
            records: &crate::owner::counting::Known::default(),
            backups: &heads,
            accept_loss: None,
            is_own: true,
        };
        let (index, _) = Index::over(Box::new(Rows(Arc::default()))).unwrap();
        rebuild.run(&index).await.unwrap_or_else(|error| panic!("no rebuild {how}: {error}"));
        assert_eq!(found(process, &index, &self.store).await, self.history.now, "rebuilt {how}");
        check_counts(&index);
        let live = |index: &Index| -> BTreeMap<_, _> {
            let all = index.standing().unwrap().into_iter();
            all.map(|(id, content)| (id, content.live)).collect()
        };
        assert_eq!(live(&index), live(&process.index), "live shares, rebuilt {how}");
    }
}
