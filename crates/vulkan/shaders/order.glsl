// Which part a workgroup computes. None needs another, so a test has them come in the other order.
layout(constant_id = 2) const bool REVERSED = false;
uvec3 group() { return REVERSED ? gl_NumWorkGroups - 1u - gl_WorkGroupID : gl_WorkGroupID; }
