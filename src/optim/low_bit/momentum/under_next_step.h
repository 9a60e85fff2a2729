// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "optim/low_bit/denominator/denominator.h"
#include "optim/low_bit/momentum/momentum.h"
#include "optim/step_pieces.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// The exchange of the momentum under the next step
/// (ExchangeOptions::under_next_step). While it travels, this rank's parameters
/// are those before the step, moved by its own momentum. The common ones,
/// theta, move when the mean arrives. All of an exchange is queued when it
/// begins, so each rank completes it when it likes, without a collective call.
class UnderNextStep final : public LocalSteps {
 public:
  UnderNextStep(LowBitModel& model, CompressedMomentum& momentum,
                const Denominator& denominator)
      : model_(model), momentum_(momentum), denominator_(denominator) {}
  /// Blocks until an exchange in flight is over, because it reads the parts
  /// above. Logs a warning if it has failed.
  ~UnderNextStep() override;
  UnderNextStep(const UnderNextStep&) = delete;
  UnderNextStep& operator=(const UnderNextStep&) = delete;

  /// Returns whether compressed steps exchange that way.
  [[nodiscard]] bool is_on() const {
    return model_.settings.exchange.under_next_step && model_.compresses();
  }
  /// Begins the exchange of a step whose coefficients are `c`. In the blocks'
  /// elements computes, on this rank,
  ///   m_i = beta1 m + (1 - beta1) g_i,
  ///   params = theta - lr (m_i / (1 - beta1^t) / d + wd theta)
  /// Other elements of `in.params` are equal on all ranks already. Collective,
  /// queued.
  void begin(const StepInput& in, const Coefficients& c);
  /// Waits for the exchange in flight, if there is one: m is the ranks' mean,
  /// and theta moves by it. Returns the seconds of waiting. Local.
  double arrive() const;
  /// Makes the parameters theta, if they differ. Local.
  void rejoin(const StepInput& in);
  [[nodiscard]] bool differs() const noexcept { return differs_; }
  /// Returns theta. Only if the parameters differ.
  [[nodiscard]] View theta() const { return theta_.view(); }

  // ---- between steps, for the caller
  [[nodiscard]] std::int64_t steps_behind() const noexcept override {
    return differs_ ? 1 : 0;
  }
  void synchronize(View params) override;
  [[nodiscard]] ConstView exchanged_params(ConstView params) const override;
  void repeat(View params) override;
  /// Takes parameters that were loaded from elsewhere for theta.
  void begin_anew();

  /// Lists theta and this rank's parameters, once nothing is in flight. On
  /// another number of ranks each takes the mean of the latter.
  void list(StateParts& parts);

 private:
  void take_own_step(std::size_t block, const StepInput& in) const;

  LowBitModel& model_;
  CompressedMomentum& momentum_;
  const Denominator& denominator_;
  mutable Buffer theta_;       // fp32, of all elements
  Coefficients coefficients_;  // of the step whose exchange is in flight
  bool differs_ = false;       // parameters from theta, on some rank
  View params_{};              // those of the last step
  Buffer restored_;            // of this rank, until the next step or repeat()
};

}  // namespace thinwire::optim
