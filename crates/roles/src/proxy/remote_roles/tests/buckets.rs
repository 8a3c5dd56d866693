//! A bucket that was deleted, or deleted and made again, while a proxy has an old map.

use std::sync::atomic::Ordering;

use larder_objects::{ListRequest, ObjectError, Objects};
use larder_protocol::manager::state::{Command, Outcome};
use larder_types::{BucketRecord, CorsMethod, CorsRule, CorsRules, Epoch, ObjectKey};

use super::{Cluster, soon};
use crate::proxy::role_access::RoleAccess;

impl Cluster {
    /// Deletes the bucket; the proxy does not hear of it.
    fn delete_unseen(&self) {
        let managers = &self.world.managers;
        managers.agree(Command::BeginDeletion(self.bucket.name.clone()));
        let marked = managers.epoch(self.bucket.id).expect("it is marked");
        let BucketRecord { id, name, .. } = self.bucket.clone();
        managers.agree(Command::EndDeletionOf(id, name, marked, true));
    }

    /// Deletes the bucket and makes it again, with a key in it.
    fn remake_unseen(&self, key: &ObjectKey) -> BucketRecord {
        self.delete_unseen();
        let make = Command::CreateBucket(self.bucket.name.clone(), None, 0);
        let Outcome::Bucket(anew) = self.world.managers.agree(make) else { panic!("no bucket") };
        self.world.index.lock().show(anew.id, key);
        *anew
    }
}

fn key() -> ObjectKey {
    ObjectKey::new("key").expect("it is a key")
}

#[tokio::test]
async fn a_key_is_looked_up_again_in_the_bucket_that_was_made_anew() {
    let cluster = Cluster::begin().await;
    let (name, key) = (&cluster.bucket.name, key());
    let anew = cluster.remake_unseen(&key);
    let (found, ()) = tokio::join!(soon(cluster.proxy.open(name, &key)), async {
        tokio::task::yield_now().await;
        cluster.world.managers.publish();
    });
    assert_eq!(found.map(|opened| opened.bucket), Ok(anew.id));
    assert_eq!(cluster.proxy.counters().bucket_waits.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_bucket_that_was_made_anew_is_listed() {
    let cluster = Cluster::begin().await;
    cluster.remake_unseen(&key());
    let request = ListRequest { max: 10, ..ListRequest::default() };
    let list = cluster.proxy.list(&cluster.bucket.name, request);
    let (listed, ()) = tokio::join!(soon(list), async {
        tokio::task::yield_now().await;
        cluster.world.managers.publish();
    });
    assert_eq!(listed.map(|page| page.items.len()), Ok(1));
}

#[tokio::test]
async fn a_deleted_bucket_is_reported_once_the_deletion_is_known() {
    let cluster = Cluster::begin().await;
    cluster.delete_unseen();
    let (name, key) = (&cluster.bucket.name, key());
    let (found, ()) = tokio::join!(soon(cluster.proxy.open(name, &key)), async {
        tokio::task::yield_now().await;
        cluster.world.managers.publish();
    });
    assert_eq!(found.map(|opened| opened.bucket), Err(ObjectError::NoSuchBucket));
}

#[tokio::test]
async fn that_a_key_is_not_there_is_not_said_by_an_old_map() {
    let cluster = Cluster::begin().await;
    cluster.delete_unseen();
    let found = soon(cluster.proxy.open(&cluster.bucket.name, &key())).await;
    let said = found.map(|opened| opened.bucket);
    assert!(matches!(said, Err(ObjectError::Unavailable { .. })), "{said:?}");
}

#[tokio::test]
async fn a_deletion_ends_for_the_bucket_that_was_marked_and_under_older_managers_for_its_name() {
    for has_older in [false, true] {
        let cluster = Cluster::begin().await;
        let managers = &cluster.world.managers;
        managers.has_older.store(has_older, Ordering::Relaxed);
        let BucketRecord { id, name, .. } = cluster.bucket.clone();
        managers.proposed.lock().clear();
        assert_eq!(soon(cluster.proxy.delete_bucket(&name)).await, Ok(()));
        assert_eq!(managers.epoch(id), None, "it is gone");
        let mut proposed = vec![
            Command::BeginDeletion(name.clone()),
            Command::EndDeletionOf(id, name.clone(), Epoch(2), true),
        ];
        if has_older {
            proposed.push(Command::EndDeletion(name, Epoch(2), true));
        }
        assert_eq!(*managers.proposed.lock(), proposed);
    }
}

#[tokio::test]
async fn a_deletion_whose_mark_was_taken_over_says_that_it_is_to_be_tried_again() {
    let cluster = Cluster::begin().await;
    let BucketRecord { id, name, .. } = cluster.bucket.clone();
    let marked = soon(cluster.proxy.access.begin_deletion(&name)).await.expect("it is marked");
    cluster.world.managers.agree(Command::EndDeletionOf(id, name, marked.epoch, false));
    let ended = soon(cluster.proxy.access.end_deletion(marked, true)).await;
    assert!(matches!(ended, Err(ObjectError::Unavailable { .. })), "{ended:?}");
    assert!(cluster.world.managers.epoch(id).is_some(), "it lives on");
}

#[tokio::test]
async fn the_end_of_a_deletion_by_name_is_not_repeated_when_its_answer_is_lost() {
    let cluster = Cluster::begin().await;
    let managers = &cluster.world.managers;
    let name = cluster.bucket.name.clone();
    let marked = soon(cluster.proxy.access.begin_deletion(&name)).await.expect("it is marked");
    managers.has_older.store(true, Ordering::Relaxed);
    *managers.unheard.lock() = 1;
    managers.proposed.lock().clear();
    let ended = soon(cluster.proxy.access.end_deletion(marked.clone(), true)).await;
    assert!(matches!(ended, Err(ObjectError::Unavailable { .. })), "{ended:?}");
    // Another may have the name by now.
    let by_name = Command::EndDeletion(name.clone(), marked.epoch, true);
    let by_id = Command::EndDeletionOf(marked.id, name, marked.epoch, true);
    assert_eq!(*managers.proposed.lock(), [by_id, by_name]);
}

#[tokio::test]
async fn cors_rules_are_agreed_on_and_shown_when_they_are_said_to_be_set() {
    let cluster = Cluster::begin().await;
    let managers = &cluster.world.managers;
    let name = &cluster.bucket.name;
    let rule = CorsRule {
        id: None,
        methods: vec![CorsMethod::Get],
        origins: vec!["*".to_owned()],
        headers: Vec::new(),
        exposed: Vec::new(),
        max_age_s: None,
    };
    let rules = CorsRules::new(vec![rule]).ok();
    managers.proposed.lock().clear();
    // The first answer is lost: what is proposed again is so already.
    *managers.unheard.lock() = 1;
    assert_eq!(soon(cluster.proxy.set_cors(name, rules.clone())).await, Ok(()));
    assert_eq!(cluster.proxy.cors(name), rules);
    assert_eq!(soon(cluster.proxy.set_cors(name, None)).await, Ok(()));
    assert_eq!(cluster.proxy.cors(name), None);
    let set = |rules| Command::SetCors(name.clone(), rules);
    assert_eq!(*managers.proposed.lock(), [set(rules.clone()), set(rules.clone()), set(None)]);
    cluster.delete_unseen();
    let refused = soon(cluster.proxy.set_cors(name, rules)).await;
    assert_eq!(refused, Err(ObjectError::NoSuchBucket));
}
