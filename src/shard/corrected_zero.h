// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "shard/section.h"
#include "shard/zero_impl.h"

namespace thinwire::shard {

/// Pieces of buckets, sums in fp32, and the bits of no shards at all.
class CorrectedZero final : public ZeroOptimizer::Impl {
 public:
  CorrectedZero(comm::Communicator& c, const ParameterLayout& l,
                const MakeRule& make_rule, View p, const ZeroOptions& settings,
                ConstView initial);

  [[nodiscard]] const ShardLayout& shards() const override {
    return sections_.front()->shards();
  }
  [[nodiscard]] std::vector<Range> buckets() const override;

  void begin_backward(ZeroOptimizer::Backward which) override;
  void collect(std::size_t index, ConstView gradient) override;
  void end_backward() override;
  void cancel_backward() override;
  [[nodiscard]] ZeroOptimizer::Late late() const override;
  void reduce_early(View grads, Range range) override;
  [[nodiscard]] bool reduces_early() const override {
    return options.stage == 1;
  }
  optim::StepReport step(const optim::StepInput& in) override;

  [[nodiscard]] std::vector<float> read(std::size_t parameter,
                                        std::string_view what,
                                        View grads) override;
  void write(std::size_t parameter, std::string_view what,
             std::span<const float> values) override;
  void read_masters(ConstView from) override {
    for (const auto& section : sections_) section->read_masters(from);
  }
  void offload_states() override {
    for (const auto& section : sections_) section->offload_states();
  }
  void reload_states() override {
    for (const auto& section : sections_) section->reload_states();
  }
  void set_learning_rate(std::size_t group, double rate) override {
    for (const auto& section : sections_)
      section->rule().set_learning_rate(group, rate);
  }
  [[nodiscard]] double learning_rate(std::size_t group) const override {
    return sections_.front()->rule().learning_rate(group);
  }
  void save(StateDict& state) const override;
  void require_fits(const StateDict& state) const override;
  void load(const StateDict& state) override;

 private:
  [[nodiscard]] Section& section_of(std::size_t parameter) const;
  // Whole gradients of the window, if stage 1 was handed them one by one.
  void make_sums(ZeroOptimizer::Backward which);
  void finish(View grads);
  [[nodiscard]] double norm(double loss_scale, optim::StepMeter& meter);
  void take_step(const optim::StepInput& in, optim::StepMeter& meter,
                 optim::StepReport& report);
  [[noreturn]] void stop();
  void end_window();

  std::shared_ptr<CopyEngine> copies_;
  // Stage 1, one by one: gradients stay whole until the last backward. Sections
  // that are destroyed wait for what is under way from here.
  Buffer sums_;
  std::vector<std::unique_ptr<Section>> sections_;  // the dense one first
  std::vector<std::size_t> num_squares_;  // per rank, of all its sections

  ZeroOptimizer::Backward which_;
  BucketSchedule schedule_;
  ZeroOptimizer::Late late_;
  bool is_finished_ = false;
};

}  // namespace thinwire::shard
