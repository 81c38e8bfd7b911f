// Products of matrices of bytes, as a device has them: exact, in whatever order it adds. Matrices lie in registers, so
// whatever goes through several is unrolled.
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_control_flow_attributes : require
#define MATRICES
// Rows, columns and depth of a product; rows and columns that a subgroup has.
layout(constant_id = 6) const uint M = 16;
layout(constant_id = 7) const uint N = 16;
layout(constant_id = 8) const uint K = 32;
layout(constant_id = 9) const uint OWN_ROWS = 32;
layout(constant_id = 10) const uint OWN_COLUMNS = 32;
const uint DOWN = OWN_ROWS / M, ACROSS = OWN_COLUMNS / N;
#define DIGITS coopmat<int8_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA>
#define LEVELS coopmat<int8_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB>
#define SUMS coopmat<int, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
