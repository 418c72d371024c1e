//! Redis servers that belong together: a master with a replica and the Sentinels that watch them, and a cluster.
//!
//! Both notice a dead master within about a second, and put another in its place.

use std::fs;
use std::time::Duration;

use super::child;
use super::folder;
use super::redis::Redis;

/// Electing takes a second or two on a quiet machine.
const LIMIT: Duration = Duration::from_secs(30);

/// How long a server may be silent before it counts as dead, in milliseconds.
const SILENCE: &str = "500";

/// The name that the Sentinels know the master by.
pub(crate) const MASTER: &str = "formgate";

/// A master, a replica, and three Sentinels of which two decide.
pub(crate) struct Sentinels {
    /// The master; killing it makes the replica the next.
    pub(crate) master: Redis,
    sentinels: Vec<Redis>,
    _replica: Redis,
}

impl Sentinels {
    /// Starts them, and waits until each knows the others. The servers want a password; the Sentinels don't.
    pub(crate) fn start(password: &str) -> Self {
        let secured = ["--masterauth", password, "--repl-diskless-sync-delay", "0"];
        let master = Redis::start_with(&secured);
        let require = |server: &Redis| server.run::<()>(&["CONFIG", "SET", "requirepass", password]);
        require(&master);
        let of = ["--replicaof", &format!("127.0.0.1 {}", master.port())];
        let replica = Redis::start_with(&[&secured[..], &of[..]].concat());
        // Sentinels ask for the replicas at once, and then every ten seconds.
        until(|| says(&replica, &["INFO", "replication"], "master_link_status:up"));
        require(&replica);
        let sentinels = (0..3).map(|n| {
            // Sentinels write into their files.
            let file = folder::of_this_run().join(format!("sentinel-{}-{n}.conf", master.port()));
            let rules = [
                format!("monitor {MASTER} 127.0.0.1 {} 2", master.port()),
                format!("auth-pass {MASTER} {password}"),
                format!("down-after-milliseconds {MASTER} {SILENCE}"),
                format!("failover-timeout {MASTER} 3000"),
            ];
            let rules: String = rules.iter().map(|rule| format!("sentinel {rule}\n")).collect();
            fs::write(&file, rules).expect("the folder of this run can be written");
            Redis::start_sentinel(&file)
        });
        let group = Self { sentinels: sentinels.collect(), master, _replica: replica };
        for sentinel in &group.sentinels {
            until(|| {
                let facts: Vec<String> = sentinel.run(&["SENTINEL", "MASTER", MASTER]);
                let fact = |name: &str| facts.chunks(2).find(|fact| fact[0] == name).map(|fact| fact[1].clone());
                fact("num-slaves").as_deref() == Some("1") && fact("num-other-sentinels").as_deref() == Some("2")
            });
        }
        group
    }

    /// Where the Sentinels are.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Redis::url).collect()
    }
}

/// Three masters with a third of the keys each, and a replica of one.
pub(crate) struct Cluster {
    /// The masters. The first holds the key that the cluster was started for, and has the replica.
    pub(crate) masters: Vec<Redis>,
    replica: Redis,
    /// The third that the first master holds.
    first: usize,
}

/// Where the thirds of the slots begin, and the last one ends.
const BOUNDS: [usize; 4] = [0, 5461, 10923, 16384];

impl Cluster {
    /// Starts it, and waits until all nodes agree that it is whole.
    pub(crate) fn start(key: &str) -> Self {
        let masters: Vec<Redis> = (0..3).map(|_| start_node()).collect();
        let slot: usize = masters[0].run(&["CLUSTER", "KEYSLOT", key]);
        let replica = start_node();
        let first = BOUNDS.iter().rposition(|bound| *bound <= slot).expect("slots start at 0");
        for (n, master) in masters.iter().enumerate() {
            let third = (first + n) % 3;
            let (from, to) = (BOUNDS[third].to_string(), (BOUNDS[third + 1] - 1).to_string());
            master.run::<()>(&["CLUSTER", "ADDSLOTSRANGE", &from, &to]);
            master.run::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(n + 1).to_string()]);
        }
        for node in masters[1..].iter().chain([&replica]) {
            let (port, bus) = (node.port().to_string(), bus_port(node));
            masters[0].run::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
        let group = Self { masters, replica, first };
        for node in group.nodes() {
            until(|| says(node, &["CLUSTER", "INFO"], "cluster_known_nodes:4"));
        }
        let id: String = group.masters[0].run(&["CLUSTER", "MYID"]);
        group.replica.run::<()>(&["CLUSTER", "REPLICATE", &id]);
        until(|| says(&group.replica, &["INFO", "replication"], "master_link_status:up"));
        for node in group.nodes() {
            until(|| says(node, &["CLUSTER", "INFO"], "cluster_state:ok"));
            until(|| says(node, &["CLUSTER", "NODES"], "slave "));
        }
        group
    }

    /// Has the masters go on while slots of others can't be reached.
    pub(crate) fn serve_without_all_slots(&self) {
        for node in self.nodes() {
            node.run::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
        }
    }

    /// Which of the masters holds a key.
    pub(crate) fn place_of(&self, key: &str) -> usize {
        let slot: usize = self.masters[0].run(&["CLUSTER", "KEYSLOT", key]);
        let holds = |third: usize| (BOUNDS[third]..BOUNDS[third + 1]).contains(&slot);
        (0..3).find(|n| holds((self.first + n) % 3)).expect("every slot is held")
    }

    /// Where some of its nodes are; the dying one is not among them.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.masters[1..].iter().map(Redis::url).collect()
    }

    fn nodes(&self) -> impl Iterator<Item = &Redis> {
        self.masters.iter().chain([&self.replica])
    }
}

/// A node by itself. Its second port is not the first and ten thousand, which may be no port.
fn start_node() -> Redis {
    let bus = child::free_port().to_string();
    let file = format!("nodes-{bus}.conf");
    Redis::start_with(&[
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        &bus,
        "--cluster-config-file",
        &file,
        "--cluster-node-timeout",
        SILENCE,
        "--repl-diskless-sync-delay",
        "0",
    ])
}

fn says(server: &Redis, command: &[&str], text: &str) -> bool {
    server.run::<String>(command).contains(text)
}

fn bus_port(node: &Redis) -> String {
    let [_, port]: [String; 2] = node.run(&["CONFIG", "GET", "cluster-port"]);
    port
}

fn until(mut holds: impl FnMut() -> bool) {
    child::until(LIMIT, || holds().then_some(())).expect("the servers find each other");
}
