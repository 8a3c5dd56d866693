//! Three-way replicated clusters: systems of several processes on one machine, each started by a script.

use crate::systems::{GARAGE, Kind, LARDER, SEAWEEDFS};

/// SeaweedFS' scripts and settings differ in this alone.
const fn seaweedfs(
    setting: &'static str,
    durability: &'static str,
    environment: &'static [(&'static str, &'static str)],
) -> Kind {
    Kind {
        name: "SeaweedFS",
        setting,
        durability,
        peer: Some(&SEAWEEDFS),
        arguments: &[
            "master -defaultReplication=002,",
            "three times weed volume,",
            "weed filer -defaultReplicaPlacement=002, weed s3",
        ],
        environment,
        config: r#"{"identities": [{"name": "bench", "actions": ["Admin", "Read", "Write", "List"],
  "credentials": [{"accessKey": "{access}", "secretKey": "{secret}"}]}]}
"#,
        script: include_str!("clusters/seaweedfs.sh"),
        floor: false,
    }
}

/// As [`seaweedfs`].
const fn garage(
    setting: &'static str,
    durability: &'static str,
    environment: &'static [(&'static str, &'static str)],
) -> Kind {
    Kind {
        name: "Garage",
        setting,
        durability,
        peer: Some(&GARAGE),
        arguments: &["server, three times, replication_factor = 3, in three zones"],
        environment,
        config: "",
        script: include_str!("clusters/garage.sh"),
        floor: false,
    }
}

/// All of them, in the order of the tables.
pub(crate) static CLUSTERS: [Kind; 5] = [
    Kind {
        name: LARDER,
        setting: "default",
        durability: "content and metadata synced on three servers each",
        peer: None,
        arguments: &["dev-cluster", "{data}/cluster", "--nodes", "3"],
        environment: &[],
        config: "",
        script: include_str!("clusters/larder.sh"),
        floor: false,
    },
    seaweedfs("default", "written on three volume servers, nothing synced", &[]),
    seaweedfs(
        "fsync rule",
        "as by default: the filer's rule, its strongest setting, reaches no put over S3",
        &[("RULE", "-fsync")],
    ),
    garage("default", "written by two of three nodes, nothing synced", &[("SYNC", "false")]),
    garage(
        "durable",
        "content and metadata synced by two of three nodes (metadata_fsync, data_fsync)",
        &[("SYNC", "true")],
    ),
];
