// The papers of the tour; all of them are in docs/papers.md, which says what is taken from each.

export const PAPERS = {
  attention: "Vaswani et al., 2017. Attention Is All You Need",
  orca: "Yu et al., OSDI 2022. Orca: A Distributed Serving System for Transformer-Based Generative Models",
  roofline: "Williams et al., 2009. Roofline: An Insightful Visual Performance Model for Multicore Architectures",
  flash: "Dao et al., 2022. FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness",
  flashDecoding: "Dao et al., 2023. Flash-Decoding for long-context inference",
  paged: "Kwon et al., SOSP 2023. Efficient Memory Management for Large Language Model Serving with PagedAttention",
  sarathi: "Agrawal et al., OSDI 2024. Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve",
  distserve: "Zhong et al., OSDI 2024. DistServe: Disaggregating Prefill and Decoding for Goodput-optimized Large Language Model Serving",
  splitwise: "Patel et al., ISCA 2024. Splitwise: Efficient Generative LLM Inference Using Phase Splitting",
  mooncake: "Qin et al., FAST 2025. Mooncake: Trading More Storage for Less Computation, A KVCache-centric Architecture for Serving LLM Chatbot",
  gqa: "Ainslie et al., 2023. GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints",
  gptq: "Frantar et al., 2022. GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers",
  awq: "Lin et al., 2023. AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration",
  smoothquant: "Xiao et al., 2023. SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models",
  speculative: "Leviathan et al., 2023. Fast Inference from Transformers via Speculative Decoding",
  lookup: "Saxena, 2023. Prompt Lookup Decoding",
  goodput: "Liu et al., 2024. Optimizing Speculative Decoding for Serving Large Language Models Using Goodput",
  fairness: "Sheng et al., OSDI 2024. Fairness in Serving Large Language Models",
  qwen3: "Yang et al., 2025. Qwen3 Technical Report",
  vidur: "Agrawal et al., MLSys 2024. Vidur: A Large-Scale Simulation Framework for LLM Inference",
} as const;

export type PaperKey = keyof typeof PAPERS;
