// SPDX-License-Identifier: Apache-2.0
// 1-bit Adam in plain loops: see naive.h.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "optim/naive/frozen.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::test::naive {

/// With a fixed freeze and no group that stays exact.
/// Ranks hold the same parameters after every step, so there is one copy. If
/// the exchange goes under the next step, each has its own besides.
class OnebitAdam : public LowBit {
 public:
  OnebitAdam(int world, const ParameterLayout& layout,
             const optim::OnebitAdamOptions& o, Floats start)
      : LowBit(world, layout, o, optim::warmup_bits_of(o.freeze)),
        freeze_step_(optim::freeze_step_of(o.freeze)),
        goes_under_(world > 1 && o.compression.exchange.under_next_step),
        p_(std::move(start)),
        m_(layout.size()),
        v_(layout.size()) {}

  /// False: skipped.
  bool step(const std::vector<Floats>& grads) {
    counts = {};
    if (t_ >= freeze_step_) {
      const auto clip = gradients_.compressed(grads);
      own_.clear();
      if (clip) compressed_step(grads, *clip);
      return clip.has_value();
    }
    const auto mean = average(grads);
    if (!mean) return false;
    exact_step(mean->sum, mean->scale);
    if (t_ == freeze_step_) freeze(mean->clip);
    return true;
  }

  [[nodiscard]] const Floats& params(int rank) const {
    return own_.empty() ? p_ : own_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] const Floats& common() const { return p_; }
  void synchronize() { own_.clear(); }
  [[nodiscard]] const Floats& variance() const { return v_; }
  Counts counts;  ///< Of the last step, if it was a compressed one.

 private:
  void exact_step(const Floats& sum, float scale) {
    ++t_;
    for (const Parameter& param : setup_.layout.parameters()) {
      const Numbers k = numbers(setup_.groups[param.group], t_, t_);
      for (std::size_t i = param.offset; i < param.offset + param.size; ++i) {
        const float g = sum[i] * scale;
        m_[i] = k.momentum(m_[i], g);
        v_[i] = k.variance(v_[i], g);
        move(i, k, k.denominator(v_[i]));
      }
    }
  }

  void freeze(double clip) {
    frozen_.emplace(setup_, t_, m_, v_, 10);
    if (few_bits_)
      bits_.inherit(*few_bits_, clip, Floats(m_.size(), 1.0f),
                    frozen_->ratios(), frozen_->active);
  }

  void compressed_step(const std::vector<Floats>& grads, double clip) {
    ++t_;
    const std::vector<std::size_t> revived = frozen_->revive(grads);
    for (const std::size_t i : revived) m_[i] = 0;
    counts = frozen_->counts();
    counts.revived = revived.size();
    std::vector<Floats> x = frozen_->inputs(grads, clip);
    for (const Parameter& param : setup_.layout.parameters()) {
      const Numbers k = numbers(setup_.groups[param.group], t_, t_);
      for (Floats& of_rank : x)
        for (std::size_t i = param.offset; i < param.offset + param.size; ++i)
          of_rank[i] = k.momentum(m_[i], of_rank[i]);
    }
    if (goes_under_) own_ = own_steps(x);
    m_ = bits_.mean(x, frozen_->active);
    move_all();
  }

  // Every rank's parameters after a step with its own momentum.
  [[nodiscard]] std::vector<Floats> own_steps(const std::vector<Floats>& m) {
    const Floats common = p_, mean = m_;
    std::vector<Floats> own;
    for (const Floats& of_rank : m) {
      m_ = of_rank;
      for (std::size_t i = 0; i < m_.size(); ++i)
        if (frozen_->active[i] == 0) m_[i] = 0;
      move_all();
      own.push_back(p_);
      p_ = common;
    }
    m_ = mean;
    return own;
  }

  void move_all() {
    for (const Parameter& param : setup_.layout.parameters()) {
      const Numbers k = numbers(setup_.groups[param.group], t_, t_);
      for (std::size_t i = param.offset; i < param.offset + param.size; ++i)
        move(i, k, frozen_->denominator[i]);
    }
  }

  void move(std::size_t i, const Numbers& k, float d) {
    const auto step = static_cast<float>(-k.learning_rate);
    p_[i] = p_[i] + step * k.update(m_[i], d, p_[i]);
  }

  std::int64_t freeze_step_;
  bool goes_under_;
  Floats p_, m_, v_;
  std::vector<Floats> own_;  // per rank, if they differ from p_
  std::int64_t t_ = 0;
  std::optional<Frozen> frozen_;
};

}  // namespace thinwire::test::naive
