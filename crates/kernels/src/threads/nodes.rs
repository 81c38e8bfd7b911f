//! Memory (NUMA) nodes: cores with local memory, and the part of a model on each.
//!
//! ```text
//! node    0                      1
//! cores   0 .. 15                16 .. 31
//! threads 0 .. 7                 8 .. 15          in node order
//! columns 0 .. N/2               N/2 .. N         of every matrix (Nodes::part); kv heads are split the same way
//! ```
//! A machine with two sockets has twice the bandwidth for local reads. So matrices are split by output columns and the
//! KV cache by heads, each part is on the node whose threads compute it, and such a split has no partial sums: the
//! placement changes no bits. (Splitting along K, as tensor parallelism between machines does after every second
//! product, would add numbers in an order that depends on the number of nodes.)

use super::cpus::{allowed_cpus, first_sibling, parse_cpu_list};
use std::ops::Range;

/// Selection of memory nodes for a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeChoice {
    /// The machine's nodes: the fewest that have a core for each thread.
    #[default]
    AsFound,
    /// One node on any machine: the system places the memory.
    One,
    /// This number of nodes sharing the machine's only memory: for tests on machines with one. There may be more threads
    /// than cores.
    #[doc(hidden)]
    Imagined(usize),
}

/// The cores of a memory node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCores {
    /// The system's id; `None`: there is only one node, or it is imagined.
    pub id: Option<u32>,
    /// Its cores that this process may use: one thread of each physical core, then the second ones.
    cpus: Vec<usize>,
    /// Number of physical cores, which come first in `cpus`.
    cores: usize,
}

impl NodeCores {
    /// Number of physical cores.
    pub fn cores(&self) -> usize {
        self.cores
    }
}

/// The memory nodes with a core that this process may use. At least one.
pub fn memory_nodes() -> Vec<NodeCores> {
    let allowed = allowed_cpus();
    let node = |id: Option<u32>, cpus: &[usize]| {
        let (mut first, second): (Vec<_>, Vec<_>) = cpus.iter().partition(|&&cpu| first_sibling(cpu, &allowed));
        let cores = first.len();
        first.extend(second);
        NodeCores { id, cpus: first, cores }
    };
    let found: Vec<_> = nodes_of_system().into_iter().map(|(id, cpus)| (id, intersection(&cpus, &allowed))).collect();
    // An inconsistent report would lose a core that no node lists: treat the machine as one node.
    if found.iter().map(|(_, cpus)| cpus.len()).sum::<usize>() != allowed.len() || found.len() < 2 {
        return vec![node(None, &allowed)];
    }
    let mut nodes: Vec<_> =
        found.iter().filter(|(_, cpus)| !cpus.is_empty()).map(|(id, cpus)| node(Some(*id), cpus)).collect();
    if let [one] = &mut nodes[..] {
        one.id = None;
    }
    nodes
}

/// Number of memory nodes of a pool with `threads` threads.
pub fn num_nodes(choice: NodeChoice, threads: usize) -> usize {
    Nodes::place(choice, &memory_nodes(), threads).0.len()
}

/// Id and cores of each node, by id.
fn nodes_of_system() -> Vec<(u32, Vec<usize>)> {
    let Ok(entries) = std::fs::read_dir("/sys/devices/system/node") else { return Vec::new() };
    let mut nodes: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let id = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let cpus = std::fs::read_to_string(entry.path().join("cpulist")).ok()?;
            Some((id, parse_cpu_list(&cpus)))
        })
        .collect();
    nodes.sort_unstable_by_key(|&(id, _)| id);
    nodes
}

fn intersection(cpus: &[usize], allowed: &[usize]) -> Vec<usize> {
    cpus.iter().copied().filter(|cpu| allowed.contains(cpu)).collect()
}

/// Distribution of a pool's threads over memory nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// First thread of each node, then the number of threads.
    first_threads: Vec<usize>,
    /// The system's ids.
    ids: Vec<Option<u32>>,
}

impl Nodes {
    /// One node with all threads.
    pub fn one(threads: usize) -> Nodes {
        Nodes { first_threads: vec![0, threads], ids: vec![None] }
    }

    /// Imagined nodes, each with at least one thread.
    fn imagined(nodes: usize, threads: usize) -> Nodes {
        let nodes = nodes.clamp(1, threads);
        let first_threads = (0..=nodes).map(|node| threads * node / nodes).collect();
        Nodes { first_threads, ids: vec![None; nodes] }
    }

    /// Assigns threads to the fewest nodes with a physical core for each, in proportion to their cores; also returns the
    /// core of each thread, as far as there are enough.
    pub(super) fn place(choice: NodeChoice, machine: &[NodeCores], threads: usize) -> (Nodes, Vec<usize>) {
        let all_in_turn = || {
            let parts = |of: fn(&NodeCores) -> &[usize]| machine.iter().flat_map(of).copied();
            parts(|node| &node.cpus[..node.cores]).chain(parts(|node| &node.cpus[node.cores..])).collect::<Vec<_>>()
        };
        match choice {
            NodeChoice::One => return (Nodes::one(threads), all_in_turn()),
            NodeChoice::Imagined(nodes) => return (Nodes::imagined(nodes, threads), all_in_turn()),
            NodeChoice::AsFound if machine.len() < 2 => return (Nodes::one(threads), all_in_turn()),
            NodeChoice::AsFound => {}
        }
        let mut by_size: Vec<_> = machine.iter().collect();
        by_size.sort_by_key(|node| std::cmp::Reverse(node.cores));
        let enough = |count: &usize| by_size[..*count].iter().map(|node| node.cores).sum::<usize>() >= threads;
        let count = (1..=by_size.len()).find(enough).unwrap_or(by_size.len());
        let mut used = by_size[..count].to_vec();
        used.sort_by_key(|node| node.id);
        let cores: usize = used.iter().map(|node| node.cores).sum();
        let (mut first_threads, mut cpus, mut so_far) = (vec![0], Vec::new(), 0);
        for node in &used {
            so_far += node.cores;
            let (from, to) = (first_threads[first_threads.len() - 1], threads * so_far / cores);
            cpus.extend(node.cpus.iter().take(to - from));
            first_threads.push(to);
        }
        (Nodes { first_threads, ids: used.iter().map(|node| node.id).collect() }, cpus)
    }

    /// Number of nodes; at least one.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// The system's id of a node, to request memory on it.
    pub(crate) fn id(&self, node: usize) -> Option<u32> {
        self.ids[node]
    }

    /// The threads of a node.
    pub(crate) fn threads_of(&self, node: usize) -> Range<usize> {
        self.first_threads[node]..self.first_threads[node + 1]
    }

    /// The node of a thread.
    pub(crate) fn of_thread(&self, thread: usize) -> usize {
        (0..self.len()).find(|&node| thread < self.first_threads[node + 1]).unwrap_or(0)
    }

    /// The part of `0..count` of a node: the [`share`](super::share)s of its threads.
    pub fn part(&self, count: usize, node: usize) -> Range<usize> {
        let threads = self.first_threads[self.len()];
        let Range { start, end } = self.threads_of(node);
        count * start / threads..count * end / threads
    }

    /// The node whose part contains `index` of `0..count`.
    pub(crate) fn of(&self, count: usize, index: usize) -> usize {
        (0..self.len()).find(|&node| index < self.part(count, node).end).expect("parts cover all")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(cores: &[usize]) -> Vec<NodeCores> {
        let mut next = 0;
        let node = |(id, &cores): (usize, &usize)| {
            // Each physical core has two hyperthreads; all first ones are numbered before all second ones.
            let cpus = (next..next + 2 * cores).collect();
            next += 2 * cores;
            NodeCores { id: Some(id as u32), cpus, cores }
        };
        cores.iter().enumerate().map(node).collect()
    }

    #[test]
    fn threads_go_to_the_fewest_nodes_that_have_a_core_for_each() {
        // Cores of the nodes, threads, threads by node.
        let cases: [(&[usize], usize, &[usize]); 8] = [
            (&[4, 4], 8, &[4, 4]),
            (&[4, 4], 4, &[4]),
            (&[4, 4], 5, &[2, 3]),
            (&[4, 4], 12, &[6, 6]),
            (&[2, 6], 5, &[5]),
            (&[2, 6], 8, &[2, 6]),
            (&[4, 4, 4, 4], 9, &[3, 3, 3]),
            (&[4], 3, &[3]),
        ];
        for (cores, threads, wanted) in cases {
            let (nodes, cpus) = Nodes::place(NodeChoice::AsFound, &machine(cores), threads);
            let placed: Vec<_> = (0..nodes.len()).map(|node| nodes.threads_of(node).len()).collect();
            assert_eq!(placed, wanted, "{threads} threads on {cores:?}");
            assert!(cpus.len() >= threads.min(2 * cores.iter().sum::<usize>()), "{cpus:?}");
            let distinct: std::collections::BTreeSet<_> = cpus.iter().collect();
            assert_eq!(distinct.len(), cpus.len(), "a core for each");
        }
    }

    #[test]
    fn a_thread_runs_where_its_columns_lie() {
        let machine = machine(&[2, 6]);
        let (nodes, cpus) = Nodes::place(NodeChoice::AsFound, &machine, 8);
        assert_eq!(cpus.len(), 8);
        for (thread, cpu) in cpus.iter().enumerate() {
            let node = nodes.of_thread(thread);
            assert!(machine[node].cpus.contains(cpu), "thread {thread} of node {node} on {cpu}");
            for count in [1, 2, 3, 7, 8, 38, 152] {
                let (own, part) = (crate::threads::share(count, 8, thread), nodes.part(count, node));
                assert!(own.is_empty() || part.start <= own.start && own.end <= part.end, "{own:?} in {part:?}");
            }
        }
        let (one, _) = Nodes::place(NodeChoice::One, &machine, 8);
        assert_eq!((one.len(), one.part(38, 0)), (1, 0..38));
    }

    #[test]
    fn there_is_a_node_with_every_core_of_this_process() {
        let nodes = memory_nodes();
        assert!(!nodes.is_empty());
        if cfg!(target_os = "linux") {
            let cpus: usize = nodes.iter().map(|node| node.cpus.len()).sum();
            assert_eq!(cpus, allowed_cpus().len());
        }
    }
}
