// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "optim/low_bit/denominator/block_denominators.h"
#include "optim/low_bit/momentum/kept_momentum.h"
#include "optim/low_bit/restored_residuals.h"

namespace thinwire::optim {

/// Exchange of the momentum between ranks, with its residuals.
class MomentumExchange {
 public:
  MomentumExchange(LowBitModel& model, KeptMomentum& form,
                   RestoredResiduals& restored, bool keeps_previous)
      : model_(model),
        form_(form),
        restored_(restored),
        keeps_previous_(keeps_previous) {}

  /// Receives the new momentum of a block, as signs or, on a single rank, as
  /// values. Several threads may call it at once.
  using Apply =
      std::function<void(std::size_t block, const kernels::MomentumForm& m)>;
  /// Computes for each block with unit k:
  ///  m <- (1-bit mean over the ranks of k (beta1 m + (1 - beta1) g_i)) / k
  /// and applies each block when it arrives. A single rank computes
  ///  m = beta1 m + (1 - beta1) g, plus restored residuals over k
  /// Collective.
  void average(const StepInput& in, const Coefficients& c, const Apply& apply,
               StepMeter& step);
  /// Begins an exchange and queues all of it (SignExchange::launch()). Passes
  /// elements to `tell`, unless it is empty, after `source` was called for
  /// them. Collective, queued.
  void launch(const exchange::SignExchange::Source& source,
              const FinalRange& tell);
  /// Completes the launched exchange and applies its result. Returns the
  /// seconds spent waiting since it began. Local.
  double finish(const Apply& apply);
  /// Discards an exchange in flight and sets its residuals to 0.
  void drop() noexcept {
    if (is_in_flight()) all_->drop();
  }

  /// Returns the all-reduce and constructs it on first use.
  [[nodiscard]] exchange::SignExchange& all();
  /// Returns whether an exchange is in flight between steps.
  [[nodiscard]] bool is_in_flight() const {
    return all_ != nullptr && all_->has_begun();
  }
  /// Measures the seconds of an exchange of zeros in separate memory, so that
  /// residuals and results are unchanged. Collective.
  [[nodiscard]] double time_exchange() const;
  /// Returns LowBitOptimizer::residual_ratio().
  [[nodiscard]] double residual_ratio() const;
  /// Uses the observer that the model has now.
  void follow_observer();

  /// Sets the elements that are exchanged. Residuals of the others become 0.
  void set_active(exchange::ActiveMask active);
  [[nodiscard]] const exchange::ActiveMask& mask() const { return active_; }
  /// Returns the active elements of block `b` as bits, or null if all are
  /// active.
  [[nodiscard]] const std::uint32_t* active(std::size_t b) const {
    return active_.words(model_.layout.blocks, b);
  }

  /// Sets all residuals to 0, including restored ones.
  void clear_residuals();
  /// Takes the residuals of gradients when the compression of the momentum
  /// begins. They are multiplied by (1 - beta1) clip and by the momentum's
  /// units, and set to 0 for inactive elements. If there are no server
  /// residuals, the exchange keeps its own.
  void inherit(RankResiduals&& of_gradients,
               std::span<const HeavyElement> heavy);

  /// Describes the residuals, or those of the gradients in their place, and the
  /// elements that this rank serves and encodes.
  void add_to(State& state,
              const std::optional<ResidualViews>& of_gradients) const;
  struct Saved {
    std::optional<RankResiduals> residuals;
    std::unique_ptr<exchange::SignExchange> all;  // null if there is one
  };
  /// Takes the residuals from a state. Throws Error(kCorruptCheckpoint).
  [[nodiscard]] Saved read(StateDict& state) const;
  void restore(Saved&& saved);

 private:
  [[nodiscard]] std::unique_ptr<exchange::SignExchange> make_all() const;
  void update_alone(ConstView grads, const Coefficients& c);
  void inherit_block(std::size_t b, float* error, double clip,
                     std::span<const HeavyElement> heavy) const;

  LowBitModel& model_;
  KeptMomentum& form_;
  RestoredResiduals& restored_;
  bool keeps_previous_;
  std::unique_ptr<exchange::SignExchange> all_;
  exchange::ActiveMask active_;
  double waited_before_ = 0;  // before the exchange that was launched
};

/// Returns the elements that this rank encodes and for which it has worker
/// residuals.
[[nodiscard]] std::vector<Range> encoded_elements(const LowBitModel& model);
/// Takes a rank's residuals from a state that has them. Throws
/// Error(kCorruptCheckpoint).
[[nodiscard]] std::optional<RankResiduals> take_residuals(
    StateDict& state, const LowBitModel& model);
/// Throws Error(kCorruptCheckpoint) if a state in memory has residuals of
/// another rank or of other buckets.
void require_residual_owner(const StateDict& state, const LowBitModel& model);
/// Adds the scalars that require_residual_owner() compares.
void add_residual_owner(State& state, const LowBitModel& model);

}  // namespace thinwire::optim
