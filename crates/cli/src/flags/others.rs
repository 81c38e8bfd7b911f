//! Flags of other servers, vLLM's and llama.cpp's whole lists as of late 2026: what becomes of each here.
//!
//! ```text
//! taken     a flag of `serve` with the same meaning              in the other files of this folder
//! HINTED    `serve` takes it, and the log says why it has no effect: no answer would be another one
//! REFUSED   an error that says what to use instead, or that there is nothing
//! ```
//! `tests/cli/switches.rs` walks all of them against the binary, and has the names that are taken.

/// How many values stand behind a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    None,
    One,
    /// One of the words of a switch, or none.
    Switch,
}

use Values::{None as No, One, Switch};

/// Why flags have no effect: their values, the flags.
type Hinted = (&'static str, Values, &'static str);
/// What to use instead, or why there is nothing: the flags.
type Refused = (&'static str, &'static str);

/// What `serve` takes without effect.
pub(crate) const HINTED: &[Hinted] = &[
    ("tools may always be called", No, "--enable-auto-tool-choice"),
    ("GET /load is always there", No, "--enable-server-load-tracking"),
    ("usage always has them", No, "--enable-prompt-tokens-details"),
    ("answers always have their timings", No, "--enable-per-request-metrics --perf --no-perf"),
    ("answers always have X-Request-Id", No, "--enable-request-id-headers"),
    ("GET /tokenizer_info is always there", No, "--enable-tokenizer-info-endpoint"),
    ("GET /metrics is always there", No, "--metrics"),
    ("GET /metrics has shares of the machine's limits", No, "--enable-mfu-metrics"),
    ("GET /slots and /props are always there", No, "--slots --props"),
    ("every model gives what it can", No, "--embedding --embeddings --rerank --reranking"),
    ("templates are always run", No, "--jinja"),
    ("prefill is always chunked; --tpot-slo decides how large chunks are", No, "--enable-chunked-prefill"),
    ("requests are always batched as they come", No, "--cont-batching -cb --async-scheduling"),
    ("the prefix cache is always on (--no-enable-prefix-caching)", No, "--cache-prompt"),
    ("one pool of KV blocks serves all", No, "--kv-unified -kvu --cache-idle-slots --no-context-shift"),
    ("--lora-modules NAME=DIR is enough (--allow-runtime-lora where none is loaded at the start)", No, "--enable-lora"),
    ("adapters are packed for the CPU", No, "--fully-sharded-loras --specialize-active-lora"),
    ("no code of a model is ever run", No, "--trust-remote-code"),
    ("no code of a model is ever run", One, "--code-revision"),
    (
        "nothing is compiled at run time",
        No,
        "--enforce-eager -O0 -O1 -O2 -O3 --cudagraph-metrics --enable-flashinfer-autotune",
    ),
    (
        "nothing is compiled at run time",
        One,
        "--compilation-config -O -cc --cudagraph-capture-sizes --cuda-graph-sizes --max-cudagraph-capture-size \
         --optimization-level --performance-mode",
    ),
    (
        "kernels are chosen by the CPU",
        One,
        "--attention-backend --attention-config --kernel-config --moe-backend --model-impl",
    ),
    ("kernels are chosen by the CPU", No, "--disable-cascade-attn --repack --no-repack -nr --no-host"),
    ("attention is always tiled", Switch, "--flash-attn -fa"),
    (
        "this build computes on the CPU",
        One,
        "--n-gpu-layers -ngl --gpu-layers --main-gpu -mg --split-mode -sm --tensor-split -ts",
    ),
    (
        "this build computes on the CPU",
        No,
        "--kv-offload --no-kv-offload -kvo -nkvo --op-offload --no-op-offload --cpu-moe -cmoe --backend-sampling \
         -bs --disable-custom-all-reduce --enable-flash-late-interaction --enable-layerwise-nvtx-tracing",
    ),
    (
        "this build computes on the CPU: weights are in its memory already",
        One,
        "--cpu-offload-gb --n-cpu-moe -ncmoe --n-cpu-ffn -ncffn --moe-cache-mib",
    ),
    ("weights are read into memory of the process's own", No, "--mlock --mmap --no-mmap"),
    (
        "weights are read into memory of the process's own",
        One,
        "--load-mode -lm --lazy-mode -lzm --safetensors-load-strategy --pt-load-map-location",
    ),
    ("weights are always checked", No, "--check-tensors --allow-deprecated-quantization"),
    ("a terminal gets a bar", No, "--use-tqdm-on-load"),
    ("what steps cost is measured at the first start", No, "--warmup --no-warmup"),
    ("threads are pinned to cores, and nodes found", One, "--numa --cpu-strict --prio --poll"),
    ("threads for HTTP are found by themselves", One, "--threads-http"),
    ("the int8 KV cache has a scale for each key and value", No, "--calculate-kv-scales"),
    ("blocks are named by a keyed hash of their tokens", One, "--prefix-caching-hash-algo"),
    ("layers share one pool of KV blocks", No, "--disable-hybrid-kv-cache-manager --swa-full"),
    ("blocks of the KV cache never move", One, "--defrag-thold -dt"),
    ("there is one compiler of grammars", One, "--guided-decoding-backend"),
    (
        "the environment variable TWOSTROKE_LOG sets what is logged: warn, or info,access=off for no line per request",
        No,
        "--disable-log-requests --enable-log-requests --no-enable-log-requests --disable-log-stats \
         --aggregate-engine-logging --disable-uvicorn-access-log --enable-logging-iteration-details --log-disable \
         --log-verbose --verbose --log-prefix --no-log-prefix --log-timestamps --no-log-timestamps \
         --log-error-stack",
    ),
    (
        "the environment variable TWOSTROKE_LOG sets what is logged: warn, or info,access=off for no line per request",
        One,
        "--uvicorn-log-level --disable-access-log-for-endpoints --log-level --log-format --log-verbosity \
         --verbosity -lv",
    ),
    ("the log has colours on a terminal alone (NO_COLOR)", Switch, "--log-colors"),
    ("neither prompts nor answers are ever logged", One, "--max-log-len"),
    ("neither prompts nor answers are ever logged", No, "--enable-log-deltas --no-enable-log-deltas"),
    ("the environment is read in one place", No, "--fail-on-environ-validation"),
    ("images, audio and video are not read", No, "--no-mmproj --no-mmproj-auto --skip-mm-profiling"),
    ("images, audio and video are not read", No, "--disable-chunked-mm-input --language-model-only"),
];

/// What is an error, and what to do instead.
pub(crate) const REFUSED: &[Refused] = &[
    (
        "--kv-cache-memory-bytes sets the size of the KV cache",
        "--gpu-memory-utilization --num-gpu-blocks-override --fit -fit --fit-target -fitt",
    ),
    (
        "one process computes on all cores; -t sets the threads",
        "--tensor-parallel-size -tp --pipeline-parallel-size -pp --data-parallel-size -dp --data-parallel-rank -dpn \
         --data-parallel-start-rank -dpr --data-parallel-size-local -dpl --data-parallel-address -dpa \
         --data-parallel-rpc-port -dpp --data-parallel-backend -dpb --data-parallel-hybrid-lb \
         --data-parallel-external-lb --data-parallel-multi-port-external-lb --data-parallel-supervisor-port \
         --dp-supervisor-probe-interval-s --dp-supervisor-probe-timeout-s --dp-supervisor-probe-failure-threshold \
         --decode-context-parallel-size -dcp --prefill-context-parallel-size -pcp --cp-kv-cache-interleave-size \
         --dcp-kv-cache-interleave-size --enable-expert-parallel --enable-elastic-ep --enable-eplb --eplb-config \
         --num-redundant-experts --eplb-window-size --eplb-step-interval --eplb-log-balancedness \
         --expert-placement-strategy --all2all-backend --enable-dbo --dbo-decode-token-threshold \
         --dbo-prefill-token-threshold --disable-nccl-for-dp-synchronization --distributed-executor-backend \
         --max-parallel-loading-workers --ray-workers-use-nsight --worker-cls --worker-extension-cls --nnodes \
         --node-rank --master-addr --master-port --headless --api-server-count -asc --rpc -dev \
         --list-devices --threads-batch -tb",
    ),
    (
        "-t sets the threads, and taskset(1) the cores that they may have",
        "--cpu-mask -C --cpu-range -Cr --cpu-mask-batch -Cb --cpu-range-batch -Crb --cpu-strict-batch --prio-batch \
         --poll-batch",
    ),
    (
        "--weights bf16|int8|int4 sets the precision in memory",
        "--dtype --quantization -q --load-format --override-attention-dtype --lora-dtype",
    ),
    ("--kv-dtype bf16|int8 sets the precision of the KV cache", "--cache-type-k -ctk --cache-type-v -ctv"),
    ("prefill is always chunked; --tpot-slo decides how large chunks are", "--no-enable-chunked-prefill"),
    ("--max-num-partial-prefills bounds the prompts in prefill per step", "--max-long-partial-prefills"),
    (
        "--kv-swap-memory SIZE keeps the blocks of preempted requests; without it they are recomputed",
        "--swap-space --kv-offloading-size --kv-offloading-backend --cache-ram -cram",
    ),
    (
        "weights and KV cache are in the CPU's memory; --weights and --kv-dtype make them smaller",
        "--cpu-offload-params --offload-backend --offload-group-size --offload-num-in-group --offload-params \
         --offload-prefetch-step --override-tensor -ot",
    ),
    ("logs go to standard error: 2> FILE keeps them", "--log-file --log-config-file"),
    ("neither prompts nor answers are ever logged; --record keeps them", "--enable-log-outputs --log-prompts-dir"),
    ("the log is text; --json prints the start as JSON", "--log-jsonl --no-log-jsonl"),
    ("the environment variable HF_HUB_CACHE sets where models are kept", "--download-dir"),
    ("the environment variable HF_TOKEN holds the hub's token", "--hf-token -hft"),
    ("the environment variable HF_HUB_OFFLINE=1 keeps it off the network", "--offline"),
    (
        "-m names a file, or ORG/NAME[:QUANT] of the hub",
        "--model-url -mu --hf-repo -hf -hfr --hf-file -hff --docker-repo -dr --embd-gemma-default \
         --fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default --fim-qwen-7b-spec --fim-qwen-14b-spec \
         --fim-qwen-30b-default --gpt-oss-20b-default --gpt-oss-120b-default --vision-gemma-4b-default \
         --vision-gemma-12b-default",
    ),
    (
        "a server has one model: start one for each",
        "--models-dir --models-preset --models-max --models-autoload --no-models-autoload --cache-list -cl \
         --sleep-idle-seconds --enable-sleep-mode",
    ),
    (
        "tokenizer and shape are read from the model's files",
        "--tokenizer --tokenizer-mode --skip-tokenizer-init --hf-config-path --hf-overrides --config-format \
         --override-kv --model-loader-extra-config --ignore-patterns --rope-scaling --rope-theta --rope-scale \
         --rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor --yarn-beta-slow \
         --yarn-beta-fast --disable-sliding-window --spm-infill",
    ),
    (
        "what a model can is read from its files",
        "--runner --convert --task --pooling --pooler-config --override-pooler-config --embd-normalize",
    ),
    (REVISION, "--tokenizer-revision"),
    (
        "--lora-modules NAME=DIR names adapters, and --max-loras how many there may be",
        "--max-cpu-loras --lora-extra-vocab-size --default-mm-loras --enable-tower-connector-lora --lora \
         --lora-scaled --lora-init-without-apply --control-vector --control-vector-scaled \
         --control-vector-layer-range",
    ),
    (
        "--allowed-origin ORIGIN, repeated, names those that may ask from a browser",
        "--allowed-origins --cors-origins --allowed-methods --cors-methods --allowed-headers --cors-headers \
         --allow-credentials --cors-credentials --no-cors-credentials",
    ),
    ("--allowed-host NAME, repeated, names what the server goes by", "--allowed-hosts"),
    (
        "a proxy in front of the server checks clients' certificates and hides routes",
        "--ssl-ca-certs --ssl-cert-reqs --ssl-ciphers --enable-ssl-refresh --middleware --disable-fastapi-docs \
         --enable-offline-docs --no-slots --grpc --reuse-port --path",
    ),
    (
        "limits of requests are fixed",
        "--h11-max-incomplete-event-size --h11-max-header-count --timeout -to --sse-ping-interval",
    ),
    ("a request asks for it: \"return_tokens_as_token_ids\": true", "--return-tokens-as-token-ids --tokens-only"),
    ("a request asks for it: \"stream_options\": {\"include_usage\": true}", "--enable-force-include-usage"),
    ("a request says what is to be streamed: every token is sent as it comes", "--stream-interval"),
    ("a request leaves tools out, or says \"tool_choice\": \"none\"", "--exclude-tools-when-tool-choice-none"),
    (
        "--default-chat-template-kwargs says what a template is given: {\"enable_thinking\": false}",
        "--reasoning -rea --reasoning-effort --reasoning-preserve --no-reasoning-preserve",
    ),
    ("a request asks for it: \"thinking_token_budget\": N", "--reasoning-budget --reasoning-budget-message"),
    (
        "--reasoning-parser NAME and --tool-call-parser NAME say how a model writes, `none` that all is text",
        "--reasoning-format --reasoning-parser-plugin --tool-parser-plugin --skip-chat-parsing \
         --no-skip-chat-parsing --no-jinja --cohere-is-reasoning-model --cohere-format \
         --chat-template-content-format",
    ),
    (
        "an assistant's last message is continued where a request says so: \"continue_final_message\": true",
        "--prefill-assistant --no-prefill-assistant --response-role",
    ),
    (
        "tools are called by the client",
        "--tool-server --tools --tools-runtime --mcp-servers-config --mcp-servers-json --agent -ag --no-agent \
         -no-ag",
    ),
    (
        "a request asks for it: \"response_format\", \"structured_outputs\" or \"grammar\"",
        "--grammar --grammar-file --json-schema -j --json-schema-file -jf --structured-outputs-config \
         --guided-decoding-disable-fallback --guided-decoding-disable-any-whitespace \
         --guided-decoding-disable-additional-properties --logits-processors --logits-processor-pattern \
         --logits-processor --io-processor-plugin --logprobs-mode --enable-prompt-embeds \
         --enable-return-routed-experts",
    ),
    (
        "--override-generation-config '{\"temperature\": 0.5}' sets defaults of sampling",
        "--temp --temperature --top-k --top-p --min-p --repeat-penalty --repeat-last-n --presence-penalty \
         --frequency-penalty --samplers --sampler-seq --sampling-seq --top-nsigma --top-n-sigma --xtc-probability \
         --xtc-threshold --typical --typical-p --dry-multiplier --dry-base --dry-allowed-length \
         --dry-penalty-last-n --dry-sequence-breaker --adaptive-target --adaptive-decay --dynatemp-range \
         --dynatemp-exp --mirostat --mirostat-lr --mirostat-ent --logit-bias -l --ignore-eos --reverse-prompt -r",
    ),
    ("-c or --max-model-len sets the context", "--fit-ctx -fitc --kv-unified-per-slot"),
    ("--max-num-seqs sets the sequences that run together", "--parallel -np --no-cont-batching -nocb"),
    (
        "--tpot-slo decides the rows of a step, --max-num-batched-tokens bounds them",
        "--ubatch-size -ub --batch-size -b --num-lookahead-slots",
    ),
    ("a request's \"max_tokens\" bounds its answer", "--n-predict --predict -n"),
    ("--seed N is the seed of seeds", "-s"),
    ("a request asks for it: \"skip_special_tokens\": false", "--special -sp"),
    ("--help lists what there is", "--usage"),
    ("a request that is longer than the context is refused", "--context-shift --keep"),
    ("--no-enable-prefix-caching turns the prefix cache off", "--no-cache-prompt"),
    (
        "the prefix cache finds equal beginnings by itself",
        "--cache-reuse --slot-save-path --slot-prompt-similarity -sps --ctx-checkpoints -ctxcp --swa-checkpoints \
         --checkpoint-min-step -cms --no-cache-idle-slots --no-kv-unified -no-kvu --kv-sharing-fast-prefill \
         --mamba-block-size --mamba-cache-dtype --mamba-cache-mode --mamba-ssm-cache-dtype",
    ),
    ("\"priority\" or \"service_tier\" of a request says which goes first", "--scheduling-policy --scheduler-cls"),
    ("--served-model-name NAME names the model", "--alias -a --tags --fingerprint-mode --fingerprint-value"),
    ("the prompt is an argument: twostroke run \"...\"", "--prompt -p"),
    (
        "--prefill-workers and --handoff-listen have workers read prompts for others",
        "--kv-transfer-config --ec-transfer-config --weight-transfer-config",
    ),
    (
        "the variable OTEL_EXPORTER_OTLP_TRACES_ENDPOINT says where spans go",
        "--otlp-traces-endpoint --collect-detailed-traces",
    ),
    (
        "GET /metrics has all there is; `twostroke top` and `why` show where time goes",
        "--show-hidden-metrics-for-version --kv-cache-metrics --kv-cache-metrics-sample --profiler-config",
    ),
    ("there are no settings beside the flags that --help lists", "--additional-config --external_parameters"),
    (
        "--speculative-config {\"method\": ..., \"model\": DIR} says what drafts",
        "--model-draft -md --spec-draft-model --spec-draft-hf -hfd -hfrd --hf-repo-draft --spec-type --spec-default \
         --draft --draft-n --draft-max --draft-min --draft-n-min --draft-p-min --draft-p-split --spec-draft-n-max \
         --spec-draft-n-min --spec-draft-p-min --spec-draft-p-split --spec-draft-sampling \
         --spec-draft-backend-sampling --no-spec-draft-backend-sampling --spec-draft-device -devd --device-draft \
         --spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-threads -td --threads-draft \
         --spec-draft-threads-batch -tbd --threads-batch-draft --spec-draft-cpu-mask -Cd --cpu-mask-draft \
         --spec-draft-cpu-range -Crd --cpu-range-draft --spec-draft-cpu-strict --cpu-strict-draft --spec-draft-prio \
         --prio-draft --spec-draft-poll --poll-draft --spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft \
         --spec-draft-cpu-strict-batch --cpu-strict-batch-draft --spec-draft-prio-batch --prio-batch-draft \
         --spec-draft-poll-batch --poll-batch-draft --spec-draft-override-tensor -otd --override-tensor-draft \
         --spec-draft-cpu-moe -cmoed --cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed \
         --n-cpu-moe-draft --spec-draft-type-k -ctkd --cache-type-k-draft --spec-draft-type-v -ctvd \
         --cache-type-v-draft --spec-synth-len --spec-synth-rates --spec-ngram-mod-n-min --spec-ngram-mod-n-max \
         --spec-ngram-mod-n-match --spec-ngram-simple-size-n --spec-ngram-simple-size-m \
         --spec-ngram-simple-min-hits --spec-ngram-map-k-size-n --spec-ngram-map-k-size-m \
         --spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m \
         --spec-ngram-map-k4v-min-hits --spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits \
         --lookup-cache-static -lcs --lookup-cache-dynamic -lcd",
    ),
    (
        "images, audio and video are not read",
        "--allowed-local-media-path --allowed-media-domains --limit-mm-per-prompt --enable-mm-embeds \
         --media-io-kwargs --media-path --mm-processor-kwargs --mm-processor-cache-gb --mm-processor-cache-type \
         --disable-mm-preprocessor-cache --mm-shm-cache-max-object-size-mb --mm-encoder-tp-mode \
         --mm-encoder-attn-backend --mm-encoder-only --enable-multimodal-encoder-data-parallel \
         --interleave-mm-strings --video-pruning-rate --mmproj -mm --mmproj-url -mmu --mmproj-auto --mmproj-offload \
         --no-mmproj-offload --mmproj-device -mmdev --image-min-tokens --image-max-tokens --mtmd-batch-max-tokens \
         --video-fps --video-timestamp-interval --video-ffmpeg-dir",
    ),
    (
        "the page at / has no settings of its own; --no-ui leaves it out",
        "--ui --webui --no-webui --ui-config --webui-config --ui-config-file --webui-config-file --ui-mcp-proxy \
         --webui-mcp-proxy --no-ui-mcp-proxy --no-webui-mcp-proxy",
    ),
    ("text is taken as it stands", "--escape -e --no-escape"),
    ("`twostroke completions bash` prints it", "--completion-bash"),
];

/// `serve` has --revision, the other verbs this.
const REVISION: &str = "-m ORG/NAME@REVISION names the revision of model and tokenizer";
/// The words of a switch.
const SWITCH: [&str; 6] = ["on", "off", "auto", "0", "1", "true"];

/// What to use instead of a flag, or why it has no effect.
pub(crate) fn hint(flag: &str) -> Option<&'static str> {
    let name = name(flag);
    if name == "--revision" {
        return Some(REVISION);
    }
    let hinted = HINTED.iter().find(|(_, _, flags)| has(flags, name)).map(|(why, ..)| *why);
    hinted.or_else(|| Some(REFUSED.iter().find(|(_, flags)| has(flags, name))?.0))
}

fn has(flags: &str, flag: &str) -> bool {
    flags.split_whitespace().any(|one| one == flag)
}

fn name(flag: &str) -> &str {
    flag.split('=').next().unwrap_or(flag)
}

/// Takes the flags without effect out of the arguments of `serve`, with their values; what to say about each.
pub(crate) fn take_hinted(arguments: &mut Vec<std::ffi::OsString>) -> Vec<String> {
    let mut notes = Vec::new();
    let mut at = 2;
    while at < arguments.len() {
        let Some(flag) = arguments[at].to_str().filter(|&flag| flag != "--") else {
            // What is behind `--` is no flag, and what is no text is a value.
            if arguments[at] == "--" {
                break;
            }
            at += 1;
            continue;
        };
        let hinted = HINTED.iter().find(|(_, _, flags)| has(flags, name(flag)));
        let Some((why, values, _)) = hinted else {
            at += 1;
            continue;
        };
        let next = arguments.get(at + 1).and_then(|next| next.to_str());
        let has_value = !flag.contains('=')
            && match values {
                No => false,
                One => next.is_some_and(|next| !next.starts_with("--")),
                Switch => next.is_some_and(|next| SWITCH.contains(&next)),
            };
        notes.push(format!("note: {} says nothing here: {why}", name(flag)));
        arguments.drain(at..at + 1 + usize::from(has_value));
    }
    notes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;
    use crate::flags::Cli;

    /// Every name once: taken, hinted or refused.
    #[test]
    fn nothing_is_listed_twice_or_exists() {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").expect("a verb");
        let own: BTreeSet<String> = serve
            .get_arguments()
            .flat_map(|argument| {
                let longs = argument.get_long_and_visible_aliases().unwrap_or_default();
                let shorts = argument.get_short_and_visible_aliases().unwrap_or_default();
                let longs = longs.into_iter().map(|long| format!("--{long}"));
                longs.chain(shorts.into_iter().map(|short| format!("-{short}"))).collect::<Vec<_>>()
            })
            .collect();
        let mut seen = BTreeSet::new();
        let hinted = HINTED.iter().flat_map(|(_, _, flags)| flags.split_whitespace());
        for flag in hinted.chain(REFUSED.iter().flat_map(|(_, flags)| flags.split_whitespace())) {
            assert!(seen.insert(flag), "{flag} stands there twice");
            assert!(!own.contains(flag), "{flag} is a flag of serve");
        }
    }

    #[test]
    fn flags_without_effect_go_with_their_values() {
        for (given, left, notes) in [
            (&["-m", "x", "-ngl", "99", "--port", "0"][..], &["-m", "x", "--port", "0"][..], &["-ngl"][..]),
            (&["-ngl=99", "x"], &["x"], &["-ngl"]),
            (&["-fa", "x"], &["x"], &["-fa"]),
            (&["-fa", "on", "x"], &["x"], &["-fa"]),
            (&["--flash-attn", "-c", "1k"], &["-c", "1k"], &["--flash-attn"]),
            (&["--enforce-eager", "--uvicorn-log-level=info"], &[], &["--enforce-eager", "--uvicorn-log-level"]),
            (&["--cpu-offload-gb", "--json"], &["--json"], &["--cpu-offload-gb"]),
            (&["-O3", "-O", "2"], &[], &["-O3", "-O"]),
            (&["--", "--mlock"], &["--", "--mlock"], &[]),
            (&["x", "--mlock"], &["x"], &["--mlock"]),
        ] {
            let all = |rest: &[&str]| ["twostroke", "serve"].iter().chain(rest).map(Into::into).collect::<Vec<_>>();
            let mut arguments = all(given);
            let told = take_hinted(&mut arguments);
            assert_eq!(arguments, all(left), "{given:?}");
            let told: Vec<&str> = told.iter().filter_map(|note| note.split(' ').nth(1)).collect();
            assert_eq!(told, notes, "{given:?}");
        }
    }
}
