#!/bin/sh
# Compiles shaders/*.comp to spirv/*.spv, which are committed. Needs glslang 12 (Debian: glslang-tools).
set -eu
cd "$(dirname "$0")"
for source in shaders/*.comp; do
    name=$(basename "${source%.comp}")
    glslangValidator -V --target-env vulkan1.3 --quiet -g0 -o "${1:-spirv}/$name.spv" "$source"
done
