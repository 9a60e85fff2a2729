// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "optim/low_bit/denominator/block_denominators.h"
#include "optim/low_bit/gradients/low_bit_average.h"
#include "optim/low_bit/model.h"
#include "optim/low_bit/momentum/late_elements.h"
#include "thinwire/exchange/compressed_all_reduce.h"
#include "thinwire/kernels/lamb.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// The momentum, averaged over the ranks with one bit per element and error
/// feedback. Between steps it is either values (Adam's exp_avg) or, after an
/// exchange, signs: the exchange's own result, 1/32 of the memory.
class CompressedMomentum {
 public:
  /// `keeps_previous`: for previous().
  CompressedMomentum(LowBitModel& model, bool keeps_previous)
      : model_(model), keeps_previous_(keeps_previous) {}

  // ---- the step of the papers
  /// Collective:  m <- 1-bit mean over the ranks of beta1 m + (1 - beta1) g_i,
  /// and as each block arrives,  p <- p - lr (m / (1 - beta1^t) / d + wd p).
  /// `d` are all elements' denominators; scaling and bias are in `c`.
  void all_reduce(const StepInput& in, const Coefficients& c, const Buffer& d,
                  StepMeter& step);
  /// The same of an exchange that has begun early, with these gradients.
  void accept_early(const StepInput& in, const Coefficients& c, const Buffer& d,
                    StepMeter& step);
  /// Takes the result of a block, as signs or, of a group of one, values. May
  /// be called by several threads at once.
  using Apply =
      std::function<void(std::size_t block, const kernels::MomentumForm& m)>;
  /// Collective: the same, applied by the caller.
  void average(const StepInput& in, const Coefficients& c, const Apply& apply,
               StepMeter& step);
  /// Passes elements whose results were delivered to `tell`, which must outlive
  /// it; empty if that is empty.
  [[nodiscard]] exchange::CompressedAllReduce::Delivered teller(
      const FinalRange& tell) const;
  /// Collective: the values, of which a rank has those that it serves, become
  /// signs; what that loses is the servers' residual. Not in a group of one.
  void begin_as_signs(const exchange::CompressedAllReduce::Source& values);

  // ---- its pieces
  /// What block `b` of this rank's new momentum is made of, on the fly.
  [[nodiscard]] kernels::SignInput input(
      std::size_t b, View grads, const kernels::AdamCoefficients& c) const;
  /// m = beta1 m + (1 - beta1) g, as values; 0 where an element is left out.
  void update(ConstView grads, const Coefficients& c);
  /// What a step over the denominator `d` does to elements `range`; exp_avg is
  /// not set.
  [[nodiscard]] static kernels::FrozenUpdateArrays arrays(Range range,
                                                          const StepInput& in,
                                                          const Buffer& d);

  // ---- its two forms
  [[nodiscard]] bool is_signs() const { return is_signs_; }
  /// Of block `b`, after an exchange: what it gave over the block's unit.
  [[nodiscard]] kernels::Signs mean(std::size_t b) const {
    return over_unit(exchange_->mean(b), b);
  }
  /// The momentum before the exchange that is under way, or is over.
  [[nodiscard]] kernels::MomentumForm previous(std::size_t b) const;
  [[nodiscard]] kernels::MomentumForm values(std::size_t b) const;
  /// What is exchanged is the momentum times `units`, one per block: a common
  /// size in 1-bit LAMB, -sum of learning rates in 0/1 Adam. Empty: all 1.
  void set_units(std::vector<float> units) { units_ = std::move(units); }
  [[nodiscard]] float unit(std::size_t b) const {
    return units_.empty() ? 1 : units_[b];
  }
  [[nodiscard]] kernels::Signs over_unit(kernels::Signs mean,
                                         std::size_t b) const {
    return {mean.words, mean.scale / unit(b)};
  }
  /// The momentum is what the last exchange gave; values may be dropped.
  void keep_as_signs();
  /// exp_avg holds it, whatever form it had.
  void keep_as_values();
  /// It is what exp_avg holds.
  void now_values() { is_signs_ = false; }
  [[nodiscard]] Buffer copy() const;
  /// Elements `range` of it, whatever form it has.
  void read(Range range, std::span<float> to) const;

  // ---- who takes part
  /// A Participation for every element; empty: all take part.
  void set_participation(std::vector<std::uint8_t> elements);
  [[nodiscard]] Participations participation() const { return participation_; }
  [[nodiscard]] bool takes_part(std::size_t element) const {
    return participation_.empty() || participation_[element] == kTakesPart;
  }
  /// The same of a block in bits; null: all take part.
  [[nodiscard]] const std::uint32_t* active(std::size_t b) const {
    return active_.words(model_.layout.blocks, b);
  }
  [[nodiscard]] std::size_t num_left_out() const { return num_left_out_; }
  /// Whether a late element has its first gradient here.
  [[nodiscard]] bool has_late(View grads) {
    return late_.look_at(
        [&](std::size_t b) {
          return model_.has_gradient(b) ? model_.gradient(b, grads) : View();
        },
        model_.pool);
  }
  /// It counts at the next admit_late(): for steps without an exchange.
  void remember_late(View grads) {
    if (has_late(grads)) late_.remember();
  }
  /// Collective, after has_late() was true on some rank: such elements take
  /// part from now on, with a momentum of 0. Returns them.
  [[nodiscard]] std::vector<std::size_t> admit_late(StepMeter& step);

  /// Makes participation what the caller's masks say. What they leave out gives
  /// up its momentum; what they leave out no more is late, as if it had never
  /// had a gradient. Unfit elements stay what they are.
  [[nodiscard]] MaskChange follow_masks();

  // ---- the exchange and its residuals
  /// Collective: the seconds that an exchange of zeros takes. It has memory of
  /// its own while it lasts: residuals and results stay as they are.
  [[nodiscard]] double time_exchange() const;
  /// Made when it is first needed.
  [[nodiscard]] exchange::CompressedAllReduce& exchange();
  /// It has begun early, and the step has not come yet.
  [[nodiscard]] bool has_begun_early() const {
    return exchange_ != nullptr && exchange_->has_early();
  }
  /// As LowBitOptimizer's.
  [[nodiscard]] double residual_ratio() const;
  /// The model has another observer.
  void follow_observer();
  /// Nothing is owed any more, to nobody.
  void clear_residuals();
  /// What gradients owe when the momentum begins to be compressed: it owes
  /// (1 - beta1) clip of that, in its units, and nothing where an element takes
  /// no part.
  void inherit(GradientResiduals&& owed, std::span<const HeavyElement> heavy);

  // ---- what a group of one owes: it compresses nothing, so the residuals of a
  // state from more ranks are delivered by its first exchange, y = x + e + d
  /// Adds what is owed to `x`, the momentum of all elements.
  void deliver_debt(std::span<float> x);
  [[nodiscard]] bool has_debt() const { return !debt_.worker.empty(); }
  /// What is owed of block `b`, in units of what is exchanged; 0 where an
  /// element takes no part. It is owed no more.
  [[nodiscard]] std::vector<float> pay_debt(std::size_t b);
  /// After all blocks have been paid.
  void forget_debt() { debt_ = {}; }

  // ---- state: momentum_state.cpp
  /// exp_avg, which lies on the ranks as `sharing` says, who takes part,
  /// residuals, and which of them this rank serves. `of_gradients`: the
  /// residuals are those.
  void add_to(State& state, Sharing sharing,
              const std::optional<LowBitAverage::Views>& of_gradients =
                  std::nullopt) const;
  /// Elements that this rank encodes, and has worker residuals of.
  [[nodiscard]] std::vector<Range> encoded() const;
  /// Residuals of a state; `exchange` where there is none yet.
  struct Residuals {
    Buffer worker;  // both may be of no elements
    Buffer server;
    bool are_there = false;
    std::unique_ptr<exchange::CompressedAllReduce> exchange{};
  };
  /// Takes them out of the state; empty where it has none. `of_gradients`: they
  /// are not the momentum's. Throws Error(kCorruptCheckpoint).
  [[nodiscard]] Residuals take_residuals(StateDict& state,
                                         bool of_gradients = false) const;
  void restore(Residuals&& residuals);
  /// Throws Error(kCorruptCheckpoint) where residuals of a state in memory are
  /// another rank's, or of other buckets; and the scalars that say so.
  void require_owner(const StateDict& state) const;
  void add_owner(State& state) const;
  [[nodiscard]] LateElements saved_late(
      const StateDict& state, const std::vector<std::uint8_t>& elements) const;
  void set_late(LateElements late) { late_ = std::move(late); }

 private:
  [[nodiscard]] Apply update_with(const StepInput& in, const Coefficients& c,
                                  const Buffer& d) const;
  [[nodiscard]] std::unique_ptr<exchange::CompressedAllReduce> make_exchange()
      const;
  [[nodiscard]] std::optional<LowBitAverage::Views> residuals() const;
  void inherit_block(std::size_t b, float* error, double clip,
                     std::span<const HeavyElement> heavy) const;

  LowBitModel& model_;
  bool keeps_previous_;
  std::unique_ptr<exchange::CompressedAllReduce> exchange_;
  std::vector<std::uint8_t> participation_;  // empty: every element takes part
  exchange::ActiveMask active_;              // the same in bits
  LateElements late_;
  std::size_t num_left_out_ = 0;
  bool is_signs_ = false;
  std::vector<float> units_;
  Residuals debt_;  // of a group of one
};

}  // namespace thinwire::optim
