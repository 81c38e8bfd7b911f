// What is between the products of latent attention and attention (crates/kernels/src/latent.rs): a workgroup completes
// the query of a head, or norms and rotates the key of a row and stores it.
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer Q { float queries[]; };
layout(std430, binding = 1) readonly buffer P0 { uint step_[]; };    // positions, and from `slots_at` on slots
layout(std430, binding = 2) readonly buffer T { float angles[]; };   // [position][cos | sin]
layout(std430, binding = 3) readonly buffer F { float factors[]; };  // [position]: of queries
layout(std430, binding = 4) readonly buffer N { float norm[]; };
layout(std430, binding = 5) readonly buffer K { float latents[]; };  // [row][latent | turning]
layout(std430, binding = 6) buffer A { float absorbed[]; };          // [row][head][latent | turning]
layout(std430, binding = 7) buffer C { uint kv[]; };
// rotary: 0 where nothing turns; plain: numbers of a query before those that turn
layout(push_constant) uniform P {
  uint heads, head_dim, latent, plain, rotary, has_factors;
  float eps;
  uint block_size, block_words, head_words, slots_at;
};
#include "head.glsl"
void complete(uint row, uint head, uint position) {
  uint l = gl_LocalInvocationIndex, turning = head_dim - latent, to = (row * heads + head) * head_dim;
  uint from = (row * heads + head) * (plain + turning) + plain;
  for (uint d = l; d < turning; d += 64u) head_[d] = queries[from + d];
  barrier();
  turn(0u, rotary, position);
  float grown = has_factors == 1u ? factors[position] : 1.0;
  for (uint d = l; d < turning; d += 64u) absorbed[to + latent + d] = has_factors == 1u ? mul(head_[d], grown) : head_[d];
  if (has_factors == 1u) for (uint d = l; d < latent; d += 64u) absorbed[to + d] = mul(absorbed[to + d], grown);
}
void store(uint row, uint position) {
  uint l = gl_LocalInvocationIndex, slot = step_[slots_at + row];
  for (uint d = l; d < head_dim; d += 64u) head_[d] = latents[row * head_dim + d];
  barrier();
  float factor = of_head(latent);
  for (uint d = l; d < latent; d += 64u) head_[d] = mul(mul(head_[d], factor), norm[d]);
  turn(latent, rotary, position);
  token = slot % block_size;
  keys = slot / block_size * block_words;
  values = keys;
  store_key(true);
}
void main() {
  uint row = group().x, head = group().y, position = step_[row];
  if (head < heads) complete(row, head, position);
  else store(row, position);
}
