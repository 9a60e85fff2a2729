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
/// Ranks hold the same parameters after every step, so there is one copy.
class OnebitAdam : public LowBit {
 public:
  OnebitAdam(int world, const ParameterLayout& layout,
             const optim::OnebitAdamOptions& o, Floats start)
      : LowBit(world, layout, o, optim::warmup_bits_of(o.freeze)),
        freeze_step_(optim::freeze_step_of(o.freeze)),
        p_(std::move(start)),
        m_(layout.size()),
        v_(layout.size()) {}

  /// False: skipped.
  bool step(const std::vector<Floats>& grads) {
    counts = {};
    if (t_ >= freeze_step_) {
      const auto clip = gradients_.compressed(grads);
      if (clip) compressed_step(grads, *clip);
      return clip.has_value();
    }
    const auto mean = average(grads);
    if (!mean) return false;
    exact_step(mean->sum, mean->scale);
    if (t_ == freeze_step_) freeze(mean->clip);
    return true;
  }

  [[nodiscard]] const Floats& params(int /*rank*/) const { return p_; }
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
    m_ = bits_.mean(x, frozen_->active);
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
  Floats p_, m_, v_;
  std::int64_t t_ = 0;
  std::optional<Frozen> frozen_;
};

}  // namespace thinwire::test::naive
