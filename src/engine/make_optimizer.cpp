// SPDX-License-Identifier: Apache-2.0
#include "thinwire/engine/make_optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "core/require.h"
#include "optim/checks.h"
#include "optim/low_bit/options.h"
#include "plan/zero_buckets.h"
#include "thinwire/core/log.h"
#include "thinwire/core/memory.h"
#include "thinwire/deepspeed/fp16_optimizer.h"
#include "thinwire/deepspeed/optimizers.h"
#include "thinwire/deepspeed/zero_optimizer.h"
#include "thinwire/optim/expert_parallel.h"
#include "thinwire/outer/outer_loop.h"
#include "thinwire/precision/mixed_precision.h"
#include "thinwire/zero/zero_optimizer.h"

namespace thinwire::engine {

using config::Config;
using config::OffloadDevice;
using config::ZeroConfig;

namespace {

bool follows_deepspeed(const Config& config) {
  return config.semantics == config::Semantics::kDeepSpeed;
}

// DeepSpeed has one wrapper for optimizers that work on flat groups, and
// another for those that use norms of tensors.
deepspeed::Fp16Options fp16_options(const Config& config) {
  const bool takes_norms =
      std::holds_alternative<optim::LambOptions>(config.optimizer) ||
      std::holds_alternative<optim::OnebitLambOptions>(config.optimizer);
  return {.loss_scale = config.precision.loss_scale,
          .wrapper = takes_norms ? deepspeed::Fp16Wrapper::kUnfused
                                 : deepspeed::Fp16Wrapper::kFused,
          .max_grad_norm = config.gradient_clipping,
          .prescale = config.prescale_gradients,
          .predivide = config.gradient_predivide_factor};
}

zero::ZeroOptions zero_options(const Config& config,
                               const ParameterLayout& layout,
                               const comm::Communicator& comm) {
  const ZeroConfig& zero = config.zero;
  zero::ZeroOptions options{.stage = zero.stage,
                            .dtype = config.precision.dtype,
                            .master_dtype = config.precision.master_dtype,
                            .loss_scale = config.precision.loss_scale,
                            .exchange = config.exchange_options(),
                            .communication_dtype = config.communication_dtype,
                            .wire = config.wire_options(comm.size()),
                            .accumulation_dtype = config.accumulation_dtype,
                            .overlap = config.comm.overlap,
                            .experts = config.experts()};
  options.exchange.bucket_elements = plan::zero_bucket_elements(
      config.comm.bucket_elements, plan::zero_bucket_bound(zero),
      optim::dense_size(layout, options.experts), comm.hosts(),
      zero::bucket_bits(zero.wire));
  return options;
}

std::unique_ptr<zero::ShardedOptimizer> deepspeed_zero(
    comm::Communicator& comm, const ParameterLayout& layout,
    const Config& config, View params) {
  return std::make_unique<deepspeed::ZeroOptimizer>(
      comm, layout, std::get<optim::AdamOptions>(config.optimizer), params,
      deepspeed::ZeroOptions{.stage = config.zero.stage,
                             .dtype = config.precision.dtype,
                             .loss_scale = config.precision.loss_scale,
                             .exchange = config.exchange_options(),
                             .communication_dtype = config.communication_dtype,
                             .accumulation_dtype = config.accumulation_dtype,
                             .round_robin = config.zero.round_robin_gradients,
                             .reduce_scatter = config.zero.reduce_scatter,
                             .prescale = config.prescale_gradients,
                             .predivide = config.gradient_predivide_factor});
}

// Makes the rule of an exact optimizer, or returns null if the optimizer has
// its own exchange.
zero::MakeRule make_rule(const Config& config) {
  if (const auto* lamb = std::get_if<optim::LambOptions>(&config.optimizer))
    return [options = *lamb](const ParameterLayout& layout) {
      return std::make_unique<optim::Lamb>(layout, options);
    };
  const auto* adam = std::get_if<optim::AdamOptions>(&config.optimizer);
  if (adam == nullptr) return nullptr;
  optim::AdamOptions options = *adam;
  options.state_dtype = config.precision.state_dtype;
  return [options](const ParameterLayout& layout) {
    return std::make_unique<optim::Adam>(layout, options);
  };
}

std::unique_ptr<zero::ShardedOptimizer> sharded(comm::Communicator& comm,
                                                const ParameterLayout& layout,
                                                const Config& config,
                                                View params) {
  if (follows_deepspeed(config))
    return deepspeed_zero(comm, layout, config, params);
  if (!config.experts().empty() && !config.zero.wire.is_exact() &&
      comm.rank() == 0)
    log(LogLevel::kWarning,
        "zero_bits_up and zero_bits_down: this run has experts, and cannot "
        "save a checkpoint; leave both out to save");
  return std::make_unique<zero::ZeroOptimizer>(
      comm, layout, make_rule(config), params,
      zero_options(config, layout, comm));
}

bool is_lean(const Config& config) {
  return std::holds_alternative<lean::LeanOnebitAdamOptions>(config.optimizer);
}

std::unique_ptr<lean::LeanOnebitAdam> lean(comm::Communicator& comm,
                                           const ParameterLayout& layout,
                                           const Config& config, View params,
                                           ConstView initial) {
  auto options = std::get<lean::LeanOnebitAdamOptions>(config.optimizer);
  options.compression.exchange = config.exchange_options();
  // fp32 parameters already have their initial values.
  const bool adds =
      params.dtype() != DType::kFloat32 && initial.dtype() == DType::kFloat32;
  return std::make_unique<lean::LeanOnebitAdam>(comm, layout, params, options,
                                                adds ? initial : ConstView());
}

// Makes a low-bit optimizer with corrected or DeepSpeed's semantics. Returns
// null if the optimizer is exact.
template <class OnebitAdam, class OnebitLamb, class ZeroOneAdam, class Base>
struct LowBitMaker {
  comm::Communicator& comm;
  const ParameterLayout& layout;

  using Made = std::unique_ptr<Base>;
  Made operator()(const optim::AdamOptions&) const { return nullptr; }
  Made operator()(const optim::LambOptions&) const { return nullptr; }
  Made operator()(const lean::LeanOnebitAdamOptions&) const { return nullptr; }
  Made operator()(const optim::OnebitAdamOptions& options) const {
    return std::make_unique<OnebitAdam>(comm, layout, options);
  }
  Made operator()(const optim::OnebitLambOptions& options) const {
    return std::make_unique<OnebitLamb>(comm, layout, options);
  }
  Made operator()(const optim::ZeroOneAdamOptions& options) const {
    return std::make_unique<ZeroOneAdam>(comm, layout, options);
  }
};
using OwnLowBit = LowBitMaker<optim::OnebitAdam, optim::OnebitLamb,
                              optim::ZeroOneAdam, optim::Optimizer>;
using DeepSpeedLowBit =
    LowBitMaker<deepspeed::OnebitAdam, deepspeed::OnebitLamb,
                deepspeed::ZeroOneAdam, deepspeed::Optimizer>;

optim::LambOptions exact_options(const optim::OnebitLambOptions& options) {
  optim::LambOptions lamb{.learning_rate = options.learning_rate,
                          .beta1 = options.beta1,
                          .beta2 = options.beta2,
                          .epsilon = options.epsilon,
                          .weight_decay = options.weight_decay,
                          .max_coeff = options.max_coeff,
                          .min_coeff = options.min_coeff,
                          .bias_correction = options.bias_correction,
                          .epsilon_inside_sqrt = options.epsilon_inside_sqrt};
  for (const optim::OnebitLambGroup& group : options.groups)
    lamb.groups.push_back({group, group.max_coeff, group.min_coeff});
  return lamb;
}

// Makes the rule for experts. Low-bit optimizers average experts exactly.
zero::MakeRule rule_of_experts(const Config& config) {
  Config exact = config;
  std::visit(
      [&exact]<class Options>(const Options& options) {
        if constexpr (std::is_same_v<Options, optim::OnebitLambOptions>)
          exact.optimizer = exact_options(options);
        else if constexpr (std::is_same_v<Options, optim::OnebitAdamOptions> ||
                           std::is_same_v<Options, optim::ZeroOneAdamOptions>)
          exact.optimizer = optim::adam_options(options);
      },
      config.optimizer);
  return make_rule(exact);
}

std::unique_ptr<optim::Optimizer> of_dense(comm::Communicator& comm,
                                           const ParameterLayout& layout,
                                           const Config& config,
                                           const optim::MakeRule& rule);

// Makes the outer loop. Each rank has its own inner optimizer, whose Config
// differs only in keys that concern several ranks.
std::unique_ptr<optim::Optimizer> outer_loop(comm::Communicator& comm,
                                             const ParameterLayout& layout,
                                             const Config& config,
                                             const optim::MakeRule& rule) {
  Config inner = config;
  inner.outer = {};
  inner.comm.verify_every = 0;
  Config without_masks = inner;
  if (auto* onebit = std::get_if<optim::OnebitAdamOptions>(&inner.optimizer)) {
    onebit->freeze.warmup_bits = 0;
    auto& same = std::get<optim::OnebitAdamOptions>(without_masks.optimizer);
    for (auto& group : same.groups) group.exp_avg_mask.clear();
  }
  // Compares the options of all ranks, which the inner optimizers cannot do.
  static_cast<void>(of_dense(
      comm,
      ParameterLayout::of({}, std::max<std::size_t>(1, layout.num_groups())),
      without_masks, rule));
  const auto make_inner = [&](comm::Communicator& alone) {
    return of_dense(alone, layout, inner, rule);
  };
  return std::make_unique<outer::OuterLoop>(comm, layout, make_inner,
                                            config.outer_options(),
                                            config.exchange_options());
}

// Makes the optimizer without ZeRO, for fp32 parameters or masters. `own_rule`
// may be empty.
std::unique_ptr<optim::Optimizer> of_dense(comm::Communicator& comm,
                                           const ParameterLayout& layout,
                                           const Config& config,
                                           const optim::MakeRule& own_rule) {
  if (config.outer.sync_every > 0)
    return outer_loop(comm, layout, config, own_rule);
  if (own_rule)
    return std::make_unique<optim::DataParallel>(
        comm, own_rule(layout), config.exchange_options(), config.average);
  if (const zero::MakeRule rule = make_rule(config))
    return std::make_unique<optim::DataParallel>(
        comm, rule(layout), config.exchange_options(), config.average);
  if (follows_deepspeed(config))
    return std::visit(DeepSpeedLowBit{comm, layout},
                      config.optimizer_options());
  return std::visit(OwnLowBit{comm, layout}, config.optimizer_options());
}

// Returns the number of fp32 elements if most elements have 16 bits.
std::size_t num_wide(ConstView params) {
  return params.size() - params.first_size();
}

std::unique_ptr<optim::Optimizer> replicated(comm::Communicator& comm,
                                             const ParameterLayout& layout,
                                             const Config& config,
                                             std::size_t num_wide,
                                             const optim::MakeRule& rule) {
  const auto experts = config.experts();
  if (experts.empty() && num_wide == 0)
    return of_dense(comm, layout, config, rule);
  const bool is_exact =
      make_rule(config) != nullptr && config.average.is_exact();
  if (!is_exact && comm.rank() == 0)
    log(LogLevel::kInfo,
        fmt::format("{}: {} averaged exactly in every step",
                    config::name_of(config.optimizer),
                    num_wide == 0
                        ? "groups with a communicator of their own (experts) "
                          "are"
                        : fmt::format("{} of {} elements are float32, and are",
                                      num_wide, layout.size())));
  return std::make_unique<optim::ExpertParallel>(
      comm, layout, experts,
      [&](const ParameterLayout& dense) {
        return of_dense(comm, dense, config, {});
      },
      rule_of_experts(config), config.exchange_options(), num_wide);
}

// Makes DeepSpeed's optimizer, whose wrapper averages, clips and unscales.
std::unique_ptr<precision::LowPrecisionOptimizer> deepspeed_fp16(
    comm::Communicator& comm, const ParameterLayout& layout,
    const Config& config, ConstView initial) {
  const deepspeed::Fp16Options options = fp16_options(config);
  const auto wrapped = deepspeed::wrapped_layout(layout, options.wrapper);
  std::unique_ptr<deepspeed::Optimizer> optimizer;
  if (const zero::MakeRule rule = make_rule(config))
    optimizer = std::make_unique<deepspeed::ExactOptimizer>(
        comm, rule(wrapped), config.exchange_options());
  else
    optimizer =
        std::visit(DeepSpeedLowBit{comm, wrapped}, config.optimizer_options());
  return std::make_unique<deepspeed::Fp16Optimizer>(
      comm, layout, std::move(optimizer), initial, options);
}

std::unique_ptr<precision::LowPrecisionOptimizer> mixed(
    comm::Communicator& comm, const ParameterLayout& layout,
    const Config& config, std::size_t num_wide, ConstView initial,
    const optim::MakeRule& rule) {
  if (follows_deepspeed(config))
    return deepspeed_fp16(comm, layout, config, initial);
  return std::make_unique<precision::MixedPrecision>(
      comm, layout, replicated(comm, layout, config, num_wide, rule), initial,
      precision::MixedPrecisionOptions{
          .dtype = config.precision.dtype,
          .master_dtype = config.precision.master_dtype,
          .loss_scale = config.precision.loss_scale});
}

void require_fit_for_own_rule(const Config& config, ConstView params) {
  const auto refuse_unless = [](bool fits, const char* name, const char* range,
                                const auto& value) {
    require(fits, name, fmt::format("{} with a rule of the caller's", range),
            value);
  };
  refuse_unless(config.zero.stage == 0, "zero.stage", "0", config.zero.stage);
  refuse_unless(!follows_deepspeed(config), "semantics", "corrected",
                to_string(config.semantics));
  refuse_unless(std::holds_alternative<optim::AdamOptions>(config.optimizer),
                "optimizer", "adam", config::name_of(config.optimizer));
  refuse_unless(config.precision.master_dtype == DType::kFloat32,
                "precision.master_dtype", "float32",
                to_string(config.precision.master_dtype));
  refuse_unless(config.experts().empty(), "optimizer.groups",
                "without a communicator", config.experts().size());
  require(!params.is_joined(), "params",
          "of one dtype with a rule of the caller's", "two");
}

// Checks parameters of two dtypes, 16 bits and fp32.
void require_dtypes(const Config& config, ConstView params) {
  if (!params.is_joined()) return;
  constexpr const char* kBeside = "with parameters of two dtypes";
  require(!follows_deepspeed(config), "semantics",
          fmt::format("corrected {}", kBeside), to_string(config.semantics));
  require(!is_lean(config), "optimizer",
          fmt::format("another one than lean_onebit_adam {}", kBeside),
          config::name_of(config.optimizer));
  require(config.outer.sync_every == 0, "outer.sync_every",
          fmt::format("0 {}", kBeside), config.outer.sync_every);
  optim::require_fit_for_two_dtypes(params, config.precision.master_dtype,
                                    config.experts().size());
}

}  // namespace

OptimizerStack make_optimizer(comm::Communicator& comm,
                              const ParameterLayout& layout,
                              const Config& config, View params,
                              ConstView initial, const optim::MakeRule& rule) {
  if (rule) require_fit_for_own_rule(config, params);
  const MemoryScope scope(MemoryKind::kStates);
  require_dtypes(config, params);
  if (config.zero.stage > 0) {
    auto zero = sharded(comm, layout, config, params);
    zero::ShardedOptimizer* const view = zero.get();
    return {.optimizer = std::move(zero), .zero = view};
  }
  if (is_lean(config)) {
    auto made = lean(comm, layout, config, params, initial);
    lean::LeanOnebitAdam* const view = made.get();
    return {.optimizer = std::move(made), .lean = view};
  }
  if (config.precision.dtype == DType::kFloat32)
    return {.optimizer = replicated(comm, layout, config, 0, rule)};
  auto wrapped = mixed(comm, layout, config, num_wide(params), initial, rule);
  precision::LowPrecisionOptimizer* const view = wrapped.get();
  return {.optimizer = std::move(wrapped), .mixed = view};
}

}  // namespace thinwire::engine
