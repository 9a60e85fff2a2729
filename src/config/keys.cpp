// SPDX-License-Identifier: Apache-2.0
// This file is longer than others because it is one table.
#include "config/keys.h"

namespace thinwire::config {

namespace {

constexpr KeyStatus kSupported = KeyStatus::kSupported;
constexpr KeyStatus kIgnored = KeyStatus::kIgnored;
constexpr KeyStatus kRejected = KeyStatus::kRejected;

constexpr std::string_view kAdams = "Adam, AdamW";
constexpr std::string_view kLambs = "Lamb, OneBitLamb";
constexpr std::string_view kLowBit = "OneBitAdam, OneBitLamb, ZeroOneAdam";
constexpr std::string_view kExact = "Adam, AdamW, Lamb";
constexpr std::string_view kFreezing = "OneBitAdam, OneBitLamb";
constexpr std::string_view kZeroOne = "ZeroOneAdam";
constexpr std::string_view kWarmupTypes =
    "WarmupLR, WarmupDecayLR, WarmupCosineLR";
constexpr std::string_view kTotals = "WarmupDecayLR, WarmupCosineLR";
constexpr std::string_view kRates = "WarmupLR, WarmupDecayLR";

constexpr std::string_view kStage3 = "only for stage 3, which is rejected";
constexpr std::string_view kMeasures = "a report of DeepSpeed's; not written";
constexpr std::string_view kTimes =
    "a report of DeepSpeed's; `thinwire.telemetry` and "
    "`wall_clock_breakdown` hold these numbers";
constexpr std::string_view kCharts =
    "used by thinwire.initialize; in C++, `python -m thinwire telemetry` "
    "converts the file of `thinwire.telemetry` for TensorBoard";
constexpr std::string_view kOwnBits =
    "only for stage 3, which is rejected; at stages 1 and 2 use "
    "`thinwire.zero_bits_up` and `thinwire.zero_bits_down`";
constexpr std::string_view kNoMomentum = "the momentum does not cycle";

constexpr KeyRule rejected(std::string_view path, std::string_view text,
                           std::string_view harmless) {
  return {path, kRejected, text, {}, harmless};
}

constexpr KeyRule ignored_switch(std::string_view path, std::string_view text) {
  return {.path = path, .status = kIgnored, .text = text, .is_switch = true};
}

constexpr KeyRule kRules[] = {
    {"train_batch_size", kSupported, "samples per step of all ranks"},
    {"train_micro_batch_size_per_gpu", kSupported,
     "samples per backward of one rank"},
    {"gradient_accumulation_steps", kSupported, "backwards per step"},
    {"managed_gradient_accumulation", kSupported,
     "`false`: the caller says when a step ends"},
    {"gradient_clipping", kSupported,
     "global L2 norm; absent or 0: none (DeepSpeed clips at 1.0 by default "
     "since 0.19.3)"},
    {"steps_per_print", kSupported, "steps per line of a program's log"},
    {"communication_data_type", kSupported,
     "`fp32`, `fp16`, `bf16`: how exact averages of fp32 values travel; "
     "absent: "
     "as the parameters. 16-bit gradients travel as they are"},
    {"prescale_gradients", kSupported,
     "`deepspeed` semantics: divide before the sum; otherwise unnecessary: "
     "sums are formed in fp32 and divided once"},
    {"gradient_predivide_factor", kSupported,
     "`deepspeed` semantics: the part of the division that comes before the "
     "sum; otherwise unnecessary, too"},
    rejected(
        "gradient_allreduce_op",
        "gradients are averaged; for a sum multiply the loss by the number of "
        "ranks",
        "\"mean\""),
    {"data_types.grad_accum_dtype", kSupported,
     "type of accumulated gradients; absent: fp32 (DeepSpeed: as the "
     "parameters)"},
    {"data_types.param_dtype", kSupported,
     "must agree with `fp16` and `bf16`; fp32 without them"},
    {"data_types.buffer_dtype", kRejected,
     "fp32 buffers take the parameters' type in a model that is all fp32"},

    {"optimizer.type", kSupported,
     "`Adam`, `AdamW`, `Lamb`, `OneBitAdam`, `OneBitLamb`, `ZeroOneAdam`, in "
     "any case; absent: AdamW"},
    rejected("optimizer.legacy_fusion", "DeepSpeed's own Adam rejects it too",
             "false"),
    {"optimizer.params.lr", kSupported, "step size"},
    {"optimizer.params.betas", kSupported,
     "decay of both moments, two numbers"},
    {"optimizer.params.eps", kSupported, "keeps the denominator above 0"},
    {"optimizer.params.weight_decay", kSupported, "per step"},
    {"optimizer.params.bias_correction", kSupported,
     "1-bit optimizers: with `corrected` semantics"},
    {"optimizer.params.eps_inside_sqrt", kSupported,
     "sqrt(v + eps); 1-bit optimizers: with `corrected` semantics"},
    rejected("optimizer.params.amsgrad",
             "the running maximum of the variance is not supported", "false"),
    rejected("optimizer.params.max_grad_norm",
             "DeepSpeed's engine rejects it too; use gradient_clipping", "0"),
    {"optimizer.params.adam_w_mode", kSupported,
     "`false`: L2 decay (`Adam` only); absent: AdamW, for `Adam` too", kAdams},
    {"optimizer.params.torch_adam", kIgnored, "there is one Adam here", kAdams},
    {"optimizer.params.set_grad_none", kIgnored,
     "gradients are views of one array and stay", kAdams},
    {"optimizer.params.max_coeff", kSupported, "largest trust ratio", kLambs},
    {"optimizer.params.min_coeff", kSupported, "smallest trust ratio", kLambs},
    {"optimizer.params.coeff_beta", kSupported,
     "decay of the trust ratios' average", "OneBitLamb"},
    {"optimizer.params.factor_max", kSupported, "largest trust-ratio factor",
     "OneBitLamb"},
    {"optimizer.params.factor_min", kSupported, "smallest trust-ratio factor",
     "OneBitLamb"},
    {"optimizer.params.factor_threshold", kSupported,
     "largest change of the factor per step", "OneBitLamb"},
    {"optimizer.params.freeze_step", kSupported,
     "number of exact steps (one fewer with `deepspeed` semantics); absent: by "
     "`thinwire.total_steps`, else 100000",
     kFreezing},
    {"optimizer.params.var_freeze_step", kSupported,
     "last step in which the variance may change; this and the next three "
     "follow from `thinwire.total_steps` where absent",
     kZeroOne},
    {"optimizer.params.var_update_scaler", kSupported,
     "variance updates until their interval doubles", kZeroOne},
    {"optimizer.params.local_step_scaler", kSupported,
     "steps until the interval between syncs doubles", kZeroOne},
    {"optimizer.params.local_step_clipper", kSupported,
     "longest interval between syncs", kZeroOne},
    {"optimizer.params.cuda_aware", kIgnored,
     "messages are in host memory; no transport takes a device's", kLowBit},
    {"optimizer.params.comm_backend_name", kSupported,
     "`nccl`, `hccl`: the group that sums inside a host, for a model on a "
     "device; other messages use the run's own transport; "
     "`mpi`, `gloo`: the transport of thinwire.initialize (THINWIRE_COMM "
     "decides first; in C++ it alone does)",
     kLowBit},

    {"scheduler.type", kSupported,
     "`WarmupLR`, `WarmupDecayLR`, `WarmupCosineLR`, `OneCycle`, "
     "`LRRangeTest`; skipped steps do not advance it"},
    {"scheduler.params.warmup_min_lr", kSupported, "one number", kRates},
    {"scheduler.params.warmup_max_lr", kSupported,
     "one number; absent: WarmupLR the optimizer's, WarmupDecayLR 0.001; "
     "`auto`: the optimizer's",
     kRates},
    {"scheduler.params.warmup_num_steps", kSupported,
     "at least 1; `auto`: the program's", kWarmupTypes},
    {"scheduler.params.warmup_type", kSupported, "`log` or `linear`",
     kWarmupTypes},
    {"scheduler.params.total_num_steps", kSupported,
     "required, and not below the warm-up; `auto`: the program's", kTotals},
    {"scheduler.params.warmup_min_ratio", kSupported, "of the optimizer's lr",
     "WarmupCosineLR"},
    {"scheduler.params.cos_min_ratio", kSupported, "of the optimizer's lr",
     "WarmupCosineLR"},
    {"scheduler.params.cycle_min_lr", kSupported, "required", "OneCycle"},
    {"scheduler.params.cycle_max_lr", kSupported, "required", "OneCycle"},
    {"scheduler.params.decay_lr_rate", kSupported, "after the cycle",
     "OneCycle"},
    {"scheduler.params.cycle_first_step_size", kSupported, "steps upwards",
     "OneCycle"},
    {"scheduler.params.cycle_second_step_size", kSupported, "steps downwards",
     "OneCycle"},
    {"scheduler.params.cycle_first_stair_count", kSupported, "0: continuous",
     "OneCycle"},
    {"scheduler.params.cycle_second_stair_count", kSupported,
     "absent: as the first", "OneCycle"},
    {"scheduler.params.decay_step_size", kSupported, "0: no decay", "OneCycle"},
    {"scheduler.params.cycle_momentum", kSupported,
     "required and `false`: betas are fixed here, and DeepSpeed's default "
     "changes them",
     "OneCycle"},
    {"scheduler.params.cycle_min_mom", kIgnored, kNoMomentum, "OneCycle"},
    {"scheduler.params.cycle_max_mom", kIgnored, kNoMomentum, "OneCycle"},
    {"scheduler.params.decay_mom_rate", kIgnored, kNoMomentum, "OneCycle"},
    {"scheduler.params.lr_range_test_min_lr", kSupported, "one number",
     "LRRangeTest"},
    {"scheduler.params.lr_range_test_step_size", kSupported, "steps",
     "LRRangeTest"},
    {"scheduler.params.lr_range_test_step_rate", kSupported,
     "rise per step size", "LRRangeTest"},
    {"scheduler.params.lr_range_test_staircase", kSupported, "rise in stairs",
     "LRRangeTest"},
    rejected("scheduler.params.last_batch_iteration",
             "the number of applied steps is part of a checkpoint", "-1"),

    {"fp16.enabled", kSupported, "fp16 parameters, fp32 masters"},
    rejected("fp16.auto_cast", "cast a model's inputs where they are made",
             "false"),
    {"fp16.loss_scale", kSupported,
     "0: dynamic; else static, for every optimizer, and the keys below are "
     "ignored"},
    {"fp16.initial_scale_power", kSupported, "the first scale is 2 to this"},
    {"fp16.loss_scale_window", kSupported,
     "clean steps until the scale doubles"},
    {"fp16.hysteresis", kSupported,
     "at least 1; `deepspeed` semantics: no effect at stage 0, as in "
     "DeepSpeed"},
    {"fp16.consecutive_hysteresis", kSupported,
     "a clean step resets hysteresis"},
    {"fp16.min_loss_scale", kSupported, "the scale falls no further"},
    {"fp16.fused_mode", kIgnored, "one implementation"},
    {"fp16.fp16_master_weights_and_grads", kSupported,
     "with Adam and AdamW: parameters are their own masters"},
    {"bf16.enabled", kSupported,
     "bf16 parameters, fp32 masters; the section may be called `bfloat16`"},
    {"bf16.immediate_grad_update", kIgnored,
     "gradients are added up in place anyway"},
    {"bf16.check_grad_overflow", kSupported,
     "skip steps that are not finite; absent: true"},
    {"bf16.bf16_master_weights_and_grads", kSupported,
     "with Adam and AdamW: parameters are their own masters"},
    {"bf16.bf16_optimizer_states", kSupported,
     "moments in bf16, with bf16_master_weights_and_grads"},
    rejected("amp", "Apex is not used; enable fp16 or bf16", kDisabled),
    rejected("torch_autocast",
             "PyTorch's autocast is not used; enable fp16 or bf16", kDisabled),

    {"zero_optimization", kSupported, "a bare `true` means stage 1"},
    {"zero_optimization.stage", kSupported,
     "0, 1 or 2; 3 is rejected. At 0 all keys below are ignored"},
    ignored_switch("zero_optimization.contiguous_gradients",
                   "a bucket's memory is contiguous in any case"),
    {"zero_optimization.reduce_scatter", kSupported,
     "`deepspeed` semantics: how sums are rounded; else gradients are "
     "reduce-scattered in any case"},
    {"zero_optimization.reduce_bucket_size", kSupported,
     "most elements that are reduced together; an upper bound for "
     "`thinwire.bucket_elements`"},
    {"zero_optimization.allgather_bucket_size", kSupported,
     "most parameters that are gathered together; they share the buckets of "
     "gradients, so the smaller bound holds"},
    {"zero_optimization.overlap_comm", kSupported,
     "sets `thinwire.overlap`; absent: true"},
    ignored_switch(
        "zero_optimization.load_from_fp32_weights",
        "masters are always the saved fp32 values, if the checkpoint has any"),
    ignored_switch("zero_optimization.elastic_checkpoint",
                   "every checkpoint fits any number of ranks"),
    {"zero_optimization.ignore_unused_parameters", kSupported,
     "`false`: a parameter without a gradient on some rank stops the step"},
    {"zero_optimization.round_robin_gradients", kSupported,
     "`deepspeed` semantics: the order of parameters; else every bucket loads "
     "all ranks alike"},
    {"zero_optimization.cpu_offload", kSupported,
     "`true` is the old name of `offload_optimizer.device: cpu`"},
    {"zero_optimization.offload_optimizer.device", kSupported,
     "`none`, or `cpu`, which changes nothing: masters and states are in host "
     "memory and are updated there with both; `deepspeed` semantics refuse "
     "`cpu` with ZeRO"},
    ignored_switch("zero_optimization.offload_optimizer.pin_memory",
                   "copies to and from a device use pinned memory in any case"),
    {"zero_optimization.offload_optimizer.nvme_path", kIgnored,
     "device `nvme` is rejected"},
    {"zero_optimization.offload_optimizer.buffer_count", kIgnored,
     "device `nvme` is rejected"},
    {"zero_optimization.offload_optimizer.pipeline_read", kIgnored,
     "device `nvme` is rejected"},
    {"zero_optimization.offload_optimizer.pipeline_write", kIgnored,
     "device `nvme` is rejected"},
    {"zero_optimization.offload_optimizer.pipeline", kIgnored,
     "device `nvme` is rejected"},
    {"zero_optimization.offload_optimizer.fast_init", kIgnored,
     "device `nvme` is rejected"},
    {"zero_optimization.offload_optimizer.cpuadam_cores_perc", kIgnored,
     "cores are chosen by threads"},
    rejected("zero_optimization.offload_optimizer.ratio", kStage3, "1"),
    rejected("zero_optimization.offload_optimizer.super_offload", kStage3,
             "false"),
    rejected("zero_optimization.offload_param.device", kStage3, "\"none\""),
    {"zero_optimization.offload_param.nvme_path", kIgnored, kStage3},
    {"zero_optimization.offload_param.buffer_count", kIgnored, kStage3},
    {"zero_optimization.offload_param.buffer_size", kIgnored, kStage3},
    {"zero_optimization.offload_param.max_in_cpu", kIgnored, kStage3},
    {"zero_optimization.offload_param.pin_memory", kIgnored, kStage3},
    rejected("zero_optimization.cpu_offload_param", kStage3, "false"),
    {"zero_optimization.cpu_offload_use_pin_memory", kIgnored,
     "an old name without effect"},
    {"zero_optimization.zenflow", kRejected, "ZenFlow is not supported"},
    rejected("zero_optimization.legacy_stage1", "DeepSpeed rejects it too",
             "false"),
    {"zero_optimization.use_multi_rank_bucket_allreduce", kIgnored,
     "a choice between two routes to the same sums"},
    {"zero_optimization.allgather_partitions", kIgnored,
     "DeepSpeed does not read it either"},
    {"zero_optimization.sub_group_size", kIgnored, kStage3},
    {"zero_optimization.stage3_prefetch_bucket_size", kIgnored, kStage3},
    {"zero_optimization.stage3_param_persistence_threshold", kIgnored, kStage3},
    {"zero_optimization.stage3_model_persistence_threshold", kIgnored, kStage3},
    {"zero_optimization.stage3_max_live_parameters", kIgnored, kStage3},
    {"zero_optimization.stage3_max_reuse_distance", kIgnored, kStage3},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", kIgnored,
     kStage3},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save", kIgnored,
     kStage3},
    {"zero_optimization.stage3_module_granularity_threshold", kIgnored,
     kStage3},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params", kIgnored,
     kStage3},
    {"zero_optimization.stage3_allgather_sequential", kIgnored, kStage3},
    {"zero_optimization.stage3_partition_stream_chunk_size", kIgnored, kStage3},
    {"zero_optimization.prefetch_bucket_size", kIgnored, kStage3},
    {"zero_optimization.param_persistence_threshold", kIgnored, kStage3},
    {"zero_optimization.model_persistence_threshold", kIgnored, kStage3},
    {"zero_optimization.max_live_parameters", kIgnored, kStage3},
    {"zero_optimization.max_reuse_distance", kIgnored, kStage3},
    {"zero_optimization.gather_16bit_weights_on_model_save", kIgnored, kStage3},
    {"zero_optimization.allgather_sequential", kIgnored, kStage3},
    {"zero_optimization.module_granularity_threshold", kIgnored, kStage3},
    {"zero_optimization.use_all_reduce_for_fetch_params", kIgnored, kStage3},
    {"zero_optimization.zero_hpz_partition_size", kIgnored, kStage3},
    {"zero_optimization.zero_quantized_weights", kIgnored, kOwnBits},
    {"zero_optimization.zero_quantized_nontrainable_weights", kIgnored,
     kStage3},
    {"zero_optimization.zero_quantized_gradients", kIgnored, kOwnBits},
    {"zero_optimization.zeropp_loco_param", kIgnored, kStage3},
    {"zero_optimization.mics_shard_size", kIgnored, kStage3},
    {"zero_optimization.mics_hierarchical_params_gather", kIgnored, kStage3},
    {"zero_optimization.memory_efficient_linear", kIgnored, kStage3},
    {"zero_optimization.pipeline_loading_checkpoint", kIgnored, kStage3},
    {"zero_optimization.override_module_apply", kIgnored, kStage3},
    {"zero_optimization.log_trace_cache_warnings", kIgnored, kStage3},
    {"zero_optimization.enable_sanity_checks", kIgnored, kStage3},
    {"zero_optimization.save_muon_momentum_buffer_in_memory", kIgnored,
     kStage3},
    {"zero_optimization.leaf_module", kIgnored, kStage3},
    {"zero_allow_untested_optimizer", kIgnored,
     "every optimizer here is tested"},
    {"zero_force_ds_cpu_optimizer", kIgnored, "there is one Adam here"},

    {"wall_clock_breakdown", kSupported,
     "`true`: a line of the log every `steps_per_print` steps (absent: every "
     "10) says where a step's time went; `thinwire.telemetry` has it for "
     "every step"},
    {"memory_breakdown", kSupported,
     "`true`: two lines of the log, at the start and after the first step, say "
     "what a rank's memory holds"},
    {"dump_state", kIgnored, kMeasures},
    {"flops_profiler", kIgnored, kMeasures},
    {"comms_logger", kIgnored, kTimes},
    {"tensorboard", kIgnored, kCharts},
    {"wandb", kIgnored, kMeasures},
    {"csv_monitor", kIgnored, kCharts},
    {"comet", kIgnored, kMeasures},
    {"monitor_config", kIgnored, kMeasures},
    {"timers", kIgnored, kTimes},
    {"log_level", kIgnored, kMeasures},
    {"nebula", kIgnored, "a place for checkpoints; choose it when saving"},
    {"datastates_ckpt", kIgnored,
     "a way to write checkpoints; results are the same"},
    {"checkpoint.tag_validation", kIgnored,
     "ranks always agree on what they save"},
    {"checkpoint.use_node_local_storage", kIgnored,
     "set when saving: `SaveOptions::storage`"},
    {"checkpoint.parallel_write", kIgnored, "every rank writes its own part"},
    {"checkpoint.writer", kIgnored, "there is one way to write"},
    {"checkpoint.checkpoint_serialization", kIgnored,
     "there is one way to write"},
    rejected("checkpoint.load_universal",
             "DeepSpeed's checkpoints are not read; Thinwire's fit any number "
             "of ranks",
             "false"),
    {"aio", kIgnored, "for NVMe offload, which is rejected"},
    {"activation_checkpointing", kIgnored,
     "the model's business; results are the same"},
    {"graph_harvesting", kIgnored, "CUDA graphs; results are the same"},
    {"vocabulary_size", kIgnored, "DeepSpeed only warns about it"},
    {"disable_allgather", kIgnored, "an old name without effect"},
    {"allgather_size", kIgnored, "of the old form of zero_optimization"},
    {"seq_parallel_communication_data_type", kIgnored,
     "there is no sequence parallelism"},
    {"seq_parallel_comm_data_type", kIgnored,
     "there is no sequence parallelism"},
    {"use_data_before_expert_parallelism", kIgnored,
     "groups of experts name their ranks: expert_group"},
    rejected("sequence_parallel_size", "there is no sequence parallelism", "1"),
    {"tensor_parallel", kRejected, "there is no tensor parallelism"},
    rejected("expert_parallel",
             "groups of experts name their ranks: expert_group", kDisabled),
    rejected("pipeline", "there is no pipeline parallelism", "{}"),
    rejected("sparse_gradients", "gradients are dense", "false"),
    {"sparse_attention", kRejected, "attention is the model's business"},
    rejected("dataloader_drop_last",
             "data are not loaded here; drop the last batch in the loader",
             "false"),
    rejected("data_efficiency", "data are not loaded here", kDisabled),
    rejected("curriculum_learning", "data are not loaded here", kDisabled),
    rejected("progressive_layer_drop", "not supported", kDisabled),
    rejected("eigenvalue", "not supported", kDisabled),
    rejected("quantize_training", "not supported", kDisabled),
    rejected("compression_training", "not supported", "{}"),
    {"weight_quantization", kRejected, "not supported"},
    rejected("hybrid_engine", "not supported", kDisabled),
    rejected("compile", "DeepCompile is not supported", kDisabled),
    rejected(
        "elasticity",
        "the number of ranks is fixed in a run; a checkpoint fits any other",
        kDisabled),
    rejected("autotuning", "settings are taken as they are", kDisabled),

    {"thinwire.semantics", kSupported,
     "`corrected` or `deepspeed`: the same numbers as DeepSpeed"},
    {"thinwire.hierarchy", kSupported,
     "`auto` (the default): ranks of one host reduce locally first, if all "
     "hosts have the same number of ranks, at least two; `flat`; `by_host`"},
    {"thinwire.ranks_per_host", kSupported,
     "0: detected; 1: flat; see THINWIRE_RANKS_PER_HOST"},
    {"thinwire.bucket_elements", kSupported,
     "elements that travel together, with ZeRO at most "
     "`reduce_bucket_size`; 0, the default: by the numbers of elements and "
     "ranks"},
    {"thinwire.threads", kSupported, "per rank; 0: THINWIRE_NUM_THREADS"},
    {"thinwire.overlap", kSupported,
     "exact averages begin during backward; default true"},
    {"thinwire.verify_every", kSupported,
     "steps between comparisons of the ranks' parameters; 0: never"},
    rejected(
        "thinwire.compressed_during_backward",
        "the exchange of OneBitAdam no longer begins during backward; use "
        "`compressed_under_next_step`, which hides it behind the next step",
        "false"),
    {"thinwire.compressed_under_next_step", kSupported,
     "OneBitAdam: the momentum travels while the next forward and backward "
     "compute, on parameters of each rank's own; default false"},
    rejected(
        "thinwire.calibrated_clipping",
        "compressed steps are always clipped by an estimate that exact ones "
        "calibrate; leave it out",
        "true"),
    {"thinwire.lagged_clipping", kSupported,
     "clip compressed steps by the norm of those before, unless it has "
     "doubled; "
     "default false"},
    {"thinwire.fallback", kSupported,
     "compressed steps that are not faster than exact ones: `warn` (default) "
     "logs it, `hold` postpones the freeze, `off` compares nothing"},
    {"thinwire.telemetry.path", kSupported,
     "file of steps, a JSON object per line; absent: none"},
    {"thinwire.telemetry.every", kSupported, "steps per line; default 1"},
    {"thinwire.telemetry.every_rank", kSupported,
     "each rank writes a file, `.rankN` added; default false: rank 0 alone"},
    {"thinwire.telemetry.residual_every", kSupported,
     "steps from one norm of residuals to the next; 0: none"},
    {"thinwire.buffers", kSupported,
     "`broadcast` (rank 0's, the default), `average`, `as_they_are`: a "
     "module's buffers, at the start and in evaluations"},
    {"thinwire.checkpoint.root", kSupported,
     "directory of a run's checkpoints; absent: the program's choice"},
    {"thinwire.checkpoint.every_steps", kSupported,
     "steps from one checkpoint to the next; 0: not by steps"},
    {"thinwire.checkpoint.every", kSupported,
     "time from one checkpoint to the next: `10min`; absent: not by time"},
    {"thinwire.checkpoint.keep_last", kSupported,
     "newest checkpoints that stay; 0: all; default 2"},
    {"thinwire.checkpoint.keep_every", kSupported,
     "N: checkpoints of every N-th step stay as well; 0: none"},
    {"thinwire.checkpoint.asynchronous", kSupported,
     "written while training continues; default true"},
    {"thinwire.outer.sync_every", kSupported,
     "local steps between two syncs of an outer loop; absent or 0: none"},
    {"thinwire.outer.sync_growth", kSupported,
     "local steps after which the interval doubles, from 1 to `sync_every`; "
     "default 0: constant"},
    {"thinwire.outer.learning_rate", kSupported,
     "step size of the outer optimizer; default 1"},
    {"thinwire.outer.momentum", kSupported,
     "Nesterov momentum of the outer optimizer; default 0"},
    {"thinwire.outer.bits_up", kSupported,
     "bits per element of pseudo-gradients: 4 (the default), 8, or 0: exact"},
    {"thinwire.outer.bits_down", kSupported,
     "the same for the averaged result"},
    {"thinwire.outer.warmup_steps", kSupported,
     "first steps, in which ranks average gradients; default 0, with "
     "OneBitAdam its `freeze_step`"},
    {"thinwire.outer.warmup_bits", kSupported,
     "bits per element of gradients in those steps: 8 (the default), 4, or 0: "
     "exact"},
    {"thinwire.check_grad_overflow", kSupported,
     "fp32: skip steps that are not finite"},
    {"thinwire.initial_loss_scale", kSupported,
     "instead of `fp16.initial_scale_power`, if not a power of 2"},
    {"thinwire.max_loss_scale", kSupported,
     "a number, or `unlimited`; absent: 2^32"},
    {"thinwire.at_minimum", kSupported,
     "an overflow at the smallest scale: `stop` or `hold`"},
    {"thinwire.denom_floor", kSupported,
     "smallest denominator, as a fraction of its block's RMS", kLowBit},
    {"thinwire.scale", kRejected,
     "a block's scale is the RMS of its elements; leave it out", kLowBit,
     "\"rms\""},
    {"thinwire.residual_dtype", kSupported,
     "`fp32` or `bf16`; absent: bf16 with `lean` or `zero_bits_up`, except "
     "`zero_bits_up` at stage 2 with accumulation, otherwise fp32"},
    {"thinwire.zero_bits_up", kSupported,
     "bits per element of gradients, with `zero_optimization.stage` 1 or 2: 4, "
     "8, or 0: exact",
     kExact},
    {"thinwire.zero_bits_down", kSupported, "the same for parameters", kExact},
    {"thinwire.bits", kSupported,
     "bits per element in which gradients are averaged in every step, without "
     "ZeRO: 4, 8, or 0: exactly",
     kExact},
    {"thinwire.low_rank", kSupported,
     "gradients are averaged as products of factors with at most this many "
     "columns, 1 to 64, without ZeRO; 0: off. Excludes `bits`",
     kExact},
    {"thinwire.first_steps", kSupported,
     "with `low_rank`: first steps that average in `first_bits` bits; "
     "absent: a twentieth of `total_steps`, at least 20",
     kExact},
    {"thinwire.first_bits", kSupported, "4 or 8; default 4", kExact},
    {"thinwire.zero_after_skip", kSupported,
     "residuals of a step that is skipped: `keep` (a second array), `clear`, "
     "`auto`: keep with fp16",
     kExact},
    {"thinwire.lean", kSupported,
     "`true`: 7.1 bytes per bf16 parameter; it shards by itself", "OneBitAdam"},
    {"thinwire.denominator_bits", kSupported,
     "with `lean`: bits of a stored denominator, 8 or 4", "OneBitAdam"},
    {"thinwire.exchanged", kRejected,
     "before the freeze the momentum is exchanged; leave it out", kZeroOne,
     "\"momentum\""},
    {"thinwire.variance_refresh", kRejected,
     "the variance stays as it was at the freeze; for a long run choose a "
     "later "
     "`freeze_step`",
     "OneBitAdam", "0"},
    {"thinwire.auto_freeze", kSupported,
     "`true`: freeze when the variance has settled, instead of `freeze_step`",
     kFreezing},
    {"thinwire.lr_warmup_steps", kSupported, "no automatic freeze before it",
     kFreezing},
    {"thinwire.total_steps", kSupported,
     "of the run: `freeze_step` is then a fifth of it, at most 1000, and 0/1 "
     "Adam's stages and `first_steps` follow from it, where they are absent; "
     "bounds the automatic freeze. Without effect with `deepspeed` semantics"},
    {"thinwire.min_freeze_step", kSupported,
     "no automatic freeze before it, unless a fifth of `total_steps` is less; "
     "default 100",
     kFreezing},
    {"thinwire.max_freeze_step", kSupported,
     "latest automatic freeze; absent: a fifth of `total_steps`, else 100000",
     kFreezing},
    {"thinwire.freeze_ratio", kSupported,
     "the variance has settled if its norm now and its norm half of the steps "
     "ago have at least this ratio, the smaller over the larger; default 0.85",
     kFreezing},
    {"thinwire.warmup_bits", kSupported,
     "bits per element of gradients in exact steps: 4, 8, or 0: exact; absent: "
     "8 with `total_steps` and without `freeze_step`, else 0; with "
     "ZeroOneAdam 4 with `total_steps`, else 0. With `lean`, "
     "parameters use it as well",
     "OneBitAdam, OneBitLamb, ZeroOneAdam"},
    {"thinwire.schedule.decay", kSupported,
     "`none`, `linear`, `cosine`, `inverse_sqrt`; excludes `scheduler`"},
    {"thinwire.schedule.warmup", kSupported, "`linear` or `log`"},
    {"thinwire.schedule.warmup_steps", kSupported, "until the optimizer's lr"},
    {"thinwire.schedule.total_steps", kSupported,
     "required with `linear` and `cosine`"},
    {"thinwire.schedule.final_fraction", kSupported, "of the optimizer's lr"},
};

}  // namespace

std::span<const KeyRule> key_rules() noexcept { return kRules; }

}  // namespace thinwire::config
