#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "order.glsl"
// Rows of a table by token, as `PackedMatrix::unpack_row`. Of a table in several windows each takes the tokens that it has.
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer T { uint tokens[]; };
layout(std430, binding = 1) readonly buffer W { uint w[]; };
layout(std430, binding = 2) readonly buffer S { uint scales[]; };  // f32 of each column, then exponents of the inputs
layout(std430, binding = 3) readonly buffer L { uint levels[]; };
layout(std430, binding = 4) writeonly buffer R { float y[]; };
// bits: of a weight; first_pair, pairs: of the window; exponents: their first byte, or 0 where there are none
layout(push_constant) uniform P { uint width, bits, first_pair, pairs, pair_words, ratio_words, exponents; };
int byte_of(uint word, uint at) { return int(word << (24u - 8u * at)) >> 24; }
void main() {
  uint row = group().y, k = group().x * gl_WorkGroupSize.x + gl_LocalInvocationID.x, token = tokens[row], pair = token / 32u;
  if (k >= width || pair < first_pair || pair >= first_pair + pairs) return;
  uint base = (pair - first_pair) * pair_words, column = token % 32u, strip = column / 16u, lane = column % 16u;
  float v;
  if (bits == 16u) {
    uint word = w[base + k / 32u * 512u + strip * 256u + k % 32u / 2u * 16u + lane];
    v = k % 2u == 0u ? low(word) : high(word);
  } else {
    int q, ratio;
    if (bits == 8u) {
      q = byte_of(w[base + ratio_words + k / 64u * 512u + strip * 256u + k % 64u / 4u * 16u + lane], k % 4u);
      uint at = k / 128u * 32u + column;
      ratio = byte_of(w[base + at / 4u], at % 4u);
    } else {
      uint step_ = base + k / 64u * 272u, line = k % 64u / 8u, at = strip * 32u + k % 64u / 32u * 16u + lane;
      uint code = w[step_ + 16u + strip * 128u + line * 16u + lane] >> (8u * (k % 4u) + k % 8u / 4u * 4u) & 15u;
      q = byte_of(levels[code / 4u], code % 4u);
      ratio = byte_of(w[step_ + at / 4u], at % 4u);
    }
    v = mul(float(q * ratio), uintBitsToFloat(scales[token]));
    if (exponents != 0u) {
      uint at = exponents + k;
      v = mul(v, uintBitsToFloat((scales[at / 4u] >> (8u * (at % 4u)) & 255u) << 23));
    }
  }
  y[row * width + k] = v;
}
