#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
#include "sums.glsl"
#include "gates.glsl"
// The outputs of a layer with a state, their gates and their norm (crates/kernels/src/delta_rule.rs, mamba.rs). A workgroup
// has what is normed together of a row.
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer R { float out_[]; };
layout(std430, binding = 1) readonly buffer A { float rows[]; };  // gates, from `gates_at`; of Mamba x comes first
layout(std430, binding = 2) readonly buffer N { float norm[]; };
layout(std430, binding = 3) readonly buffer K { float skip[]; };
// order: of norm and gate; by_silu: the gate; per_head: a number of `skip` for so many, 0: there is no x
layout(push_constant) uniform P { uint size, width, gates_at, order, by_silu, per_head, is_one_norm; float gate_factor, eps; };
const uint NO_NORM = 0u, NORM_LAST = 1u, NORM_FIRST = 2u;
shared float chunk[1024];
float gated(float x, float gate) { return by_silu == 1u ? mul(silu(gate), x) : sigmoid_of(x, gate); }
void main() {
  uint l = gl_LocalInvocationIndex, part = group().x, row = group().y, first = part * size;
  uint to = row * gl_NumWorkGroups.x * size + first, from = row * width;
  float squares = 0.0;
  for (uint begin = 0u; begin < size; begin += 1024u) {
    uint count = min(1024u, size - begin);
    barrier();
    for (uint i = l; i < count; i += 64u) {
      uint at = begin + i;
      float v = out_[to + at];
      if (per_head != 0u) v = fused(rows[from + first + at], skip[(first + at) / per_head], v);
      if (order != NORM_FIRST) v = gated(v, mul(rows[from + gates_at + first + at], gate_factor));
      chunk[i] = v;
      out_[to + at] = v;
    }
    barrier();
    if (order != NO_NORM && l < 16u) for (uint i = l; i < count; i += 16u) squares = fused(chunk[i], chunk[i], squares);
  }
  if (order == NO_NORM) return;
  float factor = quotient(1.0, root(add(quotient(joined(squares), float(size)), eps)));
  // each lane has what it wrote
  for (uint begin = 0u; begin < size; begin += 1024u) for (uint i = l; i < min(1024u, size - begin); i += 64u) {
    uint at = begin + i;
    float v = mul(mul(out_[to + at], factor), norm[is_one_norm == 1u ? at : first + at]);
    out_[to + at] = order == NORM_FIRST ? gated(v, mul(rows[from + gates_at + first + at], gate_factor)) : v;
  }
}
