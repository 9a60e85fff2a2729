// SPDX-License-Identifier: Apache-2.0
#include "engine/make_optimizer.h"

#include <algorithm>
#include <utility>

#include "thinwire/core/memory.h"

namespace thinwire::engine {

using config::Config;
using config::OffloadDevice;
using config::OptimizerConfig;
using config::ZeroConfig;

using precision::MixedPrecisionOptions;

namespace {

// The reference has one wrapper for optimizers that work on flat groups, and
// one for those that take norms of tensors.
precision::Wrapper wrapper_of(const OptimizerConfig& optimizer) {
  const bool takes_norms =
      std::holds_alternative<optim::LambOptions>(optimizer) ||
      std::holds_alternative<optim::OnebitLambOptions>(optimizer);
  return takes_norms ? precision::Wrapper::kUnfused
                     : precision::Wrapper::kFused;
}

MixedPrecisionOptions mixed_options(const Config& config) {
  MixedPrecisionOptions options{.dtype = config.precision.dtype,
                                .master_dtype = config.precision.master_dtype,
                                .loss_scale = config.precision.loss_scale,
                                .semantics = config.semantics,
                                .wrapper = wrapper_of(config.optimizer)};
  if (config.semantics == optim::Semantics::kDeepSpeed)
    options.max_grad_norm = config.gradient_clipping;
  return options;
}

// The configuration's is a bound. Smaller ones let the first ones leave while
// backward goes on, and take less memory; tiny ones are all latency.
std::size_t bucket_elements(const Config& config,
                            const ParameterLayout& layout) {
  constexpr std::size_t kBuckets = 8;
  constexpr std::size_t kSmallest = std::size_t{1} << 16;
  const auto bound = static_cast<std::size_t>(config.zero.reduce_bucket_size);
  const std::size_t ours =
      std::min(std::max(layout.size() / kBuckets, kSmallest),
               shard::ZeroOptions{}.exchange.bucket_elements);
  return std::clamp<std::size_t>(bound, 1, ours);
}

shard::ZeroOptions zero_options(const Config& config,
                                const ParameterLayout& layout) {
  const ZeroConfig& zero = config.zero;
  const bool is_reference = config.semantics == optim::Semantics::kDeepSpeed;
  shard::ZeroOptions options{
      .stage = zero.stage,
      .dtype = config.precision.dtype,
      .master_dtype = config.precision.master_dtype,
      .loss_scale = config.loss_scaler_options(),
      .exchange = config.exchange_options(),
      .communication_dtype = config.communication_dtype,
      .accumulation_dtype = config.accumulation_dtype,
      .overlap = config.comm.overlap,
      .offload = zero.offload_optimizer == OffloadDevice::kCpu,
      .semantics = config.semantics,
      .round_robin = is_reference && zero.round_robin_gradients,
      .reduce_scatter = !is_reference || zero.reduce_scatter};
  options.exchange.bucket_elements = bucket_elements(config, layout);
  return options;
}

// One per kind of options.
struct Maker {
  comm::Communicator& comm;
  const ParameterLayout& layout;
  const Config& config;
  View params;

  template <class Rule, class Options>
  [[nodiscard]] std::unique_ptr<optim::Optimizer> exact(
      const Options& options) const {
    if (config.zero.stage > 0)
      return std::make_unique<shard::ZeroOptimizer>(
          comm, layout,
          [options](const ParameterLayout& shard) {
            return std::make_unique<Rule>(shard, options);
          },
          params, zero_options(config, layout));
    optim::ExchangeOptions exchange = config.exchange_options();
    const bool wrapper_clips =
        config.semantics == optim::Semantics::kDeepSpeed &&
        config.precision.dtype != DType::kFloat32;
    if (wrapper_clips) exchange.max_grad_norm = 0;
    return std::make_unique<optim::DataParallel>(
        comm, std::make_unique<Rule>(layout, options), exchange);
  }

  std::unique_ptr<optim::Optimizer> operator()(
      optim::AdamOptions options) const {
    options.state_dtype = config.precision.state_dtype;
    return exact<optim::Adam>(options);
  }
  std::unique_ptr<optim::Optimizer> operator()(
      const optim::LambOptions& options) const {
    return exact<optim::Lamb>(options);
  }
  std::unique_ptr<optim::Optimizer> operator()(
      const optim::OnebitAdamOptions& options) const {
    return std::make_unique<optim::OnebitAdam>(comm, layout, options);
  }
  std::unique_ptr<optim::Optimizer> operator()(
      const optim::OnebitLambOptions& options) const {
    return std::make_unique<optim::OnebitLamb>(comm, layout, options);
  }
  std::unique_ptr<optim::Optimizer> operator()(
      const optim::ZeroOneAdamOptions& options) const {
    return std::make_unique<optim::ZeroOneAdam>(comm, layout, options);
  }
};

}  // namespace

MadeOptimizer make_optimizer(comm::Communicator& comm,
                             const ParameterLayout& layout,
                             const Config& config, View params,
                             ConstView initial) {
  const MemoryScope scope(MemoryKind::kStates);
  if (config.zero.stage > 0) {
    auto made = std::visit(Maker{comm, layout, config, params},
                           config.optimizer_options());
    auto* const zero = dynamic_cast<shard::ZeroOptimizer*>(made.get());
    return {.optimizer = std::move(made), .zero = zero};
  }
  if (config.precision.dtype == DType::kFloat32)
    return {std::visit(Maker{comm, layout, config, params},
                       config.optimizer_options())};
  const MixedPrecisionOptions options = mixed_options(config);
  options.validate();
  const ParameterLayout wrapped = precision::wrapped_layout(layout, options);
  auto mixed = std::make_unique<precision::MixedPrecision>(
      comm, layout,
      std::visit(Maker{comm, wrapped, config, params},
                 config.optimizer_options()),
      initial, options);
  precision::MixedPrecision* const view = mixed.get();
  return {std::move(mixed), view};
}

}  // namespace thinwire::engine
