// Layers whose memory is a state (crates/kernels/src/states.rs): the spans of a step, what each leaves in which slot, and
// the slots, by their addresses.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Slot { float at[]; };
// First row, rows, the slot before them or NONE, its first save; then how many saves.
layout(std430, binding = 4) readonly buffer N { uvec4 spans[]; };
layout(std430, binding = 5) readonly buffer S { uvec2 saves[]; };  // after a row, to a slot
layout(std430, binding = 6) readonly buffer L { uvec2 slots[]; };
const uint NONE = 0xffffffffu;
