// What products with groups end in: the other digits of outliers, by listed quads, then the scales of rows. Uses what
// tiles.glsl, groups.glsl and quads.glsl have; a lane has 8 rows and 4 columns.
float result(uint r, uint k, uint row, uint column) {
  return mul(uintBitsToFloat(rows_at(r * 16u + k / 4u)[k % 4u]), row_scale[row]);
}
// of four columns
void share_scales(uint to, uint base, uint g, uint fours) {
  for (uint j = 0u; j < 4u + 4u * mins; j++) {
    float scale = scale_at(base + j / 4u * scale_words(), g, fours % 8u * 4u + j % 4u);
    put_scale(j / 4u * 256u + to * 16u + fours, j % 4u, scale);
  }
}
void finish(float all[32]) {
  uint t = gl_LocalInvocationIndex, tc = t % 16u, tr = t / 16u, quads = group_ / 4u;
  float total[32];
  if (planes > 1u) {
    uint others = listed_quads();
    for (uint plane = 1u; plane < 3u; plane++) {
      for (uint i = 0u; i < 32u; i++) total[i] = 0.0;
      for (uint from = 0u; from < others; from += 16u) {
        uint quad = listed_quad(min(from + tr, others - 1u)), base = (pair_of(tc) * steps + quad / 16u) * step_words;
        uvec4 first, second;
        quads_at(base, quad % 16u / 2u * 2u, strip_of(tc), tc % 4u, first, second);
        barrier();
        share_others(plane, from, others);
        put_columns(tr * 17u + tc, quad % 2u == 0u ? first : second);
        share_scales(tr, base, quad % 16u / quads, tc);
        barrier();
        for (uint q = 0u; q < min(16u, others - from); q++) {
          uvec4 own = columns_at(q * 17u + tc);
          vec4 scale = scales_at(q * 16u + tc), least = scales_at(256u + q * 16u + tc);
          for (uint i = 0u; i < 8u; i++) {
            int digits = int(rows_at(q * 33u + tr * 2u + i / 4u)[i % 4u]);
            if (digits == 0) continue;
            for (uint j = 0u; j < 4u; j++)
              total[i * 4u + j] = fused(float(dot4(digits, int(own[j]), 0)), scale[j], total[i * 4u + j]);
            float one = float(dot4(digits, ONES, 0));
            if (mins == 1u) for (uint j = 0u; j < 4u; j++) total[i * 4u + j] = fused(one, least[j], total[i * 4u + j]);
          }
        }
      }
      for (uint i = 0u; i < 32u; i++) all[i] = fused(plane == 1u ? 255.0 : 65025.0, total[i], all[i]);
    }
  }
  put_all(all);
}
