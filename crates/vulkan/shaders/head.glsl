// A head in shared memory, between its product and the cache. `latent`: numbers of a key that are its value, or 0.
shared float head_[576];
uint keys, values, token;  // of the cache: where those of the head begin in the block, and the place in it
float inverse_rms(float squares, uint count) { return quotient(1.0, root(add(quotient(squares, float(count)), eps))); }
float of_head(uint count) {
  uint l = gl_LocalInvocationIndex;
  float squares = 0.0;
  if (l < 16u) for (uint d = l; d < count; d += 16u) squares = fused(head_[d], head_[d], squares);
  return inverse_rms(joined(squares), count);
}
// numbers from `first` on: of both halves the same ones by one angle
void turn(uint first, uint rotary, uint position) {
  uint half_ = rotary / 2u;
  for (uint i = gl_LocalInvocationIndex; i < half_; i += 64u) {
    float a = head_[first + i], b = head_[first + half_ + i];
    float c = angles[position * rotary + i], s = angles[position * rotary + half_ + i];
    head_[first + i] = fused(a, c, sub(0.0, mul(b, s)));
    head_[first + half_ + i] = fused(b, c, mul(a, s));
  }
  barrier();
}
// What differs by the type of the cache. `is_finite`: the value, where it is not part of the key.
void store_key(bool is_finite);
