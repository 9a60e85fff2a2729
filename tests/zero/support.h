// SPDX-License-Identifier: Apache-2.0
// One rank's memory and optimizer, for tests of ZeroOptimizer.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "support/converted.h"
#include "support/ranks.h"
#include "support/same_bits.h"
#include "support/values.h"
#include "thinwire/core/buffer.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/optim/adam.h"
#include "thinwire/optim/data_parallel.h"
#include "thinwire/optim/lamb.h"
#include "thinwire/precision/mixed_precision.h"
#include "thinwire/zero/zero_optimizer.h"

namespace thinwire::test {

using zero::MakeRule;
using zero::ZeroOptimizer;
using zero::ZeroOptions;
using Backward = exchange::Backward;

inline MakeRule adam_rule(optim::AdamOptions options = {}) {
  return [options](const ParameterLayout& shard) {
    return std::make_unique<optim::Adam>(shard, options);
  };
}

inline MakeRule lamb_rule(optim::LambOptions options = {}) {
  return [options](const ParameterLayout& shard) {
    return std::make_unique<optim::Lamb>(shard, options);
  };
}

/// A rule whose exp_avg is what the gradient was after it had been averaged,
/// unscaled and clipped.
inline MakeRule seeing_gradients() {
  return adam_rule({.beta1 = 0, .beta2 = 0, .bias_correction = false});
}

inline Buffer rounded(ConstView values, DType dtype) {
  Buffer result(values.size(), dtype);
  kernels::convert(values, result.view());
  return result;
}

/// Collective: all ranks have the same bytes there.
inline bool are_same_on_all_ranks(comm::Communicator& comm, ConstView values) {
  Buffer first(values.size(), values.dtype());
  kernels::convert(values, first.view());
  comm.broadcast(first.view(), 0);
  return static_cast<bool>(same_bytes(values, first.view()));
}

struct ZeroRun {
  /// Parameters from the start that all ranks share.
  ZeroRun(comm::Communicator& comm, const ParameterLayout& of,
          const MakeRule& make_rule, const ZeroOptions& options)
      : layout(of),
        start(normal(of.size(), 3)),
        params(rounded(start, options.dtype)),
        optimizer(std::make_unique<ZeroOptimizer>(
            comm, layout, make_rule, params.view(), options, start)) {}

  [[nodiscard]] Buffer scaled(std::vector<float> grads, DType dtype) const {
    const auto scale = static_cast<float>(optimizer->loss_scale());
    for (float& g : grads) g *= scale;
    return rounded(grads, dtype);
  }
  /// `grads` are those of the loss itself, flat; parameters come last one
  /// first, as backward has them.
  void backward(const std::vector<float>& grads, Backward which = {},
                const std::set<std::string>& left_out = {}) {
    const Buffer own = scaled(grads, optimizer->options().dtype);
    optimizer->gradients().begin(which);
    for (std::size_t i = layout.parameters().size(); i-- > 0;) {
      const Parameter& p = layout.parameters()[i];
      if (left_out.count(p.name) == 0)
        optimizer->gradients().collect(i, own.view().subview(p.offset, p.size));
    }
    optimizer->gradients().end();
  }
  optim::StepReport step(const std::vector<float>& grads,
                         const std::set<std::string>& left_out = {}) {
    backward(grads, {}, left_out);
    return optimizer->step();
  }
  /// The window's gradients, one backward each.
  optim::StepReport window(const std::vector<std::vector<float>>& backwards) {
    for (std::size_t k = 0; k < backwards.size(); ++k)
      backward(backwards[k],
               {.is_first = k == 0, .is_last = k + 1 == backwards.size()});
    return optimizer->step();
  }
  /// All parameters' values one after the other: collective.
  [[nodiscard]] std::vector<float> masters() const {
    return of_all(
        [](auto& whole, auto& name) { return whole.parameter(name); });
  }
  [[nodiscard]] std::vector<float> state(std::string_view key) const {
    return of_all(
        [key](auto& whole, auto& name) { return whole.state(name, key); });
  }
  [[nodiscard]] std::vector<float> gradient() const {
    return of_all([](auto& whole, auto& name) { return whole.gradient(name); });
  }
  [[nodiscard]] std::vector<float> values() const {
    return floats_of(params.view());
  }

  ParameterLayout layout;
  std::vector<float> start;
  Buffer params;
  std::unique_ptr<ZeroOptimizer> optimizer;

 private:
  template <class Read>
  [[nodiscard]] std::vector<float> of_all(const Read& read) const {
    std::vector<float> all;
    for (const Parameter& p : layout.parameters()) {
      const auto values = read(optimizer->whole_values(), p.name);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
};

/// The same without shards.
struct Unsharded {
  Unsharded(comm::Communicator& comm, const ParameterLayout& layout,
            const MakeRule& make_rule, DType dtype, ConstView initial,
            const precision::LossScalerOptions& scaler,
            const optim::ExchangeOptions& exchange = {})
      : optimizer(std::make_unique<optim::DataParallel>(comm, make_rule(layout),
                                                        exchange)) {
    if (dtype == DType::kFloat32) return;
    auto wrapped = std::make_unique<precision::MixedPrecision>(
        comm, layout, std::move(optimizer), initial,
        precision::MixedPrecisionOptions{.dtype = dtype, .loss_scale = scaler});
    mixed = wrapped.get();
    optimizer = std::move(wrapped);
  }
  [[nodiscard]] double loss_scale() const {
    return mixed == nullptr ? 1 : mixed->loss_scale();
  }

  std::unique_ptr<optim::Optimizer> optimizer;
  precision::MixedPrecision* mixed = nullptr;
};

/// More than one bucket of 2048, cut within parameters; two groups; an empty
/// parameter and one of a single element.
inline ParameterLayout two_groups() {
  return ParameterLayout::of({{"first", {1500}, 0},
                              {"empty", {0}, 1},
                              {"second", {5, 700}, 1},
                              {"one", {}, 0},
                              {"last", {2100}, 0}});
}

/// fp16 whose loss scale is 1, so that what is seen is what was given.
inline ZeroOptions unscaled(int stage, DType dtype = DType::kFloat16) {
  return {.stage = stage,
          .dtype = dtype,
          .loss_scale = {.initial_scale = 1, .dynamic = false},
          .exchange = {.bucket_elements = 2048}};
}

inline std::vector<float> ones(const ZeroRun& run) {
  return std::vector<float>(run.layout.size(), 1);
}

/// The gradients of parameters number `from` and below, the last one first.
inline void collect_some(ZeroRun& run, const Buffer& grads, std::size_t from) {
  for (std::size_t i = run.layout.parameters().size(); i-- > from;) {
    const Parameter& p = run.layout.parameters()[i];
    run.optimizer->gradients().collect(i,
                                       grads.view().subview(p.offset, p.size));
  }
}

/// Takes steps of two backwards each, of which every third overflows.
inline void train_with_overflows(comm::Communicator& comm, ZeroRun& run,
                                 unsigned from, unsigned to) {
  for (unsigned t = from; t < to; ++t) {
    const auto make = [&](unsigned k) {
      auto grads =
          normal(run.layout.size(),
                 100 * t + 10 * k + static_cast<unsigned>(comm.rank()));
      if (t % 3 == 2 && comm.rank() == comm.size() - 1)
        grads[3] = std::numeric_limits<float>::quiet_NaN();
      return grads;
    };
    EXPECT_EQ(run.window({make(0), make(1)}).applied, t % 3 != 2);
  }
}

}  // namespace thinwire::test
