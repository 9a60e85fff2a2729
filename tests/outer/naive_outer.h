// SPDX-License-Identifier: Apache-2.0
// The outer loop as plain loops: all ranks in one place. Inner optimizers are
// the library's, each over a rank of its own, and few bits are NaiveWire's.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "exchange/naive_mean.h"
#include "thinwire/comm/local.h"
#include "thinwire/kernels/norm.h"
#include "thinwire/optim/nesterov.h"
#include "thinwire/outer/outer_loop.h"
#include "zero/naive_wire.h"

namespace thinwire::test {

class NaiveOuter {
 public:
  using Floats = std::vector<float>;

  NaiveOuter(int world, const ParameterLayout& layout,
             const outer::MakeInner& make_inner,
             const outer::OuterOptions& options, const Floats& start)
      : params(static_cast<std::size_t>(world), start),
        world_(world),
        layout_(layout),
        options_(options) {
    for (int rank = 0; rank < world; ++rank) {
      alone_.push_back(std::move(comm::make_local_group(1).front()));
      inner_.push_back(make_inner(*alone_.back()));
    }
  }

  /// Takes a step. Returns whether ranks have synced.
  bool step(std::vector<Floats> grads) {
    if (t_++ < options_.warmup_steps) {
      warm_up(grads);
      return false;
    }
    if (!wire) begin();
    for (std::size_t r = 0; r < params.size(); ++r)
      take(r, grads[r], 1, [this](double norm) { return rho_ * norm; });
    ++behind_;
    if (behind_ < interval_now()) {
      grow();
      return false;
    }
    grow();
    sync();
    return true;
  }

  void sync() {
    std::vector<Floats> changes = params;
    for (Floats& change : changes)
      for (std::size_t i = 0; i < change.size(); ++i)
        change[i] = wire->params[i] - change[i];
    const bool is_exact = options_.bits_up == 0 || world_ == 1;
    if (is_exact)
      reduce_exactly(changes);
    else
      wire->reduce(changes, 1);
    wire->update(1);
    for (Floats& p : params) p = wire->params;
    behind_ = 0;
  }

  std::vector<Floats> params;       ///< Of each rank.
  std::unique_ptr<NaiveWire> wire;  ///< Anchor, owners and residuals.

 private:
  void begin() {
    const auto rule = [this](const ParameterLayout& layout) {
      return std::make_unique<optim::Nesterov>(
          layout,
          optim::NesterovOptions{.learning_rate = options_.learning_rate,
                                 .momentum = options_.momentum});
    };
    // A single rank sends nothing.
    const bool sends = world_ > 1;
    wire = std::make_unique<NaiveWire>(
        layout_, rule, world_, DType::kFloat32,
        zero::WireOptions{.bits_up = sends ? options_.bits_up : 0,
                          .bits_down = sends ? options_.bits_down : 0,
                          .residual_dtype = DType::kFloat32},
        params.front());
  }

  void take(std::size_t r, Floats grads, double scale,
            const std::function<double(double)>& whole_norm) {
    inner_[r]->step({.params = params[r],
                     .grads = grads,
                     .loss_scale = scale,
                     .whole_norm = whole_norm});
  }

  void warm_up(const std::vector<Floats>& grads) {
    Floats sum(layout_.size());
    double squares = 0;
    for (const Floats& own : grads) {
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + own[i];
      squares += kernels::sum_of_squares(own);
    }
    const bool is_exact = options_.warmup_bits == 0 || world_ == 1;
    if (!is_exact) sum = mean_in_few_bits(grads);
    double mean_norm = 0;
    for (std::size_t r = 0; r < params.size(); ++r)
      take(r, sum, is_exact ? world_ : 1,
           [&](double norm) { return mean_norm = norm; });
    const double ratio = mean_norm / std::sqrt(squares / world_);
    if (squares > 0) rho_ = t_ == 1 ? ratio : 0.9 * rho_ + 0.1 * ratio;
  }

  Floats mean_in_few_bits(std::vector<Floats> grads) {
    worker_errors_.resize(grads.size(), Floats(layout_.size()));
    server_error_.resize(layout_.size());
    for (const Parameter& p : layout_.parameters())
      naive_mean({p.offset, p.size}, options_.warmup_bits, 1, grads,
                 worker_errors_, server_error_);
    return grads.front();
  }

  // The mean in rank order, as ZeRO forms it: a sum, then times 1 / W.
  void reduce_exactly(const std::vector<Floats>& changes) {
    wire->mean.assign(layout_.size(), 0);
    const auto share = static_cast<float>(1.0 / world_);
    for (const Floats& own : changes)
      for (std::size_t i = 0; i < own.size(); ++i)
        wire->mean[i] = wire->mean[i] + own[i];
    for (float& y : wire->mean) y = y * share;
  }

  [[nodiscard]] std::int64_t interval_now() const {
    return options_.sync_growth == 0 ? options_.sync_every
                                     : std::min(length_, options_.sync_every);
  }
  void grow() {
    if (options_.sync_growth == 0 || ++counter_ < options_.sync_growth) return;
    counter_ = 0;
    length_ *= 2;
  }

  int world_;
  ParameterLayout layout_;
  outer::OuterOptions options_;
  std::vector<std::unique_ptr<comm::Communicator>> alone_;
  std::vector<std::unique_ptr<optim::Optimizer>> inner_;
  std::vector<Floats> worker_errors_;  // of the warm-up
  Floats server_error_;
  std::int64_t t_ = 0;
  std::int64_t behind_ = 0;
  std::int64_t length_ = 1;
  std::int64_t counter_ = 0;
  double rho_ = 1;
};

}  // namespace thinwire::test
