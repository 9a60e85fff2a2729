// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "apps/thinwire/replay/recorded_wire.h"
#include "apps/thinwire/replay/trajectory.h"
#include "thinwire/deepspeed/fp16_optimizer.h"

namespace thinwire::replay {

/// An optimizer that runs like a recorded one: alone, or in one of the 16-bit
/// wrappers with gradients multiplied by a loss scale.
class DrivenOptimizer {
 public:
  /// Throws Unsupported if the recording ran its optimizer in an unknown way.
  DrivenOptimizer(const nlohmann::json& meta, comm::Communicator& comm,
                  config::Semantics semantics, const TrajectoryKind& kind,
                  std::span<const float> params);

  /// Returns the layout that the optimizer works on: the recording's tensors,
  /// or flat groups.
  [[nodiscard]] const ParameterLayout& layout() const noexcept {
    return wrapped_;
  }
  /// Begins anew, including a first step that the wrapper takes by itself.
  void make(WireRecorder& recorder);
  [[nodiscard]] bool begins_with_zeros() const noexcept {
    return begins_with_zeros_;
  }

  /// Takes a step with this rank's unscaled gradients. An element that was
  /// infinite in the recording becomes infinite here.
  optim::StepReport step(std::size_t t, std::span<const float> grads);

  [[nodiscard]] optim::Optimizer& optimizer() const { return *inner_; }
  [[nodiscard]] std::span<float> params() noexcept { return params_; }
  /// Returns the fp32 parameters that steps update.
  [[nodiscard]] std::span<const float> masters() const;
  /// Returns the 16-bit parameters, widened; empty without a wrapper.
  [[nodiscard]] std::vector<float> params16() const;
  [[nodiscard]] std::optional<double> loss_scale() const;

 private:
  const nlohmann::json& meta_;
  comm::Communicator& comm_;
  const TrajectoryKind& kind_;
  bool begins_with_zeros_ = false;
  std::optional<deepspeed::Fp16Options> wrapper_options_;
  ParameterLayout layout_;
  ParameterLayout wrapped_;
  std::vector<float> params_;
  std::vector<Half> params16_;
  AnyLowBit alone_;
  std::unique_ptr<deepspeed::Fp16Optimizer> wrapper_;
  optim::Optimizer* inner_ = nullptr;
};

}  // namespace thinwire::replay
