// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "thinwire/core/buffer.h"
#include "thinwire/precision/mixed_precision.h"

namespace thinwire::precision {

/// One way of stepping: the corrected one, or the reference's.
struct MixedPrecision::Impl {
  Impl(comm::Communicator& c, const ParameterLayout& l,
       std::unique_ptr<optim::Optimizer> o, ConstView initial,
       const MixedPrecisionOptions& settings);
  virtual ~Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  virtual optim::StepReport step(const optim::StepInput& in);

  void require_params(View params) const;
  void require_input(const optim::StepInput& in) const;
  [[nodiscard]] bool scales() const noexcept {
    return options.dtype == DType::kFloat16;
  }
  [[nodiscard]] bool has_masters() const noexcept {
    return options.master_dtype == DType::kFloat32;
  }
  [[nodiscard]] double loss_scale() const noexcept {
    return scales() ? scaler.scale() : 1;
  }
  /// An overflow now ends the run.
  [[nodiscard]] bool is_last_chance() const noexcept {
    return scales() && scaler.is_at_minimum() &&
           scaler.options().at_minimum == AtMinimum::kStop;
  }
  [[noreturn]] void stop(ConstView grads, int rank) const;

  comm::Communicator& comm;
  ParameterLayout layout;
  std::unique_ptr<optim::Optimizer> optimizer;
  MixedPrecisionOptions options;
  LossScaler scaler;
  std::int64_t skipped = 0;  // without the optimizer's knowledge
  Buffer masters;
  compress::WireObserver* observer = nullptr;
};

/// FP16_Optimizer and FP16_UnfusedOptimizer, operation by operation.
[[nodiscard]] std::unique_ptr<MixedPrecision::Impl> make_reference_wrapper(
    comm::Communicator& comm, const ParameterLayout& layout,
    std::unique_ptr<optim::Optimizer> optimizer, ConstView initial,
    const MixedPrecisionOptions& options);

}  // namespace thinwire::precision
