//! Bundles in which nothing is live, on their way out of the index.

use larder_kv::Batch;
use larder_types::codec::encode;

use super::*;
use crate::format::rows;
use crate::format::upload_unit::{BundleContent, UploadUnit};
use crate::ids::ProcessId;

impl World {
    /// The committer forgets a bundle in its turn, and refuses one with live bytes without stopping.
    pub(in crate::sim) fn forget_bundles(&mut self) {
        let process = ProcessId::new(7).expect("it is a number of a process");
        let (index, blob) = (self.process().index.clone(), BlobId { worker: self.worker, seq: 9 });
        for (nth, live) in [(1, 5), (2, 0)] {
            let unit = UploadUnit::numbered(nth).expect("a blob has so many bundles");
            let Container::Own(own) = unit.container(blob) else { panic!("a bundle is no blob") };
            let (mut batch, content) = (Batch::new(), BundleContent { end: 5, live, process });
            batch.put(&rows::bundle(own), &encode(&content));
            index.commit(batch, None).expect("the disk is up");
            let (reply, mut answer) = oneshot::channel();
            let request = Request::ForgetBundle { own, process, reply };
            self.process().queue.push(request).expect("the store runs");
            assert_eq!(index.bundle(own).unwrap(), Some(content), "it has its turn");
            self.process().commit().expect("the store goes on");
            let is_forgotten = answer.try_recv().expect("it is answered").is_ok();
            assert_eq!(is_forgotten, live == 0);
            assert_eq!(index.bundle(own).unwrap().is_none(), is_forgotten);
        }
    }
}
