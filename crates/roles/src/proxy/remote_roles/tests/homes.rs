//! A change that a primary refuses, as the home of its bucket has moved since the proxy looked.

use larder_objects::{AppendAt, AppendDone, AppendOptions, ObjectError, Objects};
use larder_protocol::manager::state::{Command, GatewayRecord, RegionRecord};
use larder_types::{Attributes, BootId, Condition, Home, HomeScope, HomeState, HomeTerm, RegionId};

use super::managers::PROXY;
use super::{Cluster, Whole, content, key, soon};

const OWN: RegionId = RegionId(1);
const OTHER: RegionId = RegionId(2);
const GATEWAY: GatewayRecord = GatewayRecord { server: PROXY, boot: BootId(1) };

fn home(count: u64, of: RegionId, (scope, state): (HomeScope, HomeState)) -> Home {
    Home { term: HomeTerm { count, of }, scope, state }
}

impl Cluster {
    /// Makes the cluster a region that is the home of the bucket.
    fn become_home(&self) -> Home {
        let region = RegionRecord { number: OWN, fingerprint: [1; 32] };
        self.world.managers.agree(Command::ClaimGateway(region, GATEWAY));
        let here = home(1, OWN, (HomeScope::Conditions, HomeState::Here));
        self.set_home(None, here);
        self.world.managers.publish();
        here
    }

    /// The proxy does not hear of it.
    fn set_home(&self, expected: Option<Home>, next: Home) {
        let name = self.bucket.name.clone();
        self.world.managers.agree(Command::SetHome(GATEWAY, name, expected, next));
    }

    /// Appends a record, and has the proxy hear of what was agreed on once a primary has refused that.
    async fn append_unseen(&self) -> Result<AppendDone, ObjectError> {
        let options = AppendOptions {
            at: AppendAt::End,
            attributes: Attributes::default(),
            condition: Condition::default(),
        };
        let (key, body) = (key("records"), Whole::of(&content(100, 1)));
        let append = self.proxy.append(&self.bucket.name, &key, options, body);
        let (appended, ()) = tokio::join!(soon(append), async {
            tokio::task::yield_now().await;
            self.world.managers.publish();
        });
        appended
    }
}

/// Conditions hold across a move of the home, and where an object ends is as a condition: the region that has the home by now may
/// append there, too.
#[tokio::test]
async fn a_record_is_not_appended_where_the_home_was() {
    let cluster = Cluster::begin().await;
    let here = cluster.become_home();
    cluster.set_home(Some(here), home(2, OTHER, (HomeScope::Conditions, HomeState::Given)));
    assert_eq!(cluster.append_unseen().await.err(), Some(ObjectError::SlowDown));
}

#[tokio::test]
async fn a_record_is_appended_where_the_home_still_is() {
    let cluster = Cluster::begin().await;
    let here = cluster.become_home();
    cluster.set_home(Some(here), home(2, OWN, (HomeScope::Writes, HomeState::Here)));
    assert_eq!(cluster.append_unseen().await.map(|done| done.offset), Ok(0));
}

#[tokio::test]
async fn a_record_is_not_appended_where_no_region_has_the_home_any_more() {
    let cluster = Cluster::begin().await;
    let here = cluster.become_home();
    cluster.set_home(Some(here), home(2, OWN, (HomeScope::Conditions, HomeState::Nowhere)));
    assert_eq!(cluster.append_unseen().await.err(), Some(ObjectError::SlowDown));
}
