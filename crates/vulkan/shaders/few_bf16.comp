#version 450
#extension GL_GOOGLE_include_directive : require
#include "routed.glsl"
#include "exact.glsl"
#include "order.glsl"
// Four rows with a strip, or with two where they are gated, in the order of tiles. Four lanes have the even and the odd
// chain of a step of 32 inputs, each of four columns, sixteen loads of 16 bytes; then a lane for each result adds the
// steps in order, as many at a time as a workgroup has lanes for.
layout(constant_id = 3) const uint LANES = 256;
layout(local_size_x_id = 3) in;
layout(std430, binding = 0) readonly buffer A { uvec4 x[]; };
#ifdef ROUTED
#define w Fours(own_tile.at.weights).at
#else
layout(std430, binding = 1) readonly buffer B { uvec4 w[]; };
#endif
#include "out.glsl"
const uint ROWS = 4u;
shared float part[ROWS * LANES * 4u];  // [row][LANES / 4][16 columns]
float result(uint r, uint k, uint row, uint column) { return part[r * 32u + k]; }
void main() {
  uint t = gl_LocalInvocationIndex, unit = t / 32u, c4 = t % 4u, strips = mode == GATED ? 2u : 1u;
  TILE(row, count, ROWS);
  uint pair = group().y * strips / 2u, strip = (strips == 2u ? unit : group().y) % 2u;
  uint column = (first_pair + pair) * 32u + (strips == 2u ? 0u : strip * 16u);
  if (column >= n) return;
  // of the steps that are added together: how many, that of this lane, and what this lane adds
  uint at_once = LANES / 4u / strips, own = unit / strips * 8u + t % 32u / 4u;
  uint r_ = t / (strips * 16u), k_ = t % (strips * 16u);
  float total = 0.0;
  for (uint first = 0u; first < steps; first += at_once) {
    uint s = first + own;
    if (s < steps) {
      uint from = ((pair * steps + s) * 512u + strip * 256u) / 4u + c4;
      uvec4 words[16];
      for (uint p = 0u; p < 16u; p++) words[p] = w[from + 4u * p];
      for (uint r = 0u; r < count; r++) {
        float even[4] = float[4](0.0, 0.0, 0.0, 0.0), odd[4] = float[4](0.0, 0.0, 0.0, 0.0);
        for (uint k = 0u; k < 4u; k++) {
          uvec4 numbers = x[((row + r) * steps + s) * 4u + k];
          for (uint i = 0u; i < 4u; i++) for (uint j = 0u; j < 4u; j++) {
            even[j] = plus_exact(low(numbers[i]), low(words[k * 4u + i][j]), even[j]);
            odd[j] = plus_exact(high(numbers[i]), high(words[k * 4u + i][j]), odd[j]);
          }
        }
        for (uint j = 0u; j < 4u; j++) part[r * LANES * 4u + t * 4u + j] = add(even[j], odd[j]);
      }
    }
    barrier();
    if (r_ < count) for (uint i = 0u; i < min(at_once, steps - first); i++) {
      // units take turns with two strips
      uint slot = strips == 2u ? i / 8u * 16u + k_ / 16u * 8u + i % 8u : i;
      total = add(total, part[(r_ * LANES / 4u + slot) * 16u + k_ % 16u]);
    }
    barrier();
  }
  if (r_ < count) part[r_ * 32u + k_] = total;
  barrier();
  for (uint i = t; i < to_put(count, strips * 16u); i += LANES) put(i, row, 1u, column, strips * 16u);
}
