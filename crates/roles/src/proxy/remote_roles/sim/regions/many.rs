//! Objects of many bytes, which come to other regions while these are cut off from each other, gateways begin anew, and other clients
//! replace or delete the objects.

use std::time::Duration;

use larder_objects::{Objects, PutOptions};
use larder_types::{Condition, ObjectKey};
use md5::{Digest, Md5};
use tokio::time::sleep;

use super::super::shapes::{record, records_in};
use super::clients::{self, Body};
use super::region::PROXIES_OF_EACH;
use super::{Simulation, Tried};
use crate::limits::REGION_WHOLE_BYTES_MAX;
use crate::proxy::ClusterProxy;

const OBJECTS: u64 = 3;
/// Changes of all of them together.
const CHANGES: u64 = 10;
/// Bytes by which an object has more than [`REGION_WHOLE_BYTES_MAX`], at most.
const MORE_BYTES_MAX: u64 = 1_500_000;

fn key_of(object: u64) -> ObjectKey {
    ObjectKey::new(&format!("many{object}")).expect("it is a key")
}

impl Simulation {
    /// Has clients of all regions change objects of many bytes. In the end all regions have the same of each.
    pub(super) async fn change_many(&self) {
        let bucket = Tried::new("many", None, false);
        self.make_everywhere(&bucket).await;
        for number in 1..=CHANGES {
            self.change_one(&bucket, number).await;
            sleep(self.targets.sim_rng.ms(1500)).await;
            self.inject_faults().await;
        }
        self.quiesce().await;
        for object in 0..OBJECTS {
            self.compare(&bucket, object).await;
        }
    }

    async fn change_one(&self, bucket: &Tried, number: u64) {
        let sim_rng = &self.targets.sim_rng;
        let region = sim_rng.below(self.regions().len() as u64) as usize;
        let at = sim_rng.below(PROXIES_OF_EACH as u64) as usize;
        let (client, key) =
            (bucket.client(self.regions(), region, at), key_of(sim_rng.below(OBJECTS)));
        if sim_rng.one_in(6) {
            let delete = async |proxy: &ClusterProxy| {
                proxy.delete(&client.bucket, &key, Condition::default()).await
            };
            // It may be refused.
            drop(client.at(delete).await);
            return;
        }
        let bytes = record(number, (REGION_WHOLE_BYTES_MAX + sim_rng.below(MORE_BYTES_MAX)) as u32);
        let body = Body { sum: Md5::digest(&bytes).into(), bytes: Some(bytes) };
        let put = async |proxy: &ClusterProxy| {
            proxy.put(&client.bucket, &key, PutOptions::default(), body).await
        };
        drop(client.at(put).await);
    }

    /// Something befalls what comes, and ends by itself.
    async fn inject_faults(&self) {
        let sim_rng = &self.targets.sim_rng;
        let one = sim_rng.below(self.regions().len() as u64) as usize;
        let other = (one + 1) % self.regions().len();
        match sim_rng.below(6) {
            0 => {
                self.cut_both(one, other, true);
                sleep(sim_rng.ms(3000)).await;
                self.cut_both(one, other, false);
            }
            1 => {
                self.slow(one, other, Duration::from_millis(400));
                sleep(sim_rng.ms(3000)).await;
                self.slow(one, other, Duration::ZERO);
            }
            2 => self.targets.network.reset(self.place_of(one), self.place_of(other)),
            3 => {
                let region = &self.regions()[one];
                region.restart_proxy(region.gateway(), sim_rng.one_in(2), sim_rng.ms(2000)).await;
            }
            _ => {}
        }
    }

    /// All regions have the same of an object, and that as it was put.
    async fn compare(&self, bucket: &Tried, object: u64) {
        let mut all = Vec::new();
        for (number, region) in self.regions().iter().enumerate() {
            for at in 0..PROXIES_OF_EACH {
                let client = bucket.client(self.regions(), number, at);
                match client.read(&key_of(object)).await {
                    Some(found) => {
                        let shown = |(metax, bytes)| (clients::at(region.number, &metax), bytes);
                        all.push(found.map(shown));
                    }
                    None => client.violated(&format!("object {object} of many bytes is not read")),
                }
            }
        }
        let is_one = |bytes: &[u8]| records_in(bytes).is_some_and(|records| records.len() == 1);
        let is_right = all.iter().flatten().all(|(_, bytes)| is_one(bytes));
        if !is_right || all.windows(2).any(|pair| pair[0] != pair[1]) {
            let shown: Vec<_> =
                all.iter().map(|it| it.as_ref().map(|(at, bytes)| (at, bytes.len()))).collect();
            self.violated(format!("regions differ in object {object} of many bytes: {shown:?}"));
        }
    }
}
