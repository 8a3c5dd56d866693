//! Buckets that are made through one proxy, and looked for through another as soon as that is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_objects::Objects;
use larder_types::BucketName;
use tokio::time::timeout;

use super::super::super::ClusterProxy;
use super::SimRng;
use super::clients::CALL_MAX;
use super::proxies::Findings;

/// Buckets that are made.
const BUCKETS: u64 = 12;

/// Makes buckets and looks for them.
pub(super) struct BucketMaker {
    pub(super) sim_rng: SimRng,
    pub(super) findings: Arc<Findings>,
    pub(super) proxies: Vec<Arc<ClusterProxy>>,
    /// Buckets that a proxy knew only once it had caught up.
    pub(super) caught_up: Arc<AtomicU64>,
}

impl BucketMaker {
    pub(super) async fn run(self) {
        for number in 0..BUCKETS {
            tokio::time::sleep(self.sim_rng.ms(400)).await;
            let name = BucketName::new(&format!("made{number}")).expect("it is a name");
            let [maker, other] = [(); 2].map(|()| self.any());
            let made = timeout(CALL_MAX, maker.create_bucket(&name, None)).await;
            if !matches!(made, Ok(Ok(_))) {
                continue;
            }
            // As the gateway does before it answers that there is none.
            let was_known = other.has_bucket(&name);
            if !was_known && !matches!(timeout(CALL_MAX, other.catch_up()).await, Ok(Ok(()))) {
                continue;
            }
            if !other.has_bucket(&name) {
                self.findings.violated(format!("bucket {name} was made, and is called missing"));
            }
            self.caught_up.fetch_add(u64::from(!was_known), Ordering::Relaxed);
        }
    }

    fn any(&self) -> &ClusterProxy {
        &self.proxies[self.sim_rng.below(self.proxies.len() as u64) as usize]
    }
}
