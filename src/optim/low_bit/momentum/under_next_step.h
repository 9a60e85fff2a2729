// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "optim/low_bit/denominator/denominator.h"
#include "optim/low_bit/momentum/momentum.h"
#include "optim/step_pieces.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// Overlaps the exchange of the momentum with the next step
/// (ExchangeOptions::under_next_step). While it is in flight, this rank's
/// parameters are the previous ones, moved by its own momentum. The common
/// parameters, theta, are updated when the mean arrives. An exchange is queued
/// completely when it begins, so each rank completes it at any time, without a
/// collective call.
class UnderNextStep final : public LocalSteps {
 public:
  UnderNextStep(LowBitModel& model, CompressedMomentum& momentum,
                const Denominator& denominator)
      : model_(model), momentum_(momentum), denominator_(denominator) {}
  /// Blocks until an exchange in flight has ended, because it reads the members
  /// above. Logs a warning if it has failed.
  ~UnderNextStep() override;
  UnderNextStep(const UnderNextStep&) = delete;
  UnderNextStep& operator=(const UnderNextStep&) = delete;

  /// Returns whether compressed steps use this exchange.
  [[nodiscard]] bool is_on() const {
    return model_.settings.exchange.under_next_step && model_.compresses();
  }
  /// Begins the exchange of a step whose coefficients are `c`. For the blocks'
  /// elements computes on this rank:
  ///  m_i = beta1 m + (1 - beta1) g_i,
  ///  params = theta - lr (m_i / (1 - beta1^t) / d + wd theta)
  /// Other elements of `in.params` are already equal on all ranks. Collective,
  /// queued.
  void begin(const StepInput& in, const Coefficients& c);
  /// Waits for the exchange in flight, if any. Sets m to the ranks' mean and
  /// updates theta by it. Returns the seconds spent waiting. Local.
  double arrive() const;
  /// Sets the parameters to theta if they differ from it. Local.
  void rejoin(const StepInput& in);
  [[nodiscard]] bool differs() const noexcept { return differs_; }
  /// Returns theta. Valid only if the parameters differ from it.
  [[nodiscard]] View theta() const { return theta_.view(); }

  // ---- between steps, for the caller
  [[nodiscard]] std::int64_t steps_behind() const noexcept override {
    return differs_ ? 1 : 0;
  }
  void synchronize(View params) override;
  [[nodiscard]] ConstView exchanged_params(ConstView params) const override;
  void repeat(View params) override;
  /// Sets theta to parameters that were loaded from elsewhere.
  void begin_anew();

  /// Lists theta and this rank's parameters after nothing is in flight. With
  /// another number of ranks, each rank gets the mean of the ranks' parameters.
  void list(StateParts& parts);

 private:
  void take_own_step(std::size_t block, const StepInput& in) const;

  LowBitModel& model_;
  CompressedMomentum& momentum_;
  const Denominator& denominator_;
  mutable Buffer theta_;       // fp32, for all elements
  Coefficients coefficients_;  // of the step whose exchange is in flight
  bool differs_ = false;       // parameters differ from theta on some rank
  View params_{};              // parameters of the last step
  Buffer restored_;            // this rank's, until the next step or repeat()
};

}  // namespace thinwire::optim
