// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "thinwire/core/dtype.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/core/view.h"

namespace thinwire::optim {

/// The whole flat arrays that a rule works on.
struct UpdateArrays {
  View params;           ///< As in StepInput.
  ConstView grads;       ///< fp32, fp16 or bf16.
  float grad_scale = 1;  ///< Multiplies the gradient first.
  View low_precision{};  ///< As in StepInput.
};

/// One step of arithmetic on flat arrays; knows nothing of ranks. Local.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  /// "adam": for messages and saved state.
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual const ParameterLayout& layout() const noexcept = 0;
  /// One line per group with every option: what ranks compare before they
  /// first exchange.
  [[nodiscard]] virtual std::string describe() const = 0;

  /// Applies step number `step` (1, 2, ...) to all parameters, shared out over
  /// the pool's threads; the same bits for any number of them.
  virtual void apply(std::int64_t step, const UpdateArrays& arrays,
                     ThreadPool& pool) = 0;

  /// Whether parameters may be of this dtype.
  [[nodiscard]] virtual bool takes(DType params) const noexcept {
    return params == DType::kFloat32;
  }

  [[nodiscard]] virtual std::size_t num_groups() const noexcept = 0;
  virtual void set_learning_rate(std::size_t group, double learning_rate) = 0;
  [[nodiscard]] virtual double learning_rate(std::size_t group) const = 0;

  virtual void save(StateDict& state) const = 0;
  /// Throws Error(kCorruptCheckpoint) before anything changes.
  virtual void load(const StateDict& state) = 0;
};

}  // namespace thinwire::optim
