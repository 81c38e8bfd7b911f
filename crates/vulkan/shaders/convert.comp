#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "routed.glsl"
#include "exact.glsl"
#include "order.glsl"
#include "sums.glsl"
// Norms of rows, and rows as products read them, both or one of them: bf16, the width padded to 32 with zeros, or digits to
// the base 255, as `quantize_activations` (crates/kernels/src/quant/outliers.rs): a limit that the few outliers pass, low
// digits of all, middle and high ones of those. One workgroup a row. The limit is a peak of some rank: found by two
// histograms instead of 33 passes that count; any way gives the same integer. ROUTED: rows that experts read, by a list,
// or what they made of those, each shifted as its expert's inputs are.
layout(local_size_x = 256) in;
layout(std430, binding = 0) readonly buffer A { float x[]; };
layout(std430, binding = 4) writeonly buffer R { uint planes[]; };     // [3][rows][words], or pairs of bf16: [rows][words]
layout(std430, binding = 5) writeonly buffer S { float scale[]; };     // [rows]
layout(std430, binding = 6) writeonly buffer N { uint used[]; };       // [rows]: planes that are not all zero
const uint NO_NORM = 0u, CENTERED = 2u, TO_BF16 = 1u, TO_DIGITS = 2u;
#ifdef ROUTED
#include "entry.glsl"
layout(std430, binding = 1) readonly buffer L { Entry list[]; };
// x_width: of a row of x; 1 where the list has first numbers
layout(push_constant) uniform P { uint is_second, has_factors, rows, width, to, words, x_width; };
uvec2 own_exponents;
#define exponents Words(own_exponents).at
const uint norm = NO_NORM, first = 0u;
bool is_shifted() { return any(notEqual(own_exponents, uvec2(0u))); }
float given_at(uint row, uint k) {
  if (is_second == 1u) return x[row * width + k];
  float v = x[list[row].row * x_width + k];
  return has_factors == 1u ? mul(v, list[row].factor) : v;
}
#else
layout(std430, binding = 1) readonly buffer W { float weight[]; };
layout(std430, binding = 2) readonly buffer B { float bias[]; };
layout(std430, binding = 3) writeonly buffer Y { float y[]; };         // the norms, where there are any
layout(std430, binding = 7) readonly buffer E { uint exponents[]; };   // bytes of the inputs' powers of two
// norm: none, of the mean square, of what is left without the mean; first: byte of the first exponent, or 0 where there
// are none; x_width, x_at: of a row of x, and where in it the numbers are
layout(push_constant) uniform P {
  uint norm, has_bias, first_row;
  float eps;
  uint rows, width, to, words, first, x_width, x_at;
};
bool is_shifted() { return first != 0u; }
float given_at(uint row, uint k) { return x[(first_row + row) * x_width + x_at + k]; }
#endif
// What a row is after its norm, where there is room for it: sums are chains of 16 lanes, too few to wait for memory.
const uint ROOM = 7168u;
shared float row_[ROOM];
float mean = 0.0, factor = 1.0;
float given(uint row, uint k) { return k < ROOM ? row_[k] : given_at(row, k); }
#ifdef ROUTED
float normed(float v, uint k) { return v; }
#else
void find_norm(uint row) {
  uint lane = gl_LocalInvocationIndex;
  float total = 0.0, squares = 0.0;
  if (norm == CENTERED) {
    if (lane < 16u) for (uint i = lane; i < width; i += 16u) total = add(total, given(row, i));
    mean = quotient(joined(total), float(width));
  }
  if (lane < 16u) for (uint i = lane; i < width; i += 16u) {
    float far = norm == CENTERED ? sub(given(row, i), mean) : given(row, i);
    squares = fused(far, far, squares);
  }
  factor = quotient(1.0, root(add(quotient(joined(squares), float(width)), eps)));
}
float normed(float v, uint k) {
  if (norm == NO_NORM) return v;
  v = mul(norm == CENTERED ? sub(v, mean) : v, factor);
  return has_bias == 1u ? fused(v, weight[k], bias[k]) : mul(v, weight[k]);
}
#endif
// of the row as it is in `row_`
float result(uint row, uint k) { return k < ROOM ? row_[k] : normed(given_at(row, k), k); }
shared uint most[256];
shared uint bins[256];
shared uint found, above;
int nearest(float v) { return int(floatBitsToUint(add(v, ROUNDER)) - floatBitsToUint(ROUNDER)); }
float at(uint row, uint k) {
  if (k >= width) return 0.0;
  float v = result(row, k);
  if (!is_shifted()) return v;
  uint e = first + k;
  return mul(v, uintBitsToFloat((exponents[e / 4u] >> (8u * (e % 4u)) & 255u) << 23));
}
uint up_to_bf16(uint bits) { return min((bits + 0xffffu) >> 16, 0x7f7fu); }
uint magnitude(uint row, uint k) { return floatBitsToUint(at(row, k)) & 0x7fffffffu; }
uint peak(uint row, uint quad) {
  uint m = 0u;
  [[dont_unroll]] for (uint c = 0u; c < 4u; c++) m = max(m, magnitude(row, 4u * quad + c));
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
void to_digits(uint row) {
  uint t = gl_LocalInvocationIndex, quads = (width + 3u) / 4u, m = 0u;
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
      [[dont_unroll]] for (uint c = 0u; c < 4u; c++) {
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
void main() {
  uint row = group().x, t = gl_LocalInvocationIndex;
  for (uint k = t; k < min(width, ROOM); k += 256u) row_[k] = given_at(row, k);
  barrier();
#ifdef ROUTED
  own_exponents = list[row].shifts[is_second];
#else
  if (norm != NO_NORM) {
    find_norm(row);
    for (uint k = t; k < width; k += 256u) {
      float v = normed(given(row, k), k);
      if (k < ROOM) row_[k] = v;
      y[row * width + k] = v;
    }
    barrier();
  }
#endif
  if (to == TO_DIGITS) to_digits(row);
  if (to == TO_BF16) for (uint w = t; w < words; w += 256u) {
    uint k = 2u * w, a = k < width ? bf16_round(result(row, k)) : 0u, b = k + 1u < width ? bf16_round(result(row, k + 1u)) : 0u;
    planes[row * words + w] = (a >> 16) | b;
  }
}
