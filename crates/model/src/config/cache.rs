//! Where layers keep their keys and values.

use super::LayerConfig;
use kernels::{HeadLayout, KvDtype, KvShape};

/// Shape of a model's KV cache. Layers whose heads are alike lie together in a group; all groups have the same blocks,
/// so that a block is a number of tokens, whatever the layers keep of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// At least one; they differ in layers and heads alone.
    pub groups: Vec<KvShape>,
}

impl CacheShape {
    /// Blocks to hand out.
    pub fn blocks(&self) -> usize {
        self.groups[0].blocks
    }

    /// Tokens of a block.
    pub fn block_size(&self) -> usize {
        self.groups[0].block_size
    }

    /// Bytes of a block in all layers.
    pub fn block_bytes(&self) -> usize {
        self.groups.iter().map(KvShape::block_bytes).sum()
    }

    /// Bytes of a block in the layer that keeps the most.
    pub fn layer_bytes(&self) -> usize {
        self.groups.iter().map(|group| group.block_bytes() / group.layers.max(1)).max().unwrap_or(0)
    }

    /// Bytes of the whole cache.
    pub fn bytes(&self) -> usize {
        self.blocks() * self.block_bytes()
    }

    /// The same with another number of blocks.
    pub fn with_blocks(mut self, blocks: usize) -> CacheShape {
        self.groups.iter_mut().for_each(|group| group.blocks = blocks);
        self
    }
}

/// Where a layer of attention keeps keys and values, or finds those of another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheLayer {
    /// Index in [`CacheShape::groups`].
    pub group: usize,
    /// Index among the group's layers.
    pub layer: usize,
}

/// What layers of a group have in common: key heads, their width, and what of it are values.
type Heads = (usize, usize, Option<usize>);

/// Gives each layer that has keys and values its place, those that read another layer's the place of that one.
/// `source`: the index of the layer that it reads.
pub(super) fn place(layers: &mut [LayerConfig], source: impl Fn(&[LayerConfig], usize) -> Option<usize>) {
    // Heads of a group, and its layers so far.
    let mut groups: Vec<(Heads, usize)> = Vec::new();
    for index in 0..layers.len() {
        if !layers[index].mixer.has_keys() {
            continue;
        }
        layers[index].cache = match source(layers, index) {
            Some(source) => layers[source].cache,
            None => {
                let HeadLayout { num_kv_heads, head_dim, latent, .. } = layers[index].heads;
                let heads = (num_kv_heads, head_dim, latent);
                let group = groups.iter().position(|(of, _)| *of == heads).unwrap_or_else(|| {
                    groups.push((heads, 0));
                    groups.len() - 1
                });
                groups[group].1 += 1;
                CacheLayer { group, layer: groups[group].1 - 1 }
            }
        };
    }
}

/// The shape of a cache of these layers: a group has as many as its places say.
pub(super) fn shape(layers: &[LayerConfig], (dtype, blocks, block_size): (KvDtype, usize, usize)) -> CacheShape {
    let mut groups: Vec<KvShape> = Vec::new();
    for LayerConfig { heads, cache, .. } in layers.iter().filter(|layer| layer.mixer.has_keys()) {
        if cache.group == groups.len() {
            let &HeadLayout { num_kv_heads, head_dim, latent, .. } = heads;
            groups.push(KvShape { dtype, layers: 0, blocks, block_size, num_kv_heads, head_dim, latent });
        }
        groups[cache.group].layers = groups[cache.group].layers.max(cache.layer + 1);
    }
    CacheShape { groups }
}
