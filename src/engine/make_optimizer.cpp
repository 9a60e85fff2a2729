// SPDX-License-Identifier: Apache-2.0
#include "engine/make_optimizer.h"

#include <utility>

namespace thinwire::engine {

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

// One per kind of options.
struct Maker {
  comm::Communicator& comm;
  const ParameterLayout& layout;
  const Config& config;

  template <class Rule, class Options>
  [[nodiscard]] std::unique_ptr<optim::Optimizer> exact(
      const Options& options) const {
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
                             const Config& config, ConstView initial) {
  if (config.precision.dtype == DType::kFloat32)
    return {
        std::visit(Maker{comm, layout, config}, config.optimizer_options())};
  const MixedPrecisionOptions options = mixed_options(config);
  options.validate();
  const ParameterLayout wrapped = precision::wrapped_layout(layout, options);
  auto mixed = std::make_unique<precision::MixedPrecision>(
      comm, layout,
      std::visit(Maker{comm, wrapped, config}, config.optimizer_options()),
      initial, options);
  precision::MixedPrecision* const view = mixed.get();
  return {std::move(mixed), view};
}

}  // namespace thinwire::engine
