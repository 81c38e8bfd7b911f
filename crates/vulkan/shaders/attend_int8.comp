#version 450
#extension GL_GOOGLE_include_directive : require
#include "dot4.glsl"
#include "exact.glsl"
#include "order.glsl"
#include "sums.glsl"
#include "attend.glsl"
#include "spread.glsl"
// queries are spread as the keys were; what has become of the values is gathered
shared uint query[144];
shared int digits[SPLIT];
void main() {
  uint row = group().x, head = group().y, l = gl_LocalInvocationIndex;
  uint position = rows_[row].x, table = rows_[row].z, kv_head = head / (heads / kv_heads), at = row * width + head * head_dim;
  uint first = first_seen(position), last = last_seen(position, rows_[row].y);
  for (uint d = l; d < head_dim; d += LANES) spread_head[d] = qkv[at + d];
  spread(head_dim);
  uint largest_query = most_of(head_dim);
  bool live = is_live(largest_query);
  float inverse = live ? quotient(127.0, uintBitsToFloat(largest_query)) : 0.0;
  float query_scale = mul(scale_of(largest_query), scale);
  for (uint p = l; p < head_dim / 4u; p += LANES) query[p] = quad_of(4u * p, live, inverse);
  for (uint i = 0u; i < PER_LANE; i++) total[i] = 0.0;
  uint begin = first / SPLIT * SPLIT;
  for (uint start = begin; start < last; start += SPLIT) {
    uint from = max(first, start) - start, seen = min(last - start, SPLIT);
    barrier();
    float most = uintBitsToFloat(0xff800000u);
    for (uint j = from + l; j < seen; j += LANES) {
      uint token = (start + j) % block_size, place = head_at(table, start + j, kv_head);
      uint keys = place + token / 16u * 4u * head_dim + token % 16u;
      int sum = 0;
      for (uint p = 0u; p < head_dim / 4u; p++) sum += dot4(int(query[p]), int(kv[keys + p * 16u]), 0);
      float s = capped(mul(mul(float(sum), query_scale), uintBitsToFloat(kv[place + block_size * head_dim / 2u + token])));
      scores[j] = s;
      most = most > s ? most : s;
    }
    most = largest(most);
    for (uint j = from + l; j < seen; j += LANES) { float x = sub(scores[j], most); scores[j] = x < -27.5 ? 0.0 : exp_(x); }
    barrier();
    float sum = sum_of(from, seen);
    float top = 0.0;
    for (uint j = from + l; j < seen; j += LANES) {
      uint token = (start + j) % block_size;
      uint scales = head_at(table, start + j, kv_head) + block_size * head_dim / 2u;
      float w = mul(scores[j], uintBitsToFloat(kv[scales + block_size + token]));
      scores[j] = w;
      top = top > w ? top : w;
    }
    top = largest(top);
    float factor = top > 0.0 ? quotient(16383.0, top) : 0.0;
    for (uint j = from + l; j < seen; j += LANES) digits[j] = int(floatBitsToUint(add(mul(scores[j], factor), ROUNDER)) - floatBitsToUint(ROUNDER));
    barrier();
    fold(start == begin, most, sum);
    for (uint i = 0u; i < PER_LANE; i++) {
      uint d = l + i * LANES;
      if (d >= head_dim) break;
      int ints = 0;
      for (uint j = from; j < seen; j++) {
        uint token = (start + j) % block_size;
        uint v = kv[head_at(table, start + j, kv_head) + block_size * head_dim / 4u + token / 32u * 8u * head_dim
          + (d / 16u * 8u + token % 32u / 4u) * 16u + d % 16u];
        ints += digits[j] * (int(v << (24u - 8u * (token % 4u))) >> 24);
      }
      fold_value(start == begin, i, mul(float(ints), mul(top, uintBitsToFloat(0x38800200u))));
    }
  }
  fold_sink(head);
  barrier();
  for (uint i = 0u; i < PER_LANE; i++) { uint d = l + i * LANES; if (d < head_dim) spread_head[d] = quotient(total[i], total_sum); }
  gather(head_dim);
  for (uint d = l; d < head_dim; d += LANES) y[(row * heads + head) * head_dim + d] = spread_head[d];
}
