#version 450
#extension GL_GOOGLE_include_directive : require
#include "matrices.glsl"
#include "dot4.glsl"
#include "exact.glsl"
#include "order.glsl"
layout(local_size_x = 256) in;
layout(std430, binding = 0) readonly buffer A { uvec4 x[]; };
layout(std430, binding = 0) readonly buffer A1 { uint x1[]; };
layout(std430, binding = 1) readonly buffer B { uint w[]; };
layout(std430, binding = 1) readonly buffer B4 { uvec4 w4[]; };
#include "out.glsl"
#include "tiles.glsl"
layout(std430, binding = 7) readonly buffer Lv { uint levels[]; };  // 16 bytes
#include "groups.glsl"
#include "levels.glsl"
#include "quads.glsl"
// Of a step's two groups of 32, as matrices of equal rows: scales and minima of 64 columns. Then sums of 32 rows on
// their way from subgroups to lanes, then those of listed quads.
shared float scales[4 * M * 64];
vec4 scales_at(uint i) { return vec4(scales[4u * i], scales[4u * i + 1u], scales[4u * i + 2u], scales[4u * i + 3u]); }
void put_scale(uint i, uint column, float scale) { scales[4u * i + column] = scale; }
#include "group_outliers.glsl"
#define REALS coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
uint base_of(uint s, uint column) { return (pair_of(column / 4u) * steps + s) * step_words; }
// four quads of a column, that a lane passes on
uvec4 weights_of(uint s, uint column, uint part) {
  uint tiles = base_of(s, column) + (mins == 1u ? 2u : 1u) * scale_words(), strip = strip_of(column / 4u);
  uvec4 own;
  if (four == 0u) {
    [[unroll]] for (uint c = 0u; c < 4u; c++) own[c] = w[tiles + strip * 256u + (part * 4u + c) * 16u + column % 16u];
  } else {
    [[unroll]] for (uint c = 0u; c < 4u; c += 2u)
      unpack(w[tiles + strip * 128u + (part * 2u + c / 2u) * 16u + column % 16u], own[c], own[c + 1u]);
  }
  return own;
}
// of the first or the second group the scale, or the minimum
float scale_of(uint s, uint column, uint part) {
  return scale_at(base_of(s, column) + part / 2u * scale_words(), part % 2u, column % 32u);
}
void main() {
  uint t = gl_LocalInvocationIndex, column = t % 64u, part = t / 64u, each = 64u / OWN_COLUMNS;
  uint row0 = gl_SubgroupID / each * OWN_ROWS, column0 = gl_SubgroupID % each * OWN_COLUMNS;
  bool has_scale = part < 2u || mins == 1u;
  make_table();
  begin();
  SUMS sum[DOWN * ACROSS];
  SUMS ones[DOWN];
  REALS all[DOWN * ACROSS];
  [[unroll]] for (uint i = 0u; i < DOWN * ACROSS; i++) { sum[i] = SUMS(0); all[i] = REALS(0.0); }
  [[unroll]] for (uint i = 0u; i < DOWN; i++) ones[i] = SUMS(0);
  uvec4 digits[2], own;
  float scale = 0.0;
  load(0u, digits);
  own = weights_of(0u, column, part);
  if (has_scale) scale = scale_of(0u, column, part);
  for (uint s = 0u; s < steps; s++) {
    barrier();
    share(digits);
    put_columns(column * LINE / 2u + part, own);
    if (has_scale) [[unroll]] for (uint i = 0u; i < M; i++) scales[(part * M + i) * 64u + column] = scale;
    barrier();
    if (s + 1u < steps) {  // on their way meanwhile
      load(s + 1u, digits);
      own = weights_of(s + 1u, column, part);
      if (has_scale) scale = scale_of(s + 1u, column, part);
    }
    for (uint k = 0u; k < 64u; k += K) {
      DIGITS a[DOWN];
      [[unroll]] for (uint i = 0u; i < DOWN; i++)
        coopMatLoad(a[i], xs, (row0 + i * M) * LINE + k / 8u, LINE, gl_CooperativeMatrixLayoutRowMajor);
      if (mins == 1u) [[unroll]] for (uint i = 0u; i < DOWN; i++) ones[i] = coopMatMulAdd(a[i], LEVELS(int8_t(1)), ones[i]);
      [[unroll]] for (uint j = 0u; j < ACROSS; j++) {
        LEVELS b;
        coopMatLoad(b, ws, (column0 + j * N) * LINE + k / 8u, LINE, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (uint i = 0u; i < DOWN; i++) sum[i * ACROSS + j] = coopMatMulAdd(a[i], b, sum[i * ACROSS + j]);
      }
      if ((k + K) % 32u != 0u) continue;
      [[unroll]] for (uint j = 0u; j < ACROSS; j++) {
        REALS by;
        REALS least;
        uint at = k / 32u * M * 64u + column0 + j * N;
        coopMatLoad(by, scales, at, 64u, gl_CooperativeMatrixLayoutRowMajor);
        if (mins == 1u) coopMatLoad(least, scales, at + 2u * M * 64u, 64u, gl_CooperativeMatrixLayoutRowMajor);
        [[unroll]] for (uint i = 0u; i < DOWN; i++) {
          REALS one = REALS(ones[i]);
          REALS product = REALS(sum[i * ACROSS + j]);
          REALS to = all[i * ACROSS + j];
          [[unroll]] for (uint e = 0u; e < to.length(); e++) {
            to[e] = fused(product[e], by[e], to[e]);
            if (mins == 1u) to[e] = fused(one[e], least[e], to[e]);
          }
          all[i * ACROSS + j] = to;
          sum[i * ACROSS + j] = SUMS(0);
        }
      }
      [[unroll]] for (uint i = 0u; i < DOWN; i++) ones[i] = SUMS(0);
    }
  }
  float of_lane[32];
  for (uint piece = 0u; piece < 4u; piece++) {
    barrier();
    [[unroll]] for (uint i = 0u; i < DOWN; i++) {
      uint row = row0 + i * M;
      if (row / 32u == piece) [[unroll]] for (uint j = 0u; j < ACROSS; j++)
        coopMatStore(all[i * ACROSS + j], scales, row % 32u * 64u + column0 + j * N, 64u, gl_CooperativeMatrixLayoutRowMajor);
    }
    barrier();
    if (t / 64u == piece) [[unroll]] for (uint i = 0u; i < 32u; i++)
      of_lane[i] = scales[(t / 16u % 4u * 8u + i / 4u) * 64u + t % 16u * 4u + i % 4u];
  }
  barrier();
  finish(of_lane);
}
