#version 450
#extension GL_GOOGLE_include_directive : require
#include "routed.glsl"
#include "dot4.glsl"
#include "exact.glsl"
#include "order.glsl"
// Weights in the groups of a file: four rows with a strip, or with two where they are gated. Four lanes have a group of
// weights, each four columns; then a lane for each result joins the groups in order, as many at a time as a workgroup
// has lanes for: of the low digits whole groups, of the others quads, which are rare.
layout(local_size_x = 256) in;
layout(std430, binding = 0) readonly buffer A { uvec4 x[]; };
#ifdef ROUTED
#define w Words(own_tile.at.weights).at
#define w4 Fours(own_tile.at.weights).at
#else
layout(std430, binding = 1) readonly buffer B { uint w[]; };
layout(std430, binding = 1) readonly buffer B4 { uvec4 w4[]; };
#endif
#include "out.glsl"
layout(std430, binding = 4) readonly buffer Rs { float row_scale[]; };
layout(std430, binding = 5) readonly buffer U { uint used[]; };
#ifdef ROUTED
#define levels Words(own_tile.at.levels).at
#else
layout(std430, binding = 7) readonly buffer Lv { uint levels[]; };  // 16 bytes
#endif
#include "groups.glsl"
#include "levels.glsl"
#include "quads.glsl"
const uint ROWS = 4u, AT_ONCE = 64u;
shared int dots[ROWS * AT_ONCE * 16u];
shared int sums[ROWS * AT_ONCE];
shared uint listed[ROWS * AT_ONCE];   // bits of the quads that have more digits
shared float scales[2u * AT_ONCE * 16u];  // and minima
float result(uint r, uint k, uint row, uint column) { return scales[r * 32u + k]; }
void main() {
  uint t = gl_LocalInvocationIndex, unit = t / 32u, c4 = t % 4u, strips = mode == GATED ? 2u : 1u;
  TILE(row, count, ROWS);
  uint pair = group().y * strips / 2u, strip = (strips == 2u ? unit : group().y) % 2u;
  uint column = (first_pair + pair) * 32u + (strips == 2u ? 0u : strip * 16u);
  if (column >= n) return;
  uint quads = group_ / 4u, in_step = 64u / group_, groups = steps * in_step, stride = steps * 16u;
  // of the groups that are joined together: how many, that of this lane, and what this lane joins
  uint at_once = AT_ONCE / strips, own = unit / strips * 8u + t % 32u / 4u;
  uint r_ = t / (strips * 16u), k_ = t % (strips * 16u), scale_size = scale_words();
  make_table();
  barrier();
  float total[3] = float[3](0.0, 0.0, 0.0);
  for (uint first = 0u; first < groups; first += at_once) {
    uint g = first + own, base = (pair * steps + g / in_step) * step_words, slot = t / 4u;
    if (g < groups) {
      for (uint j = 0u; j < 4u + 4u * mins; j++) {
        uint k = c4 * 4u + j % 4u;
        float scale = scale_at(base + j / 4u * scale_size, g % in_step, strip * 16u + k);
        scales[(j / 4u * AT_ONCE + slot) * 16u + k] = scale;
      }
      int dot[ROWS * 4u], sum[ROWS];
      for (uint i = 0u; i < ROWS * 4u; i++) dot[i] = 0;
      for (uint r = 0u; r < ROWS; r++) sum[r] = 0;
      uint more[ROWS] = uint[ROWS](0u, 0u, 0u, 0u);
      for (uint q = 0u; q < quads; q += 4u) {
        uint quad = g % in_step * quads + q;
        uvec4 words[4];
        for (uint i = 0u; i < 4u; i += 2u) quads_at(base, quad + i, strip, c4, words[i], words[i + 1u]);
        for (uint r = 0u; r < ROWS; r++) if (r < count) {
          uvec4 digits = x[((row + r) * stride + g / in_step * 16u + quad) / 4u];
          for (uint i = 0u; i < 4u; i++) for (uint j = 0u; j < 4u; j++)
            dot[r * 4u + j] += dot4(int(digits[i]), int(words[i][j]), 0);
          if (mins == 1u) for (uint i = 0u; i < 4u; i++) sum[r] += dot4(int(digits[i]), ONES, 0);
          if (used[row + r] > 1u) {
            uint at = ((rows + row + r) * stride + g / in_step * 16u + quad) / 4u;
            digits = x[at] | x[at + rows * stride / 4u];
            for (uint i = 0u; i < 4u; i++) more[r] |= uint(digits[i] != 0u) << (q + i);
          }
        }
      }
      for (uint r = 0u; r < ROWS; r++) if (r < count) {
        for (uint j = 0u; j < 4u; j++) dots[(r * AT_ONCE + slot) * 16u + c4 * 4u + j] = dot[r * 4u + j];
        if (c4 == 0u) { sums[r * AT_ONCE + slot] = sum[r]; listed[r * AT_ONCE + slot] = more[r]; }
      }
    }
    barrier();
    if (r_ < count) for (uint i = 0u; i < min(at_once, groups - first); i++) {
      // units take turns with two strips
      uint from = strips == 2u ? i / 8u * 16u + k_ / 16u * 8u + i % 8u : i, other = r_ * AT_ONCE + from;
      float scale = scales[from * 16u + k_ % 16u], least = scales[(AT_ONCE + from) * 16u + k_ % 16u];
      total[0] = fused(float(dots[other * 16u + k_ % 16u]), scale, total[0]);
      if (mins == 1u) total[0] = fused(float(sums[other]), least, total[0]);
      uint g = first + i, tiles = (pair * steps + g / in_step) * step_words + (mins == 1u ? 2u : 1u) * scale_size;
      for (uint left = listed[other]; left != 0u; left &= left - 1u) {
        uint quad = g % in_step * quads + uint(findLSB(left));
        int weights = quad_at(tiles, quad, strips == 2u ? k_ : strip * 16u + k_);
        for (uint plane = 1u; plane < 3u; plane++) {
          uint at = (plane * rows + row + r_) * stride + g / in_step * 16u + quad;
          int digits = int(x[at / 4u][at % 4u]);
          if (digits == 0) continue;
          total[plane] = fused(float(dot4(digits, weights, 0)), scale, total[plane]);
          if (mins == 1u) total[plane] = fused(float(dot4(digits, ONES, 0)), least, total[plane]);
        }
      }
    }
    barrier();
  }
  if (r_ < count)
    scales[r_ * 32u + k_] = mul(fused(65025.0, total[2], fused(255.0, total[1], total[0])), row_scale[row + r_]);
  barrier();
  for (uint i = t; i < to_put(count, strips * 16u); i += 256u) put(i, row, 1u, column, strips * 16u);
}
