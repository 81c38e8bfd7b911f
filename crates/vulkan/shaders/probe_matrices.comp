#version 450
#extension GL_GOOGLE_include_directive : require
#include "matrices.glsl"
#include "order.glsl"
// What products make of matrices of bytes: a subgroup multiplies M rows with N columns, 64 deep, and adds that twice,
// times what is given for each column.
layout(local_size_x_id = 3) in;
layout(std430, binding = 0) readonly buffer A { uint given[]; };  // of each: rows, columns, factors
layout(std430, binding = 1) writeonly buffer R { int results[]; };
shared uvec2 lines[(M + N) * 10u];
shared int factors[M * N];
void main() {
  uint t = gl_LocalInvocationIndex, lanes = gl_WorkGroupSize.x, words = (M + N) * 16u;
  uint from = group().x * (words + N);
  for (uint i = t; i < words / 2u; i += lanes) lines[i / 8u * 10u + i % 8u] = uvec2(given[from + 2u * i], given[from + 2u * i + 1u]);
  for (uint i = t; i < M * N; i += lanes) factors[i] = int(given[from + words + i % N]);
  barrier();
  SUMS sum = SUMS(0);
  SUMS total = SUMS(0);
  SUMS by;
  coopMatLoad(by, factors, 0u, N, gl_CooperativeMatrixLayoutRowMajor);
  for (uint round = 0u; round < 2u; round++) {
    for (uint k = 0u; k < 64u; k += K) {
      DIGITS a;
      LEVELS b;
      coopMatLoad(a, lines, k / 8u, 10u, gl_CooperativeMatrixLayoutRowMajor);
      coopMatLoad(b, lines, M * 10u + k / 8u, 10u, gl_CooperativeMatrixLayoutColumnMajor);
      sum = coopMatMulAdd(a, b, sum);
    }
    total = total + by * sum;
    sum = SUMS(0);
  }
  barrier();
  coopMatStore(total, factors, 0u, N, gl_CooperativeMatrixLayoutRowMajor);
  barrier();
  for (uint i = t; i < M * N; i += lanes) results[group().x * M * N + i] = factors[i];
}
