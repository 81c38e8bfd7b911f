#!/bin/sh
# Compiles shaders/*.comp to spirv/*.spv, which are committed; some once more for rows of several matrices. Needs glslang 12
# (Debian: glslang-tools).
set -eu
cd "$(dirname "$0")"
to=${1:-spirv}
for source in shaders/*.comp; do
    name=$(basename "${source%.comp}")
    glslangValidator -V --target-env vulkan1.3 --quiet -g0 -o "$to/$name.spv" "$source"
    case $name in
        few_* | convert)
            glslangValidator -V --target-env vulkan1.3 --quiet -g0 -DROUTED -o "$to/routed_$name.spv" "$source" ;;
    esac
done
