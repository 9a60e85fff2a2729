// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config/archive.h"
#include "thinwire/config/config.h"

/// The table of options. An entry has the name of a field, which is the same in
/// files and among keywords, the field itself, and its range or words. A Reader
/// reads fields from a file or from keywords. A Writer writes them, and the
/// bindings of Python list and show them. Options are const unless they are
/// read.
namespace thinwire::config {

template <class E>
using Choice = std::pair<std::string_view, E>;

inline constexpr Choice<DType> kDtypes[] = {
    {"fp32", DType::kFloat32},           {"fp16", DType::kFloat16},
    {"bf16", DType::kBFloat16},          {"float32", DType::kFloat32},
    {"float16", DType::kFloat16},        {"bfloat16", DType::kBFloat16},
    {"float", DType::kFloat32},          {"half", DType::kFloat16},
    {"torch.float32", DType::kFloat32},  {"torch.float16", DType::kFloat16},
    {"torch.bfloat16", DType::kBFloat16}};
inline constexpr Choice<Warmup> kWarmups[] = {{"linear", Warmup::kLinear},
                                              {"log", Warmup::kLog}};
inline constexpr Choice<Decay> kDecays[] = {
    {"none", Decay::kNone},
    {"linear", Decay::kLinear},
    {"cosine", Decay::kCosine},
    {"inverse_sqrt", Decay::kInverseSqrt}};
inline constexpr Choice<Semantics> kSemantics[] = {
    {"corrected", Semantics::kCorrected}, {"deepspeed", Semantics::kDeepSpeed}};
inline constexpr Choice<DType> kResidualDtypes[] = {{"fp32", DType::kFloat32},
                                                    {"bf16", DType::kBFloat16}};
inline constexpr Choice<Hierarchy> kHierarchies[] = {
    {"auto", Hierarchy::kAuto},
    {"flat", Hierarchy::kFlat},
    {"by_host", Hierarchy::kByHost}};
inline constexpr Choice<CommBackend> kCommBackends[] = {
    {"nccl", CommBackend::kNccl},
    {"hccl", CommBackend::kHccl},
    {"mpi", CommBackend::kMpi},
    {"gloo", CommBackend::kGloo}};
inline constexpr Choice<Fallback> kFallbacks[] = {{"off", Fallback::kOff},
                                                  {"warn", Fallback::kWarn},
                                                  {"hold", Fallback::kHold}};
inline constexpr Choice<zero::AfterSkip> kAfterSkip[] = {
    {"auto", zero::AfterSkip::kAuto},
    {"keep", zero::AfterSkip::kKeep},
    {"clear", zero::AfterSkip::kClear}};
inline constexpr Choice<precision::AtMinimum> kAtMinimum[] = {
    {"stop", precision::AtMinimum::kStop},
    {"hold", precision::AtMinimum::kHold}};
inline constexpr Choice<OffloadDevice> kDevices[] = {
    {"none", OffloadDevice::kNone}, {"cpu", OffloadDevice::kCpu}};
inline constexpr Choice<Buffers> kBuffers[] = {
    {"broadcast", Buffers::kBroadcast},
    {"average", Buffers::kAverage},
    {"as_they_are", Buffers::kAsTheyAre}};

/// Fields of optimizer.params, and of thinwire (`own`) for each optimizer.
/// Groups of parameters have the first four, too.
template <class Archive, class Options>
void adam_fields(const Archive& params, Options& o) {
  params.field("lr", o.learning_rate, kNotNegative);
  params.pair("betas", o.beta1, o.beta2, kDecayRate);
  params.field("eps", o.epsilon, kPositive);
  params.field("weight_decay", o.weight_decay, kNotNegative);
  if constexpr (requires { o.bias_correction; }) {
    params.field("bias_correction", o.bias_correction);
    params.field("eps_inside_sqrt", o.epsilon_inside_sqrt);
  }
}

template <class Archive, class Options>
void trust_fields(const Archive& params, Options& o) {
  params.field("max_coeff", o.max_coeff, kPositive);
  params.field("min_coeff", o.min_coeff, kNotNegative);
}

template <class Archive, class Compression>
void compression_fields(const Archive& own, Compression& c) {
  own.field("denom_floor", c.denom_floor, kNotNegative);
  own.choice("residual_dtype", c.residual_dtype,
             Choices<DType>(kResidualDtypes));
}

/// Fields of thinwire for an exact optimizer with ZeRO.
template <class Archive, class Wire>
void wire_fields(const Archive& own, Wire& w) {
  own.field("zero_bits_up", w.bits_up, kNotNegative);
  own.field("zero_bits_down", w.bits_down, kNotNegative);
  own.choice("zero_after_skip", w.after_skip,
             Choices<zero::AfterSkip>(kAfterSkip));
  own.choice("residual_dtype", w.residual_dtype,
             Choices<DType>(kResidualDtypes));
}

/// Fields of thinwire for an exact optimizer without ZeRO.
template <class Archive, class Average>
void average_fields(const Archive& own, Average& a) {
  own.field("bits", a.bits, kNotNegative);
  own.field("low_rank", a.low_rank, kNotNegative);
  own.field("first_steps", a.first_steps, kNotNegative);
  own.field("first_bits", a.first_bits, kAtLeastOne);
  own.field("total_steps", a.total_steps, kAtLeastOne);
}

template <class Archive, class Freeze>
void freeze_fields(const Archive& own, Freeze& f) {
  own.field("total_steps", f.total_steps, kAtLeastOne);
  own.field("lr_warmup_steps", f.lr_warmup_steps, kNotNegative);
  own.field("min_freeze_step", f.min_step, kAtLeastOne);
  own.field("max_freeze_step", f.max_step, kAtLeastOne);
  own.field("freeze_ratio", f.ratio,
            Limits{.least = 0, .most = 1, .above_least = true});
  own.field("warmup_bits", f.warmup_bits, kNotNegative);
}

template <class Archive, class Options>
void lamb_factor_fields(const Archive& params, Options& o) {
  params.field("coeff_beta", o.coeff_beta, kDecayRate);
  params.field("factor_max", o.factor_max, kPositive);
  params.field("factor_min", o.factor_min, kPositive);
  params.field("factor_threshold", o.factor_threshold, kFraction);
}

template <class Archive, class Options>
void zero_one_fields(const Archive& params, const Archive& own, Options& o) {
  own.field("total_steps", o.total_steps, kAtLeastOne);
  own.field("warmup_bits", o.warmup_bits, kNotNegative);
  params.field("var_freeze_step", o.var_freeze_step, kNotNegative);
  params.field("var_update_scaler", o.var_update_scaler, kAtLeastOne);
  params.field("local_step_scaler", o.local_step_scaler, kAtLeastOne);
  params.field("local_step_clipper", o.local_step_clipper, kAtLeastOne);
}

/// Fields of an optimizer, except Adam's kind of decay and freeze_step, which
/// need separate code.
template <class Archive, class Options>
void optimizer_fields(const Archive& params, const Archive& own, Options& o) {
  adam_fields(params, o);
  if constexpr (requires { o.max_coeff; }) trust_fields(params, o);
  if constexpr (requires { o.coeff_beta; }) lamb_factor_fields(params, o);
  if constexpr (requires { o.compression; })
    compression_fields(own, o.compression);
  if constexpr (requires { o.var_freeze_step; })
    zero_one_fields(params, own, o);
  if constexpr (requires { o.freeze; }) freeze_fields(own, o.freeze);
  if constexpr (requires { o.denominator_bits; })
    own.field("denominator_bits", o.denominator_bits, kAtLeastOne);
}

/// Fields of scheduler.params.
template <class Archive, class Shape>
void warmup_fields(const Archive& params, Shape& s) {
  params.field("warmup_num_steps", s.warmup_num_steps, kAtLeastOne);
  params.choice("warmup_type", s.warmup_type, Choices<Warmup>(kWarmups));
  if constexpr (requires { s.total_num_steps; })
    params.field("total_num_steps", s.total_num_steps, kAtLeastOne);
  if constexpr (requires { s.warmup_min_lr; }) {
    params.field("warmup_min_lr", s.warmup_min_lr, kNotNegative);
    params.field("warmup_max_lr", s.warmup_max_lr, kNotNegative);
  } else {
    params.field("warmup_min_ratio", s.warmup_min_ratio, kFraction);
    params.field("cos_min_ratio", s.cos_min_ratio, kFraction);
  }
}

template <class Archive, class Shape>
void shape_fields(const Archive& params, Shape& s) {
  if constexpr (requires { s.warmup_num_steps; }) {
    warmup_fields(params, s);
  } else if constexpr (requires { s.cycle_min_lr; }) {
    params.field("cycle_min_lr", s.cycle_min_lr, kNotNegative);
    params.field("cycle_max_lr", s.cycle_max_lr, kNotNegative);
    params.field("decay_lr_rate", s.decay_lr_rate, kNotNegative);
    params.field("cycle_first_step_size", s.cycle_first_step_size, kAtLeastOne);
    params.field("cycle_second_step_size", s.cycle_second_step_size,
                 kAtLeastOne);
    params.field("cycle_first_stair_count", s.cycle_first_stair_count,
                 kNotNegative);
    params.field("cycle_second_stair_count", s.cycle_second_stair_count,
                 kNotNegative);
    params.field("decay_step_size", s.decay_step_size, kNotNegative);
  } else if constexpr (requires { s.lr_range_test_min_lr; }) {
    params.field("lr_range_test_min_lr", s.lr_range_test_min_lr, kNotNegative);
    params.field("lr_range_test_step_size", s.lr_range_test_step_size,
                 kAtLeastOne);
    params.field("lr_range_test_step_rate", s.lr_range_test_step_rate,
                 kNotNegative);
    params.field("lr_range_test_staircase", s.lr_range_test_staircase);
  } else {  // thinwire.schedule
    params.choice("decay", s.decay, Choices<Decay>(kDecays));
    params.choice("warmup", s.warmup, Choices<Warmup>(kWarmups));
    params.field("warmup_steps", s.warmup_steps, kNotNegative);
    params.field("total_steps", s.total_steps, kNotNegative);
    params.field("final_fraction", s.final_fraction, kFraction);
  }
}

/// Fields of zero_optimization, except offload_optimizer.
template <class Archive, class Zero>
void zero_fields(const Archive& section, Zero& z) {
  section.field("stage", z.stage, kStages);
  section.field("reduce_scatter", z.reduce_scatter);
  section.field("reduce_bucket_size", z.reduce_bucket_size, kNotNegative);
  section.field("ignore_unused_parameters", z.ignore_unused_parameters);
  section.field("round_robin_gradients", z.round_robin_gradients);
}

/// Fields of thinwire for the exchange of any optimizer.
template <class Archive, class Comm>
void comm_fields(const Archive& own, Comm& c) {
  own.choice("hierarchy", c.hierarchy, Choices<Hierarchy>(kHierarchies));
  own.field("ranks_per_host", c.ranks_per_host, kNotNegative);
  own.field("bucket_elements", c.bucket_elements, kNotNegative);
  own.field("threads", c.num_threads, Limits{.least = 0, .most = 1024});
  own.field("verify_every", c.verify_every, kNotNegative);
}

/// Fields of thinwire that do not depend on the optimizer.
template <class Archive, class AnyConfig>
void own_fields(const Archive& own, AnyConfig& c) {
  own.choice("semantics", c.semantics, Choices<Semantics>(kSemantics));
  comm_fields(own, c.comm);
  own.field("overlap", c.comm.overlap);
  own.field("compressed_under_next_step", c.comm.compressed_under_next_step);
  own.field("lagged_clipping", c.lagged_clipping);
  own.choice("fallback", c.fallback, Choices<Fallback>(kFallbacks));
  own.choice("buffers", c.buffers, Choices<Buffers>(kBuffers));
}

/// Fields of thinwire.checkpoint.
template <class Archive, class Checkpoint>
void checkpoint_fields(const Archive& section, Checkpoint& c) {
  section.text("root", c.root);
  section.field("every_steps", c.every_steps, kNotNegative);
  section.duration("every", c.every);
  section.field("keep_last", c.keep_last, kNotNegative);
  section.field("keep_every", c.keep_every, kNotNegative);
  section.field("asynchronous", c.asynchronous);
}

/// Fields of thinwire.telemetry.
template <class Archive, class Telemetry>
void telemetry_fields(const Archive& section, Telemetry& t) {
  section.text("path", t.path);
  section.field("every", t.every, kAtLeastOne);
  section.field("every_rank", t.every_rank);
  section.field("residual_every", t.residual_every, kNotNegative);
}

/// Fields of thinwire.outer.
template <class Archive, class Outer>
void outer_fields(const Archive& section, Outer& o) {
  section.field("sync_every", o.sync_every, kNotNegative);
  section.field("sync_growth", o.sync_growth, kNotNegative);
  section.field("learning_rate", o.learning_rate, kPositive);
  section.field("momentum", o.momentum, kDecayRate);
  section.field("bits_up", o.bits_up, kNotNegative);
  section.field("bits_down", o.bits_down, kNotNegative);
  section.field("warmup_steps", o.warmup_steps, kNotNegative);
  section.field("warmup_bits", o.warmup_bits, kNotNegative);
}

/// Fields of the top level.
template <class Archive, class AnyConfig>
void general_fields(const Archive& file, AnyConfig& c) {
  file.field("train_batch_size", c.train_batch_size, kAtLeastOne);
  file.field("train_micro_batch_size_per_gpu", c.train_micro_batch_size_per_gpu,
             kAtLeastOne);
  file.field("gradient_accumulation_steps", c.gradient_accumulation_steps,
             kAtLeastOne);
  file.field("managed_gradient_accumulation", c.managed_gradient_accumulation);
  file.field("gradient_clipping", c.gradient_clipping, kNotNegative);
}

/// Keywords of an optimizer that a program makes without a file, except the
/// object `outer`.
template <class Archive, class AnyConfig, class Options>
void keyword_fields(const Archive& given, AnyConfig& c, Options& o) {
  optimizer_fields(given, given, o);
  given.field("max_grad_norm", c.gradient_clipping, kNotNegative);
  given.field("skip_nonfinite", c.precision.check_grad_overflow);
  comm_fields(given, c.comm);
  if constexpr (requires { o.freeze; })
    given.field("freeze_step", o.freeze.step, kFreezeSteps);
  if constexpr (requires { o.compression; }) {
    given.field("lagged_clipping", c.lagged_clipping);
    given.choice("comm_backend_name", c.comm.backend,
                 Choices<CommBackend>(kCommBackends));
  } else {
    average_fields(given, c.average);
  }
  if constexpr (std::is_same_v<std::remove_const_t<Options>,
                               optim::OnebitAdamOptions>)
    given.field("compressed_under_next_step",
                c.comm.compressed_under_next_step);
}

/// Keywords of a group of parameters.
template <class Archive, class Group>
void group_fields(const Archive& given, Group& g) {
  adam_fields(given, g);
  if constexpr (requires { g.max_coeff; }) trust_fields(given, g);
  if constexpr (requires { g.non_freeze; })
    given.field("non_freeze", g.non_freeze);
}

}  // namespace thinwire::config
