// What products have in common: numbers that the host gives, and where results go: `y = v`, `y = y + v`, or what is
// gated of them. Gates and what they multiply lie in turns of 16, of fewer at the end. A row of y is `width` wide.
#include "activation.glsl"
const uint STORE = 0u, ADD = 1u, GATED = 2u;
layout(std430, binding = 2) buffer R { float y[]; };
#ifdef ROUTED
#include "entry.glsl"
layout(std430, binding = 1) readonly buffer Ti { Tile tiles[]; };
Tile own_tile;
#define bias Numbers(own_tile.at.bias).at
#else
layout(std430, binding = 3) readonly buffer Bi { float bias[]; };
#endif
// pairs: pairs of strips in `w`, of which the first is first_pair of the matrix; at_: column of y where results begin;
// per_head: rows after which those of the next head come, whose results begin `head_stride` columns further
layout(push_constant) uniform P {
  uint rows, n, steps, first_pair, pairs, has_bias, mode, width, at_, ratio_words;
  uint step_words, scale_kind, group_, mins, four, kind; float a, b, c, d; uint per_head, head_stride;
};
// the product in row r and column k of those that a workgroup has together: where they are in all
float result(uint r, uint k, uint row, uint column);
// Results that a workgroup has together, of rows from `row` on, every `stride`th, and columns from `column` on, of
// whole turns where they are gated: number `index` of them. What is beyond the pairs of `w` is of others.
void put(uint index, uint row, uint stride, uint column, uint columns) {
  bool gated = mode == GATED;
  uint each = gated ? columns / 2u : columns, r = index / each, k = index % each, own = row + r * stride;
  uint turn = column / 2u + k / 16u * 16u, to = gated ? turn + k % 16u : at_ + column + k;
  uint end = min(n, (first_pair + pairs) * 32u);
  if (gated ? 2u * turn >= end || to >= width : column + k >= end) return;
  // a gate, then what it multiplies: in a loop, since drivers compile its body as often as it is written
  float gate, v = 0.0;
  uint from = gated ? k / 16u * 32u + k % 16u : k;
  for (uint j = 0u; j < (gated ? 2u : 1u); j++) {
    gate = v;
    v = result(r, from, own, column + from);
    if (has_bias == 1u) v = add(v, bias[column + from]);
    from += min(16u, width - turn);
  }
#ifdef ROUTED
  uint o = own % per_head * width + own / per_head * head_stride + to;
#else
  uint o = own * width + to;
#endif
  if (gated) y[o] = mul(activated(kind, a, b, c, d, gate), factor_of(kind, a, v));
  else y[o] = mode == ADD ? add(y[o], v) : v;
}
uint to_put(uint count, uint columns) { return count * (mode == GATED ? columns / 2u : columns); }
