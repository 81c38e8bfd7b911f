// Sums in 16 lanes, element i in lane i % 16, joined by halves: of the first 16 invocations of a workgroup.
shared float sum_lanes[16];
float joined(float own) {
  uint lane = gl_LocalInvocationIndex;
  barrier();
  if (lane < 16u) sum_lanes[lane] = own;
  barrier();
  for (uint half_ = 8u; half_ > 0u; half_ /= 2u) {
    float t = 0.0;
    if (lane < half_) t = add(sum_lanes[lane], sum_lanes[lane + half_]);
    barrier();
    if (lane < half_) sum_lanes[lane] = t;
    barrier();
  }
  return sum_lanes[0];
}
