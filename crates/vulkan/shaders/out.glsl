// What products have in common: numbers that the host gives, and where results go: `y = v`, `y = y + v`, or what is
// gated of them. Gates and what they multiply lie in turns of 16, of fewer at the end. A row of y is `width` wide.
#include "activation.glsl"
const uint STORE = 0u, ADD = 1u, GATED = 2u;
layout(std430, binding = 2) buffer R { float y[]; };
layout(std430, binding = 3) readonly buffer Bi { float bias[]; };
// pairs: pairs of strips in `w`, of which the first is first_pair of the matrix; at_: column of y where results begin
layout(push_constant) uniform P {
  uint rows, n, steps, first_pair, pairs, has_bias, mode, width, at_, ratio_words;
  uint step_words, scale_kind, group_, mins, four, kind; float a, b, c, d;
};
// the product in row r and column k of those that a workgroup has together: where they are in all
float result(uint r, uint k, uint row, uint column);
float biased(uint r, uint k, uint row, uint column) {
  float v = result(r, k, row, column);
  return has_bias == 1u ? add(v, bias[column]) : v;
}
// Results that a workgroup has together, of rows from `row` on, every `stride`th, and columns from `column` on, of
// whole turns where they are gated: number `index` of them. What is beyond the pairs of `w` is of others.
void put(uint index, uint row, uint stride, uint column, uint columns) {
  uint each = mode == GATED ? columns / 2u : columns, r = index / each, k = index % each, own = row + r * stride;
  uint end = min(n, (first_pair + pairs) * 32u);
  if (mode == GATED) {
    uint first = column + k / 16u * 32u, gate = k / 16u * 32u + k % 16u, to = first / 2u + k % 16u;
    if (first >= end || to >= width) return;
    uint up = gate + min(16u, width - first / 2u);
    float x = biased(r, gate, own, column + gate), factor = factor_of(kind, a, biased(r, up, own, column + up));
    y[own * width + to] = mul(activated(kind, a, b, c, d, x), factor);
  } else if (column + k < end) {
    float v = biased(r, k, own, column + k);
    uint to = own * width + at_ + column + k;
    y[to] = mode == ADD ? add(y[to], v) : v;
  }
}
uint to_put(uint count, uint columns) { return count * (mode == GATED ? columns / 2u : columns); }
