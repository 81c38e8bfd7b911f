// Norms and rotation of the heads of a row (crates/kernels/src/pointwise.rs): queries in place, keys and values to the cache.
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer A { float qkv[]; };
layout(std430, binding = 1) readonly buffer P0 { uint step_[]; };    // positions, and from `slots_at` on slots
layout(std430, binding = 2) readonly buffer T { float angles[]; };   // [position][cos | sin]
layout(std430, binding = 3) readonly buffer F { float factors[]; };  // [position]: of queries
layout(std430, binding = 4) readonly buffer Q { float q_norm[]; };
layout(std430, binding = 5) readonly buffer K { float k_norm[]; };
layout(std430, binding = 6) readonly buffer V { float v_norm[]; };
layout(std430, binding = 7) buffer C { uint kv[]; };
// keys_at, width: of a row; per_group: heads of a workgroup, a key and its value being one
layout(push_constant) uniform P {
  uint heads, kv_heads, head_dim, keys_at, width, rotary, norm, has_v_norm, has_factors, per_group;
  float eps;
  uint block_size, block_words, head_words, slots_at;
};
const uint NONE = 0u, PER_HEAD = 1u, AFTER_ROTATION = 2u, CENTERED = 3u, WHOLE_WIDTH = 4u;
const uint latent = 0u;
#include "head.glsl"
float of_row(uint from, uint count) {
  uint l = gl_LocalInvocationIndex;
  float squares = 0.0;
  if (l < 16u) for (uint i = l; i < count; i += 16u) squares = fused(qkv[from + i], qkv[from + i], squares);
  return inverse_rms(joined(squares), count);
}
float weight(uint part, uint at) { return part == 0u ? q_norm[at] : part == 1u ? k_norm[at] : v_norm[at]; }
void scale(float factor, uint part, uint first) {
  barrier();
  for (uint d = gl_LocalInvocationIndex; d < head_dim; d += 64u) head_[d] = mul(mul(head_[d], factor), weight(part, first + d));
  barrier();
}
void centered(uint part, uint first) {
  uint l = gl_LocalInvocationIndex;
  float total = 0.0, squares = 0.0;
  if (l < 16u) for (uint d = l; d < head_dim; d += 16u) total = add(total, head_[d]);
  float mean = quotient(joined(total), float(head_dim));
  if (l < 16u) for (uint d = l; d < head_dim; d += 16u) { float far = sub(head_[d], mean); squares = fused(far, far, squares); }
  float factor = inverse_rms(joined(squares), head_dim);
  barrier();
  for (uint d = l; d < head_dim; d += 64u) head_[d] = mul(mul(sub(head_[d], mean), factor), weight(part, first + d));
  barrier();
}
// The value comes first, and whether it is finite is said to its key.
bool store_value();

void load(uint at) {
  barrier();
  for (uint d = gl_LocalInvocationIndex; d < head_dim; d += 64u) head_[d] = qkv[at + d];
  barrier();
}
void main() {
  uint row = group().x, l = gl_LocalInvocationIndex, base = row * width;
  uint position = step_[row];
  float q_factor = 1.0, k_factor = 1.0;
  if (norm == WHOLE_WIDTH) {
    q_factor = of_row(base, heads * head_dim);
    if (kv_heads > 0u) k_factor = of_row(base + keys_at, kv_heads * head_dim);
  }
  uint first_head = group().y * per_group, end = min(first_head + per_group, heads + kv_heads);
  for (uint h = first_head; h < end; h++) {
    uint part = h < heads ? 0u : 1u, index = h - part * heads, at = base + part * keys_at + index * head_dim;
    bool is_finite = true;
    if (part == 1u) {
      uint slot = step_[slots_at + row];
      token = slot % block_size;
      keys = slot / block_size * block_words + index * head_words;
      values = keys + block_size * (head_dim / PER_WORD);
      load(at + kv_heads * head_dim);
      if (has_v_norm == 1u) scale(of_head(head_dim), 2u, 0u);
      is_finite = store_value();
    }
    load(at);
    if (norm == PER_HEAD) scale(of_head(head_dim), part, 0u);
    else if (norm == CENTERED) centered(part, index * head_dim);
    else if (norm == WHOLE_WIDTH) scale(part == 0u ? q_factor : k_factor, part, index * head_dim);
    turn(0u, rotary, position);
    if (norm == AFTER_ROTATION) scale(of_head(head_dim), part, 0u);
    if (part == 1u) { store_key(is_finite); continue; }
    float grown = has_factors == 1u ? factors[position] : 1.0;
    for (uint d = l; d < head_dim; d += 64u) qkv[at + d] = has_factors == 1u ? mul(head_[d], grown) : head_[d];
  }
}
