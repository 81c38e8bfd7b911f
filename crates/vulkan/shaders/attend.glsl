// What both cache types share: one workgroup for a row and query head, splits of 256 positions one after the other.
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer A { float qkv[]; };
layout(std430, binding = 1) readonly buffer T { uvec4 rows_[]; };  // position, end of the span's positions, first entry of the table
layout(std430, binding = 2) readonly buffer B { uint tables[]; };
layout(std430, binding = 3) readonly buffer K { uint kv[]; };
layout(std430, binding = 4) readonly buffer S { float sinks[]; };
layout(std430, binding = 5) writeonly buffer R { float y[]; };
// window, cap: 0 where there is none; by_cap: 2 / cap
layout(push_constant) uniform P {
  uint heads, kv_heads, head_dim, width, block_size, block_words, head_words, window, chunked, both_ways, has_sinks;
  float scale, cap, by_cap;
};
const uint SPLIT = 256u, LANES = 64u, PER_LANE = 9u;  // heads are at most 576 wide
shared float scores[SPLIT];
shared float reduced[LANES];
float total_max = 0.0, total_sum = 0.0, total[PER_LANE];
uint first_seen(uint position) {
  if (window == 0u) return 0u;
  if (chunked == 1u) return position / window * window;
  return position + 1u > window ? position + 1u - window : 0u;
}
uint last_seen(uint position, uint end) {
  if (both_ways == 0u) return position + 1u;
  return window == 0u ? end : min(position + window, end);
}
uint head_at(uint table, uint position, uint kv_head) {
  return tables[table + position / block_size] * block_words + kv_head * head_words;
}
float capped(float s) { return cap == 0.0 ? s : sub(cap, quotient(mul(2.0, cap), add(exp_(mul(s, by_cap)), 1.0))); }
float largest(float own) {
  uint l = gl_LocalInvocationIndex;
  barrier();
  reduced[l] = own;
  barrier();
  for (uint h = LANES / 2u; h > 0u; h /= 2u) {
    if (l < h) { float a = reduced[l], b = reduced[l + h]; reduced[l] = a > b ? a : b; }
    barrier();
  }
  return reduced[0];
}
// the sum of the scores of a split, from `from` up to `seen`
float sum_of(uint from, uint seen) {
  uint l = gl_LocalInvocationIndex;
  float s = 0.0;
  if (l < 16u) for (uint j = from + (l + 16u - from % 16u) % 16u; j < seen; j += 16u) s = add(s, scores[j]);
  return joined(s);
}
// joins a split: its maximum and sum, then its values
float keep_, join_;
void fold(bool is_first, float most, float sum) {
  if (is_first) { total_max = most; total_sum = sum; keep_ = 1.0; join_ = 1.0; return; }
  float m = total_max > most ? total_max : most;
  keep_ = exp_(sub(total_max, m));
  join_ = exp_(sub(most, m));
  total_max = m;
  total_sum = fused(total_sum, keep_, mul(sum, join_));
}
void fold_value(bool is_first, uint i, float value) { total[i] = is_first ? value : fused(total[i], keep_, mul(value, join_)); }
void fold_sink(uint head) {
  if (has_sinks == 0u) return;
  fold(false, sinks[head], 1.0);
  for (uint i = 0u; i < PER_LANE; i++) fold_value(false, i, 0.0);
}
