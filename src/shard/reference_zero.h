// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "optim/exact_exchange.h"
#include "shard/zero_impl.h"
#include "thinwire/core/buffer.h"
#include "thinwire/optim/adam.h"

namespace thinwire::shard {

/// Written to be compared with, not to be fast or small: every rank keeps an
/// array of all gradients in stage 2 too, and nothing overlaps.
class ReferenceZero final : public ZeroOptimizer::Impl {
 public:
  ReferenceZero(comm::Communicator& c, const ParameterLayout& l,
                const MakeRule& make_rule, View p, const ZeroOptions& settings,
                ConstView initial);

  [[nodiscard]] const ShardLayout& shards() const override { return shards_; }
  // Nothing leaves before all of it is there.
  [[nodiscard]] std::vector<Range> buckets() const override {
    return {{0, layout.size()}};
  }

  void begin_backward(ZeroOptimizer::Backward which) override;
  void collect(std::size_t index, ConstView gradient) override;
  void end_backward() override;
  void cancel_backward() override;
  optim::StepReport step(const optim::StepInput& in) override;

  [[nodiscard]] std::vector<float> read(std::size_t parameter,
                                        std::string_view what,
                                        View grads) override;
  void write(std::size_t parameter, std::string_view what,
             std::span<const float> values) override;
  void read_masters(ConstView from) override;
  void offload_states() override;
  void reload_states() override;

  void set_learning_rate(std::size_t group, double rate) override {
    adam_.set_learning_rate(group, rate);
  }
  [[nodiscard]] double learning_rate(std::size_t group) const override {
    return adam_.learning_rate(group);
  }
  void save(StateDict& state) const override;
  void require_fits(const StateDict& state) const override;
  void load(const StateDict& state) override;

 private:
  [[nodiscard]] DType sum_dtype() const noexcept;
  void reduce();
  void finish();
  void collect_all(ConstView whole);
  void take_step(optim::StepReport& report, optim::StepMeter& meter);
  [[nodiscard]] bool overflows() const;
  [[nodiscard]] std::int64_t first_nonfinite() const;
  [[nodiscard]] float scaled_norm() const;
  [[nodiscard]] float clip_divisor(float total) const;
  [[nodiscard]] float unscaling_factor(float clip) const;
  void update(float factor);
  void gather_params();
  [[nodiscard]] View array(std::string_view what);

  ShardLayout shards_;
  std::size_t rank_;
  std::vector<Fragment> fragments_;  // this rank's
  std::unique_ptr<optim::UpdateRule> rule_;
  optim::Adam& adam_;
  // Of this rank's slices, as are Adam's states. Padding is 0 for ever, so it
  // is not kept.
  Buffer masters_;
  Buffer averaged_;
  // Of everything, in flat order: the groups one after the other, each in the
  // order in which it is sliced.
  Buffer sums_;
  std::vector<std::size_t> places_;  // of parameters in flat order
  bool has_averaged_ = false;
  ZeroOptimizer::Backward which_;
};

}  // namespace thinwire::shard
