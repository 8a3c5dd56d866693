//! Looks at all objects, when nothing fails any more.

use std::time::Duration;

use bytes::Bytes;
use larder_objects::{ObjectError, Objects};
use larder_types::ObjectKey;
use tokio::time::{Instant, timeout};

use super::super::clients::CALL_MAX;
use super::records::records_in;
use super::{GROWING, Known, MIXED, Shapes, key, key_of};

/// Time in which a call succeeds that is repeated, when nothing fails any more.
const WELL_AGAIN: Duration = Duration::from_secs(60);

impl Shapes {
    /// Looks at every object of which bits may have rotted: no bytes are read that are not those of whole records.
    pub(in super::super) async fn judge_rotten<P: Objects>(&self, proxy: &P) {
        let scattered: Vec<String> = self.state.lock().scattered.keys().cloned().collect();
        let keys = (0..GROWING + MIXED).map(key_of);
        for name in keys.chain(scattered.iter().map(|name| key(name))) {
            let read = async {
                let opened = proxy.open(&self.bucket, &name).await?;
                self.read_range(proxy, &opened, 0..opened.metax.size).await
            };
            // A read that is refused shows nothing.
            if let Ok(Ok(bytes)) = timeout(CALL_MAX, read).await
                && records_in(&bytes).is_none()
            {
                self.violated(format!("{name:?} shows bytes that have rotted"));
            }
        }
    }

    /// Looks at every object, when nothing fails any more.
    pub(in super::super) async fn judge<P: Objects>(&self, proxy: &P) {
        if proxy.bucket(&self.bucket).is_err() {
            return;
        }
        for object in 0..GROWING + MIXED {
            let name = key_of(object);
            if let Some(found) = self.settled(&format!("object {object}"), proxy, &name).await {
                let found = found.unwrap_or_default();
                self.wrong(object, &found).into_iter().for_each(|wrong| self.violated(wrong));
            }
        }
        let scattered = self.state.lock().scattered.clone();
        for (name, known) in scattered {
            let Some(found) = self.settled(&name, proxy, &key(&name)).await else { continue };
            let records = found.as_ref().map(|bytes| records_in(bytes));
            let is_right = match known {
                Known::There(number) => records == Some(Some(vec![(number, 0)])),
                Known::Gone => found.is_none(),
                Known::Unknown => records != Some(None),
            };
            if !is_right {
                self.violated(format!("{name}, which is {known:?}, has {records:?}"));
            }
        }
    }

    /// The bytes of an object, if there is one; `None` if that cannot be known, which is a violation.
    async fn settled<P: Objects>(
        &self,
        what: &str,
        proxy: &P,
        name: &ObjectKey,
    ) -> Option<Option<Bytes>> {
        let deadline = Instant::now() + WELL_AGAIN;
        loop {
            let read = async {
                let opened = proxy.open(&self.bucket, name).await?;
                self.read_range(proxy, &opened, 0..opened.metax.size).await
            };
            match timeout(CALL_MAX, read).await {
                Ok(Ok(bytes)) => return Some(Some(bytes)),
                Ok(Err(ObjectError::NoSuchKey)) => return Some(None),
                // It was coalesced meanwhile.
                Ok(Err(ObjectError::Changed)) if Instant::now() < deadline => {}
                other => {
                    self.violated(format!("{what} cannot be read at rest: {other:?}"));
                    return None;
                }
            }
        }
    }

    fn wrong(&self, object: u64, bytes: &[u8]) -> Vec<String> {
        let Some(found) = records_in(bytes) else {
            return vec![format!("object {object} is not whole at rest")];
        };
        let mut wrong = Vec::new();
        let mut numbers: Vec<u64> = found.iter().map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        for pair in numbers.windows(2).filter(|pair| pair[0] == pair[1]) {
            wrong.push(format!("record {} is in object {object} twice", pair[0]));
        }
        if object < GROWING {
            let state = self.state.lock();
            let acked = state.acked.iter().filter(|it| it.object == object);
            let missing = acked.filter(|it| !found.contains(&(it.number, it.offset)));
            wrong.extend(missing.map(|it| format!("{it:?} is not there: {found:?}")));
        }
        wrong
    }
}
