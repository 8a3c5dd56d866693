//! A list that is taken in some names at a time: there may be more than memory has room for.

use futures::TryStreamExt;
use futures::stream::BoxStream;
use object_store::ObjectMeta;

use super::{BackendClient, failed};
use crate::class::RequestClass;
use crate::error::PackError;

/// Names on one page of a list, as S3 has it: so many are taken at a time, which counts as a request.
const PAGE_NAMES: usize = 1000;

/// A list under way.
pub(crate) struct Listing {
    asked: BackendClient,
    prefix: String,
    found: BoxStream<'static, object_store::Result<ObjectMeta>>,
    is_done: bool,
}

impl Listing {
    pub(super) fn new(
        asked: BackendClient,
        prefix: &str,
        found: BoxStream<'static, object_store::Result<ObjectMeta>>,
    ) -> Self {
        Self { asked, prefix: prefix.to_owned(), found, is_done: false }
    }

    /// Some of the names, without the prefix, with sizes, in the order in which the store gives them, which may be none;
    /// `None` after the last.
    ///
    /// # Errors
    /// What the store says. Names of the page that failed may be passed over by then: a list that failed is begun anew.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<(String, u64)>>, PackError> {
        let page = self.page().await?;
        let sized = |(name, object): (String, ObjectMeta)| (name, object.size);
        Ok(page.map(|page| page.into_iter().map(sized).collect()))
    }

    /// As [`Listing::next`], with all that the store says of each.
    ///
    /// # Errors
    /// As for [`Listing::next`].
    pub(super) async fn page(&mut self) -> Result<Option<Vec<(String, ObjectMeta)>>, PackError> {
        if self.is_done {
            return Ok(None);
        }
        let found = &mut self.found;
        let page = async {
            let mut page = Vec::new();
            while page.len() < PAGE_NAMES
                && let Some(object) = found.try_next().await?
            {
                page.push(object);
            }
            Ok(page)
        };
        let page = self.asked.ask(RequestClass::List, page).await;
        let page = page.map_err(|error| failed("list", &self.prefix, &error))?;
        self.is_done = page.len() < PAGE_NAMES;
        let below = |object: ObjectMeta| {
            let name = object.location.as_ref().strip_prefix(self.prefix.as_str());
            let name = name.and_then(|name| name.strip_prefix('/'))?.to_owned();
            Some((name, object))
        };
        Ok(Some(page.into_iter().filter_map(below).collect()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use bytes::Bytes;
    use object_store::memory::InMemory;

    use super::super::Backend;

    #[tokio::test]
    async fn a_list_comes_page_by_page_and_each_counts_as_a_request() {
        let backend = Backend::over(Arc::new(InMemory::new()));
        for number in 0..2500 {
            backend.put(&format!("objects/{number:04}"), Bytes::from_static(b"12")).await.unwrap();
        }
        backend.put("other/0", Bytes::new()).await.unwrap();
        let mut listing = backend.list("objects");
        let mut pages = Vec::new();
        while let Some(page) = listing.next().await.unwrap() {
            pages.push(page);
        }
        assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [1000, 1000, 500]);
        assert_eq!(pages[2][499], ("2499".to_owned(), 2));
        assert!(listing.next().await.unwrap().is_none());
        assert_eq!(backend.counters().requests.list.load(Ordering::Relaxed), 3);
        assert_eq!(backend.names("objects").await.unwrap(), pages.concat());
        assert!(backend.names("nothing").await.unwrap().is_empty());
    }
}
