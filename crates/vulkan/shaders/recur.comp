#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
#include "states.glsl"
// What the rows of a span do to the state of a head, and what they read of it (crates/kernels/src/recurrence.rs). A lane
// has one column of the state: its sums are chains over keys.
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer A { float rows[]; };
layout(std430, binding = 1) readonly buffer G { float gates[]; };
layout(std430, binding = 2) readonly buffer D { float decays[]; };  // of each key, or how fast each head forgets
layout(std430, binding = 3) writeonly buffer R { float out_[]; };
// columns: of a workgroup; of a row: where its queries, keys and values begin, those of a head of `sharing` of them together
layout(push_constant) uniform P {
  uint kind, heads, key_dim, value_dim, columns, sharing, width, queries, keys, values, gates_width, factors_at, decays_width, state;
};
const uint BY_HEAD = 0u, BY_KEY = 1u, MAMBA = 2u;
shared float state_[4096];
shared float query[256], key[256], decay_[256];
// A row, of one column.
void pass(uint row, uint column, float factor, float decay) {
  uint l = gl_LocalInvocationIndex, head = group().y;
  float d = rows[row * width + values + head * value_dim + column], known = 0.0, read = 0.0;
  if (kind == BY_HEAD) {
    for (uint k = 0u; k < key_dim; k++) known = fused(key[k], state_[k * columns + l], known);
    d = fused(sub(0.0, decay), known, d);
  } else if (kind == BY_KEY) {
    for (uint k = 0u; k < key_dim; k++) known = fused(mul(key[k], decay_[k]), state_[k * columns + l], known);
    d = sub(d, known);
  }
  d = mul(d, factor);
  for (uint k = 0u; k < key_dim; k++) {
    float v = fused(key[k], d, mul(decay_[k], state_[k * columns + l]));
    state_[k * columns + l] = v;
    read = fused(query[k], v, read);
  }
  out_[(row * heads + head) * value_dim + column] = read;
}
void main() {
  uint l = gl_LocalInvocationIndex, column = group().x * columns + l, head = group().y;
  uvec4 span = spans[2u * group().z];
  uint save = span.w, last_save = save + spans[2u * group().z + 1u].x, own = state + head * key_dim * value_dim + column;
  bool has_column = l < columns && column < value_dim;
  for (uint k = 0u; k < key_dim && has_column; k++)
    state_[k * columns + l] = span.z == NONE ? 0.0 : Slot(slots[span.z]).at[own + k * value_dim];
  for (uint row = span.x; row < span.x + span.y; row++) {
    uint shared_ = head / sharing * key_dim, factors = row * gates_width + factors_at + head;
    float factor = gates[factors];
    float decay = kind == BY_HEAD ? gates[factors + heads] : kind == MAMBA ? exp_(sub(0.0, mul(decays[head], factor))) : 1.0;
    barrier();
    for (uint k = l; k < key_dim; k += 64u) {
      query[k] = rows[row * width + queries + shared_ + k];
      key[k] = rows[row * width + keys + shared_ + k];
      decay_[k] = kind == BY_KEY ? decays[row * decays_width + head * key_dim + k] : decay;
    }
    barrier();
    if (has_column) pass(row, column, factor, decay);
    for (; has_column && save < last_save && saves[save].x == row; save++) {
      Slot to = Slot(slots[saves[save].y]);
      for (uint k = 0u; k < key_dim; k++) to.at[own + k * value_dim] = state_[k * columns + l];
    }
  }
}
