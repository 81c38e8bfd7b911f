#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
#include "sums.glsl"
#include "gates.glsl"
// What the rows of a layer with a state become before it: norms of the heads of queries and keys, and what the gates stand
// for (crates/kernels/src/delta_rule.rs, mamba.rs). A workgroup has a head of a row, or behind these 64 gates.
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer A { float rows[]; };
layout(std430, binding = 1) buffer G { float gates[]; };
layout(std430, binding = 2) buffer D { float decays[]; };  // of each key
layout(std430, binding = 3) readonly buffer R { float rates[]; };
layout(std430, binding = 4) readonly buffer B { float bias[]; };
// normed: heads, queries first; scale: of queries; factors: of a row, from `factors_at`
layout(push_constant) uniform P {
  uint kind, width, normed, key_dim, heads, gates_width, factors_at, decays_width;
  float scale, step_factor;
};
const uint BY_HEAD = 0u, BY_KEY = 1u, MAMBA = 2u;
shared float head_[256];
float decay(float x, uint head, uint at) { return exp_(sub(0.0, mul(rates[head], softplus(add(x, bias[at]))))); }
void main() {
  uint row = group().y, part = group().x, l = gl_LocalInvocationIndex;
  if (part < normed) {
    uint at = row * width + part * key_dim;
    for (uint d = l; d < key_dim; d += 64u) head_[d] = rows[at + d];
    barrier();
    float squares = 0.0;
    if (l < 16u) for (uint d = l; d < key_dim; d += 16u) squares = fused(head_[d], head_[d], squares);
    float factor = quotient(1.0, root(add(joined(squares), uintBitsToFloat(0x358637bdu))));  // 1e-6
    if (part < normed / 2u) factor = mul(factor, scale);
    for (uint d = l; d < key_dim; d += 64u) rows[at + d] = mul(head_[d], factor);
    return;
  }
  uint i = (part - normed) * 64u + l, at = row * gates_width + factors_at + i;
  if (kind == MAMBA) {
    if (i < heads) gates[at] = softplus(add(mul(gates[at], step_factor), bias[i]));
  } else if (i < heads) {
    gates[at] = sigmoid_of(1.0, gates[at]);
  } else if (kind == BY_HEAD) {
    if (i < 2u * heads) gates[at] = decay(gates[at], i - heads, i - heads);
  } else if (i < heads + heads * key_dim) {
    uint key = i - heads, of_key = row * decays_width + key;
    decays[of_key] = decay(decays[of_key], key / key_dim, key);
  }
}
