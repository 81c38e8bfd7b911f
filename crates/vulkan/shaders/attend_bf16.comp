#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
#include "sums.glsl"
#include "attend.glsl"
layout(constant_id = 1) const bool TILES = true;
shared uint query[288];
void main() {
  uint row = group().x, head = group().y, l = gl_LocalInvocationIndex;
  uint position = rows_[row].x, table = rows_[row].z, kv_head = head / (heads / kv_heads), at = row * width + head * head_dim;
  uint first = first_seen(position), last = last_seen(position, rows_[row].y);
  for (uint p = l; p < head_dim / 2u; p += LANES) query[p] = (bf16_round(qkv[at + 2u * p]) >> 16) | bf16_round(qkv[at + 2u * p + 1u]);
  for (uint i = 0u; i < PER_LANE; i++) total[i] = 0.0;
  uint begin = first / SPLIT * SPLIT;
  for (uint start = begin; start < last; start += SPLIT) {
    uint from = max(first, start) - start, seen = min(last - start, SPLIT);
    barrier();
    // what is not seen has no weight
    for (uint j = l; j < SPLIT; j += LANES) scores[j] = 0.0;
    barrier();
    float most = uintBitsToFloat(0xff800000u);
    for (uint j = from + l; j < seen; j += LANES) {
      uint token = (start + j) % block_size;
      uint keys = head_at(table, start + j, kv_head) + token / 16u * 8u * head_dim + token % 16u;
      float sum = 0.0;
      for (uint step_ = 0u; step_ < head_dim / 2u; step_ += 16u) {
        float even = 0.0, odd = 0.0;
        for (uint p = step_; p < min(step_ + 16u, head_dim / 2u); p++) {
          uint k = kv[keys + p * 16u], q = query[p];
          float a = mul(low(q), low(k)), b = mul(high(q), high(k));
          if (TILES) { even = add(even, a); odd = add(odd, b); } else sum = add(add(sum, b), a);
        }
        if (TILES) sum = add(sum, add(even, odd));
      }
      float s = capped(mul(sum, scale));
      scores[j] = s;
      most = most > s ? most : s;
    }
    most = largest(most);
    for (uint j = from + l; j < seen; j += LANES) scores[j] = softmax_weight(sub(scores[j], most));
    barrier();
    float sum = sum_of(from, seen);
    fold(start == begin, most, sum);
    for (uint i = 0u; i < PER_LANE; i++) {
      uint d = l + i * LANES;
      if (d >= head_dim) break;
      float value = 0.0;
      for (uint j0 = from / 32u * 32u; j0 < seen; j0 += 32u) {
        float even = 0.0, odd = 0.0;
        uint values = head_at(table, start + j0, kv_head) + block_size * head_dim / 2u
          + (start + j0) % block_size / 32u * 16u * head_dim + d / 16u * 256u + d % 16u;
        for (uint p = 0u; p < 16u; p++) {
          uint v = kv[values + p * 16u];
          float a = mul(scores[j0 + 2u * p], low(v)), b = mul(scores[j0 + 2u * p + 1u], high(v));
          if (TILES) { even = add(even, a); odd = add(odd, b); } else value = add(add(value, b), a);
        }
        if (TILES) value = add(value, add(even, odd));
      }
      fold_value(start == begin, i, value);
    }
  }
  fold_sink(head);
  for (uint i = 0u; i < PER_LANE; i++) { uint d = l + i * LANES; if (d < head_dim) y[(row * heads + head) * head_dim + d] = quotient(total[i], total_sum); }
}
