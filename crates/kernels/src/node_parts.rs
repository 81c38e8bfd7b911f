//! Bytes in equal pieces, each node's pieces in its memory.
//!
//! ```text
//! pieces    0 1 2 3 | 4 5 6 7         split by Nodes::part
//! memory    [ node 0 ]  [ node 1 ]
//! ```
//! On a machine with one node this is one buffer. Sequential access follows the order of the pieces, so file formats do
//! not depend on the nodes.

use crate::mem::{Buffer, OutOfMemory};
use crate::threads::Nodes;

/// Pieces split over memory nodes: see the module.
pub(crate) struct NodeParts {
    parts: Vec<Part>,
    piece_bytes: usize,
}

struct Part {
    /// Index of its first piece.
    first: usize,
    bytes: Buffer<u8>,
}

impl NodeParts {
    /// `pieces` of `piece_bytes` zeros each; without nodes in one buffer.
    pub(crate) fn zeroed(nodes: Option<&Nodes>, pieces: usize, piece_bytes: usize) -> Result<NodeParts, OutOfMemory> {
        let part = |node: Option<u32>, range: std::ops::Range<usize>| {
            let bytes = range.len().checked_mul(piece_bytes).ok_or(OutOfMemory { bytes: usize::MAX })?;
            Ok(Part { first: range.start, bytes: Buffer::zeroed_on(node, bytes)? })
        };
        let parts = match nodes {
            None => vec![part(None, 0..pieces)?],
            Some(nodes) => {
                let parts = (0..nodes.len()).map(|node| part(nodes.id(node), nodes.part(pieces, node)));
                parts.collect::<Result<_, OutOfMemory>>()?
            }
        };
        Ok(NodeParts { parts, piece_bytes })
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes.bytes()).sum()
    }

    /// Piece `index`; a few nanoseconds if there are several nodes.
    #[inline(always)]
    pub(crate) fn piece(&self, index: usize) -> &[u8] {
        let part = match &self.parts[..] {
            [one] => one,
            parts => {
                parts.iter().rev().find(|part| part.first <= index && !part.bytes.is_empty()).expect("a part has it")
            }
        };
        &part.bytes[(index - part.first) * self.piece_bytes..][..self.piece_bytes]
    }

    /// All pieces in order, mutable.
    pub(crate) fn pieces_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.parts.iter_mut().flat_map(|part| part.bytes.chunks_mut(self.piece_bytes))
    }

    /// All pieces in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().flat_map(|part| part.bytes.chunks(self.piece_bytes))
    }

    /// The contiguous runs of pieces, mutable.
    pub(crate) fn runs_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.parts.iter_mut().map(|part| &mut part.bytes[..])
    }
}

impl std::fmt::Debug for NodeParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NodeParts({} x {} bytes)", self.bytes() / self.piece_bytes.max(1), self.piece_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::{NodeChoice, Pool};

    #[test]
    fn pieces_are_the_same_wherever_they_lie() {
        for (threads, nodes) in [(1, 1), (2, 2), (3, 2), (4, 3), (4, 4)] {
            let pool = Pool::on(threads, NodeChoice::Imagined(nodes)).unwrap();
            for count in [1, 2, 3, 5, 64] {
                let mut node_parts = NodeParts::zeroed(Some(pool.nodes()), count, 128).unwrap();
                node_parts.pieces_mut().enumerate().for_each(|(index, piece)| piece.fill(index as u8));
                assert_eq!(node_parts.bytes(), count * 128);
                for index in 0..count {
                    assert_eq!(node_parts.piece(index), [index as u8; 128], "{index} of {count} on {nodes} nodes");
                }
                let all: Vec<u8> = node_parts.pieces().flatten().copied().collect();
                assert!(all.chunks(128).enumerate().all(|(index, piece)| piece[0] == index as u8));
            }
        }
    }
}
