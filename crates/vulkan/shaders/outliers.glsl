// What integer products of tiles end in: the other digits of outliers, by listed quads, then the scales. Uses what
// tiles.glsl and integers.glsl have; a lane has 8 rows and 4 columns.
float result(uint r, uint k, uint row, uint column) {
  return mul(mul(uintBitsToFloat(rows_at(r * 16u + k / 4u)[k % 4u]), row_scale[row]), column_scale[column]);
}
void finish(int total[32]) {
  uint t = gl_LocalInvocationIndex, tc = t % 16u, tr = t / 16u;
  float all[32];
  for (uint i = 0u; i < 32u; i++) all[i] = float(total[i]);
  if (planes > 1u) {
    uint others = listed_quads();
    for (uint plane = 1u; plane < 3u; plane++) {
      for (uint i = 0u; i < 32u; i++) total[i] = 0;
      for (uint first = 0u; first < others; first += 16u) {
        uint quad = listed_quad(min(first + tr, others - 1u));
        barrier();
        share_others(plane, first, others);
        put_columns(tr * 17u + tc, levels_at(w[weights_at(pair_of(tc), strip_of(tc), tc % 4u, quad) / 4u], quad));
        ratios[t] = int(w1[ratios_at(pair_of(tc), strip_of(tc), tc % 4u, quad)]);
        barrier();
        for (uint q = 0u; q < min(16u, others - first); q++) {
          uvec4 x0 = rows_at(q * 33u + tr * 2u), x8 = rows_at(q * 33u + tr * 2u + 1u), own = columns_at(q * 17u + tc);
          uint those = uint(ratios[q * 16u + tc]);
          for (uint i = 0u; i < 4u; i++) for (uint j = 0u; j < 4u; j++) {
            total[i * 4u + j] += byte_(those, j) * dot4(int(x0[i]), int(own[j]), 0);
            total[16u + i * 4u + j] += byte_(those, j) * dot4(int(x8[i]), int(own[j]), 0);
          }
        }
      }
      for (uint i = 0u; i < 32u; i++) all[i] = fused(plane == 1u ? 255.0 : 65025.0, float(total[i]), all[i]);
    }
  }
  put_all(all);
}
