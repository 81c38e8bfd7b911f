#version 450
#extension GL_GOOGLE_include_directive : require
#include "matrices.glsl"
#include "dot4.glsl"
#include "exact.glsl"
#include "order.glsl"
layout(local_size_x = 256) in;
layout(std430, binding = 0) readonly buffer A { uvec4 x[]; };
layout(std430, binding = 0) readonly buffer A1 { uint x1[]; };
layout(std430, binding = 1) readonly buffer B { uvec4 w[]; };
layout(std430, binding = 1) readonly buffer B1 { uint w1[]; };
#include "out.glsl"
#include "tiles.glsl"
#include "integers.glsl"
// Of a step, as matrices of equal rows: a ratio of each of 64 columns, of four bits for each half. Then sums of 32 rows
// on their way from subgroups to lanes, then ratios of listed quads.
shared int ratios[32 * 64];
#include "outliers.glsl"
const uint HALVES = FOUR ? 2u : 1u;
// Four quads of a column that a lane passes on, and a ratio.
uvec4 weights_of(uint s, uint column, uint part) {
  uint pair = pair_of(column / 4u), strip = strip_of(column / 4u), fours = column / 4u % 4u;
  uvec4 own;
  [[unroll]] for (uint c = 0u; c < 4u; c += FOUR ? 2u : 1u)
    own[c] = w1[weights_at(pair, strip, fours, s * 16u + part * 4u + c) + column % 4u];
  if (FOUR) [[unroll]] for (uint c = 0u; c < 4u; c += 2u) unpack(own[c], own[c], own[c + 1u]);
  return own;
}
int ratio_of(uint s, uint column, uint part) {
  uint fours = column / 4u;
  return byte_(w1[ratios_at(pair_of(fours), strip_of(fours), fours % 4u, s * 16u + part * 8u)], column % 4u);
}
void main() {
  uint t = gl_LocalInvocationIndex, column = t % 64u, part = t / 64u, each = 64u / OWN_COLUMNS;
  uint row0 = gl_SubgroupID / each * OWN_ROWS, column0 = gl_SubgroupID % each * OWN_COLUMNS;
  make_table();
  begin();
  SUMS sum[DOWN * ACROSS];
  SUMS total[DOWN * ACROSS];
  [[unroll]] for (uint i = 0u; i < DOWN * ACROSS; i++) { sum[i] = SUMS(0); total[i] = SUMS(0); }
  uvec4 digits[2], own;
  int ratio = 0;
  load(0u, digits);
  own = weights_of(0u, column, part);
  if (part < HALVES) ratio = ratio_of(0u, column, part);
  for (uint s = 0u; s < steps; s++) {
    barrier();
    share(digits);
    put_columns(column * LINE / 2u + part, own);
    if (part < HALVES) [[unroll]] for (uint i = 0u; i < M; i++) ratios[(part * M + i) * 64u + column] = ratio;
    barrier();
    if (s + 1u < steps) {  // on their way meanwhile
      load(s + 1u, digits);
      own = weights_of(s + 1u, column, part);
      if (part < HALVES) ratio = ratio_of(s + 1u, column, part);
    }
    for (uint k = 0u; k < 64u; k += K) {
      DIGITS a[DOWN];
      [[unroll]] for (uint i = 0u; i < DOWN; i++)
        coopMatLoad(a[i], xs, (row0 + i * M) * LINE + k / 8u, LINE, gl_CooperativeMatrixLayoutRowMajor);
      [[unroll]] for (uint j = 0u; j < ACROSS; j++) {
        LEVELS b;
        coopMatLoad(b, ws, (column0 + j * N) * LINE + k / 8u, LINE, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (uint i = 0u; i < DOWN; i++) sum[i * ACROSS + j] = coopMatMulAdd(a[i], b, sum[i * ACROSS + j]);
      }
      if (FOUR ? (k + K) % 32u != 0u : k + K < 64u || s % 2u == 0u && s + 1u < steps) continue;
      [[unroll]] for (uint j = 0u; j < ACROSS; j++) {
        SUMS by;
        coopMatLoad(by, ratios, (FOUR ? k / 32u * M * 64u : 0u) + column0 + j * N, 64u, gl_CooperativeMatrixLayoutRowMajor);
        [[unroll]] for (uint i = j; i < DOWN * ACROSS; i += ACROSS) { total[i] = total[i] + by * sum[i]; sum[i] = SUMS(0); }
      }
    }
  }
  int of_lane[32];
  for (uint piece = 0u; piece < 4u; piece++) {
    barrier();
    [[unroll]] for (uint i = 0u; i < DOWN; i++) {
      uint row = row0 + i * M;
      if (row / 32u == piece) [[unroll]] for (uint j = 0u; j < ACROSS; j++)
        coopMatStore(total[i * ACROSS + j], ratios, row % 32u * 64u + column0 + j * N, 64u, gl_CooperativeMatrixLayoutRowMajor);
    }
    barrier();
    if (t / 64u == piece) [[unroll]] for (uint i = 0u; i < 32u; i++)
      of_lane[i] = ratios[(t / 16u % 4u * 8u + i / 4u) * 64u + t % 16u * 4u + i % 4u];
  }
  barrier();
  finish(of_lane);
}
