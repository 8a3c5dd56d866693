//! The nodes that the kernel knows: numbers of files and directories, and what is open under them.
//! Pure.
//!
//! # Invariants
//!
//! 1. A path has one node at most. A node without a path is of a file that was deleted or replaced, and lives as long as
//!    something is open of it or the kernel knows it.
//! 2. A number is never used again.
//! 3. A file's node is one version of its object, and what this mount makes of it. Once another client replaced the object, its
//!    path gets another node: bytes of two versions never meet under one number, nor in the kernel's cache.
//! 4. A node goes when the kernel forgot it as often as it was told of it and nothing is open of it. There are
//!    [`NODES_MAX`] at most.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use larder_types::{HybridClock, ObjectKey};

use crate::limits::NODES_MAX;
use crate::path::TreePath;
use crate::refusal::Refusal;

/// A node's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ino(pub u64);

/// The root's number.
pub const ROOT: Ino = Ino(1);

#[derive(Debug)]
struct Node<F> {
    path: Option<TreePath>,
    /// The number of times that the kernel was told of it, less those it forgot.
    lookups: u64,
    /// Of a file: the version it is. None of directories, and of files that were never put.
    version: Option<HybridClock>,
    /// The open file, and how often it is open.
    open: Option<(F, usize)>,
    /// Another client replaced it: what is written to it from then on has no place, and must not be lost in silence.
    superseded: bool,
}

/// The nodes. `F` is what is kept of an open file, shared by all that opened it.
#[derive(Debug)]
pub struct Nodes<F> {
    nodes: HashMap<Ino, Node<F>>,
    paths: BTreeMap<TreePath, Ino>,
    next: u64,
    max: usize,
}

impl<F: Clone> Default for Nodes<F> {
    fn default() -> Self {
        Self::with_capacity_of(NODES_MAX)
    }
}

impl<F: Clone> Nodes<F> {
    fn with_capacity_of(max: usize) -> Self {
        let path = Some(TreePath::root());
        let root = Node { path, lookups: 1, version: None, open: None, superseded: false };
        Self {
            nodes: HashMap::from([(ROOT, root)]),
            paths: BTreeMap::from([(TreePath::root(), ROOT)]),
            next: ROOT.0 + 1,
            max,
        }
    }

    /// The number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Where it is.
    ///
    /// # Errors
    /// [`Refusal::Stale`] if it was deleted or replaced.
    pub fn path(&self, ino: Ino) -> Result<TreePath, Refusal> {
        self.nodes.get(&ino).and_then(|node| node.path.clone()).ok_or(Refusal::Stale)
    }

    /// The node at a path.
    #[must_use]
    pub fn at(&self, path: &TreePath) -> Option<Ino> {
        self.paths.get(path).copied()
    }

    /// The node of a file's key.
    #[must_use]
    pub fn at_key(&self, key: &ObjectKey) -> Option<Ino> {
        self.at(&TreePath::of_key(key)?)
    }

    /// The version that a file's node is.
    #[must_use]
    pub fn version(&self, ino: Ino) -> Option<HybridClock> {
        self.nodes.get(&ino)?.version
    }

    /// The open file of a node.
    #[must_use]
    pub fn open_of(&self, ino: Ino) -> Option<F> {
        Some(self.nodes.get(&ino)?.open.as_ref()?.0.clone())
    }

    /// The open file of the node at a path.
    #[must_use]
    pub fn open_at(&self, path: &TreePath) -> Option<(Ino, F)> {
        let ino = self.at(path)?;
        Some((ino, self.open_of(ino)?))
    }

    /// The open files at or below a path.
    #[must_use]
    pub fn open_below(&self, path: &TreePath) -> Vec<(Ino, TreePath, F)> {
        let open = |ino: Ino, at: &TreePath| Some((ino, at.clone(), self.open_of(ino)?));
        self.inside(path).into_iter().filter_map(|(at, ino)| open(ino, &at)).collect()
    }

    /// All that is open.
    #[must_use]
    pub fn all_open(&self) -> Vec<(Ino, F)> {
        let open = |(ino, node): (&Ino, &Node<F>)| Some((*ino, node.open.as_ref()?.0.clone()));
        let mut all: Vec<_> = self.nodes.iter().filter_map(open).collect();
        all.sort_by_key(|(ino, _)| *ino);
        all
    }

    /// Tells the kernel of what is at `path`: a file of this version, or a directory. Another version than that of the path's node
    /// is another node.
    ///
    /// # Errors
    /// [`Refusal::TooManyNodes`].
    pub fn look_up_inode(
        &mut self,
        path: &TreePath,
        version: Option<HybridClock>,
    ) -> Result<Ino, Refusal> {
        if let Some(ino) = self.at(path) {
            let node = self.nodes.get_mut(&ino).expect("a path's node is there");
            if node.version == version || path.is_root() {
                node.lookups += 1;
                return Ok(ino);
            }
            self.supersede(path);
        }
        self.make(path, version)
    }

    /// Tells the kernel once more of a node that it is about to be told of anyway.
    pub fn refresh_lookup(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.lookups += 1;
        }
    }

    fn make(&mut self, path: &TreePath, version: Option<HybridClock>) -> Result<Ino, Refusal> {
        if self.nodes.len() >= self.max {
            return Err(Refusal::TooManyNodes);
        }
        let ino = Ino(self.next);
        self.next += 1;
        let node =
            Node { path: Some(path.clone()), lookups: 1, version, open: None, superseded: false };
        self.nodes.insert(ino, node);
        let before = self.paths.insert(path.clone(), ino);
        assert!(before.is_none(), "a path has one node");
        Ok(ino)
    }

    /// The kernel forgets it `times` times.
    pub fn forget(&mut self, ino: Ino, times: u64) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.lookups = node.lookups.saturating_sub(times);
        }
        self.drop_if_idle(ino);
    }

    /// Opens it once more: what is open of it, made by `make` if nothing is.
    ///
    /// # Errors
    /// [`Refusal::Stale`] if there is no such node.
    pub fn open(&mut self, ino: Ino, make: impl FnOnce() -> F) -> Result<F, Refusal> {
        let node = self.nodes.get_mut(&ino).ok_or(Refusal::Stale)?;
        let (file, times) = node.open.get_or_insert_with(|| (make(), 0));
        *times += 1;
        Ok(file.clone())
    }

    /// Closes it once.
    pub fn close(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            let Some((_, times)) = &mut node.open else { return };
            *times -= 1;
            if *times == 0 {
                node.open = None;
            }
        }
        self.drop_if_idle(ino);
    }

    /// This mount made this version of it.
    pub fn put_as(&mut self, ino: Ino, version: HybridClock) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.version = Some(version);
        }
    }

    /// Forgets the path of a node that another client deleted or replaced.
    pub fn supersede(&mut self, path: &TreePath) {
        if let Some(ino) = self.at(path) {
            self.nodes.get_mut(&ino).expect("a path's node is there").superseded = true;
            self.detach(ino);
        }
    }

    /// True if another client replaced it.
    #[must_use]
    pub fn is_superseded(&self, ino: Ino) -> bool {
        self.nodes.get(&ino).is_some_and(|node| node.superseded)
    }

    /// This mount deleted or replaced what was at the path.
    pub fn gone(&mut self, path: &TreePath) {
        if let Some(ino) = self.at(path) {
            self.detach(ino);
        }
    }

    fn detach(&mut self, ino: Ino) {
        assert_ne!(ino, ROOT, "the root stays");
        let node = self.nodes.get_mut(&ino).expect("a path's node is there");
        let path = node.path.take().expect("it had a path");
        self.paths.remove(&path);
        self.drop_if_idle(ino);
    }

    /// Moves the nodes at or below `from` to the same place at or below `to`, and replaces those
    /// there.
    pub fn moved(&mut self, from: &TreePath, to: &TreePath) {
        for (_, replaced) in self.inside(to) {
            self.detach(replaced);
        }
        for (old, ino) in self.inside(from) {
            let new = old.moved(from, to).expect("it is inside");
            self.paths.remove(&old);
            self.paths.insert(new.clone(), ino);
            self.nodes.get_mut(&ino).expect("a path's node is there").path = Some(new);
        }
    }

    /// The nodes at or below a path.
    fn inside(&self, path: &TreePath) -> Vec<(TreePath, Ino)> {
        let below = path.below();
        let mut inside: Vec<_> = self.at(path).map(|ino| (path.clone(), ino)).into_iter().collect();
        let behind = (Bound::Excluded(path.clone()), Bound::Unbounded);
        // Names with a character before '/' may stand between a path and what is below it.
        let close = self.paths.range(behind);
        let close = close.take_while(|(at, _)| at.as_str().starts_with(path.as_str()));
        let of_it = close.filter(|(at, _)| at.as_str().starts_with(&below));
        inside.extend(of_it.map(|(at, ino)| (at.clone(), *ino)));
        inside
    }

    fn drop_if_idle(&mut self, ino: Ino) {
        let idle = |node: &Node<F>| node.lookups == 0 && node.open.is_none();
        if ino == ROOT || !self.nodes.get(&ino).is_some_and(idle) {
            return;
        }
        if let Some(Node { path: Some(path), .. }) = self.nodes.remove(&ino) {
            self.paths.remove(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::path;

    const V1: Option<HybridClock> = Some(HybridClock(1));
    const V2: Option<HybridClock> = Some(HybridClock(2));

    #[test]
    fn a_node_goes_when_the_kernel_forgot_it_and_nothing_is_open() {
        let mut nodes = Nodes::<()>::default();
        let a = nodes.look_up_inode(&path("a"), V1).unwrap();
        assert_eq!(nodes.look_up_inode(&path("a"), V1), Ok(a), "told of twice");
        nodes.open(a, || ()).unwrap();
        nodes.forget(a, 1);
        assert_eq!(nodes.at(&path("a")), Some(a));
        nodes.forget(a, 1);
        assert_eq!(nodes.at(&path("a")), Some(a), "it is open still");
        nodes.close(a);
        assert_eq!((nodes.at(&path("a")), nodes.len()), (None, 1));
        assert!(nodes.look_up_inode(&path("a"), V1).unwrap() > a, "numbers are not used again");
    }

    #[test]
    fn another_version_is_another_node() {
        let mut nodes = Nodes::<()>::default();
        let old = nodes.look_up_inode(&path("a"), V1).unwrap();
        nodes.open(old, || ()).unwrap();
        let new = nodes.look_up_inode(&path("a"), V2).unwrap();
        assert_ne!(old, new);
        assert_eq!((nodes.path(old), nodes.at(&path("a"))), (Err(Refusal::Stale), Some(new)));
        assert!(nodes.is_superseded(old) && !nodes.is_superseded(new));
        assert!(nodes.open_of(old).is_some(), "who has it open keeps it");
        nodes.put_as(new, HybridClock(3));
        assert_eq!(
            nodes.look_up_inode(&path("a"), Some(HybridClock(3))),
            Ok(new),
            "our own version"
        );
    }

    #[test]
    fn a_renamed_directory_takes_along_what_is_below_it_and_nothing_else() {
        let mut nodes = Nodes::<u8>::default();
        let names = ["d", "d/x", "d/y/z", "d-e", "dd", "t", "t/old"];
        let numbers: Vec<_> =
            names.iter().map(|name| nodes.look_up_inode(&path(name), None).unwrap()).collect();
        nodes.open(numbers[2], || 7).unwrap();
        nodes.moved(&path("d"), &path("t"));
        assert_eq!(nodes.at(&path("t")), Some(numbers[0]));
        assert_eq!(nodes.at(&path("t/x")), Some(numbers[1]));
        assert_eq!(nodes.open_at(&path("t/y/z")), Some((numbers[2], 7)));
        assert_eq!(nodes.at(&path("d-e")), Some(numbers[3]));
        assert_eq!(nodes.at(&path("dd")), Some(numbers[4]));
        assert_eq!((nodes.at(&path("d")), nodes.at(&path("t/old"))), (None, None));
        assert_eq!(nodes.path(numbers[6]), Err(Refusal::Stale), "it was replaced");
        let open: Vec<_> = nodes.open_below(&path("t")).into_iter().map(|it| it.0).collect();
        assert_eq!(open, [numbers[2]]);
    }

    #[test]
    fn there_is_a_limit() {
        let mut nodes = Nodes::<()>::with_capacity_of(2);
        let a = nodes.look_up_inode(&path("a"), None).unwrap();
        assert_eq!(nodes.look_up_inode(&path("b"), None), Err(Refusal::TooManyNodes));
        nodes.forget(a, 1);
        assert!(nodes.look_up_inode(&path("b"), None).is_ok());
        nodes.forget(ROOT, 1);
        assert_eq!(nodes.at(&TreePath::root()), Some(ROOT), "the root stays");
    }
}
