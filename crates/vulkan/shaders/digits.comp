#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
// rows of f32 to digits to the base 255, as `quantize_activations` (crates/kernels/src/quant/outliers.rs): a limit that
// the few outliers pass, low digits of all, middle and high ones of those. One workgroup a row. The limit is a peak of
// some rank: found by two histograms instead of 33 passes that count; any way gives the same integer.
layout(local_size_x = 256) in;
layout(std430, binding = 0) readonly buffer A { float x[]; };
layout(std430, binding = 1) writeonly buffer R { uint planes[]; };     // [3][rows][words]
layout(std430, binding = 2) writeonly buffer S { float scale[]; };     // [rows]
layout(std430, binding = 3) writeonly buffer N { uint used[]; };       // [rows]: planes that are not all zero
layout(std430, binding = 4) readonly buffer E { uint exponents[]; };   // bytes of the inputs' powers of two
// first: byte of the first exponent, or 0 where there are none
layout(push_constant) uniform P { uint rows, width, words, first; };
shared uint most[256];
shared uint bins[256];
shared uint found, above;
int nearest(float v) { return int(floatBitsToUint(add(v, ROUNDER)) - floatBitsToUint(ROUNDER)); }
float at(uint row, uint k) {
  if (k >= width) return 0.0;
  float v = x[row * width + k];
  if (first == 0u) return v;
  uint e = first + k;
  return mul(v, uintBitsToFloat((exponents[e / 4u] >> (8u * (e % 4u)) & 255u) << 23));
}
uint up_to_bf16(uint bits) { return min((bits + 0xffffu) >> 16, 0x7f7fu); }
uint magnitude(uint row, uint k) { return floatBitsToUint(at(row, k)) & 0x7fffffffu; }
uint peak(uint row, uint quad) {
  uint m = 0u;
  for (uint c = 0u; c < 4u; c++) m = max(m, magnitude(row, 4u * quad + c));
  return up_to_bf16(m);
}
// the largest value that more than n peaks reach
uint of_rank(uint row, uint quads, uint n) {
  uint t = gl_LocalInvocationIndex;
  barrier();
  bins[t] = 0u;
  barrier();
  for (uint q = t; q < quads; q += 256u) atomicAdd(bins[peak(row, q) >> 7], 1u);
  barrier();
  if (t == 0u) {
    uint sum = 0u;
    int b = 255;
    for (; b > 0 && sum + bins[b] <= n; b--) sum += bins[b];
    found = uint(b);
    above = sum;
  }
  barrier();
  uint high_ = found, before = above;
  barrier();
  bins[t] = 0u;
  barrier();
  for (uint q = t; q < quads; q += 256u) { uint p = peak(row, q); if (p >> 7 == high_) atomicAdd(bins[p & 127u], 1u); }
  barrier();
  if (t == 0u) {
    uint sum = before;
    int b = 127;
    for (; b > 0 && sum + bins[b] <= n; b--) sum += bins[b];
    found = high_ << 7 | uint(b);
  }
  barrier();
  uint r = found;
  barrier();
  return r;
}
uint reached(uint row, uint quads, uint bound) {
  uint t = gl_LocalInvocationIndex;
  barrier();
  if (t == 0u) above = 0u;
  barrier();
  uint own = 0u;
  for (uint q = t; q < quads; q += 256u) own += peak(row, q) >= bound ? 1u : 0u;
  atomicAdd(above, own);
  barrier();
  uint r = above;
  barrier();
  return r;
}
bool is_within(uint row, uint quads, float factor, uint bits, uint n) {
  uint part = floatBitsToUint(quotient(uintBitsToFloat(bits << 16), factor));
  return reached(row, quads, (part + 0xffffu) >> 16) > n;
}
uint limit_of(uint row, uint quads, uint largest) {
  uint few = quads / 32u, many = quads / 4u;
  bool mild = is_within(row, quads, 1.5, largest, few), near_ = is_within(row, quads, 4.0, largest, many);
  if (mild && near_) return largest;
  uint limit = min(of_rank(row, quads, few), largest);
  if (is_within(row, quads, 4.0, limit, many)) return limit;
  return floatBitsToUint(mul(4.0, uintBitsToFloat(min(of_rank(row, quads, many), limit) << 16))) >> 16;
}
void digit(int v, out int over, out int own) { over = nearest(mul(float(v), uintBitsToFloat(0x3b808081u))); own = v - 255 * over; }
void main() {
  uint row = group().x, t = gl_LocalInvocationIndex, quads = (width + 3u) / 4u, m = 0u;
  for (uint k = t; k < width; k += 256u) m = max(m, magnitude(row, k));
  most[t] = m;
  barrier();
  for (uint h = 128u; h > 0u; h /= 2u) { if (t < h) most[t] = max(most[t], most[t + h]); barrier(); }
  m = most[0];
  bool finite = m < 0x7f800000u, live = finite && m >= 0x0d800000u;  // 2^-100
  float inverse = 0.0;
  uint limit_bits = 0u;
  if (live) {
    limit_bits = limit_of(row, quads, up_to_bf16(m));
    float limit = uintBitsToFloat(limit_bits << 16), least = mul(uintBitsToFloat(m), 1.0 / 32768.0);
    limit = limit > least ? limit : least;
    inverse = quotient(127.0, limit);
    if (t == 0u) scale[row] = quotient(limit, 127.0);
  } else if (t == 0u) scale[row] = finite ? 0.0 : uintBitsToFloat(0x7fc00000u);
  barrier();
  if (t == 0u) above = 1u;
  barrier();
  uint own = 1u;
  for (uint w = t; w < words; w += 256u) {
    uint low_ = 0u, middle = 0u, high_ = 0u;
    if (live && w < quads) {
      bool passes = peak(row, w) > limit_bits;
      for (uint c = 0u; c < 4u; c++) {
        int v = nearest(mul(at(row, 4u * w + c), inverse)), l = clamp(v, -127, 127), r = 0, mid = 0, hi = 0;
        if (passes) { digit(v, r, l); digit(r, hi, mid); }
        low_ |= uint(l & 255) << (8u * c); middle |= uint(mid & 255) << (8u * c); high_ |= uint(hi & 255) << (8u * c);
      }
      if (middle != 0u || high_ != 0u) own = 3u;
    }
    planes[row * words + w] = low_;
    planes[(rows + row) * words + w] = middle;
    planes[(2u * rows + row) * words + w] = high_;
  }
  atomicMax(above, own);
  barrier();
  if (t == 0u) used[row] = above;
}
